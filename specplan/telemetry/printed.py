"""Summaries as people paste them: lines of name and value, of vLLM's and SGLang's benchmarks and vLLM's script."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from specplan.errors import InputError
from specplan.telemetry.bench import read_bench
from specplan.telemetry.observation import Observation

# Printed name, in lower case and without its unit: the key that result files have for it.
_NAMES: Final = {
    "successful requests": "completed",
    "benchmark duration": "duration",
    "total generated tokens": "total_output_tokens",
    "total_num_output_tokens": "total_output_tokens",
    "output token throughput": "output_throughput",
    "average output throughput": "output_throughput",
    "mean tpot": "mean_tpot_ms",
    "mean itl": "mean_itl_ms",
    "mean ttft": "mean_ttft_ms",
    "maximum request concurrency": "max_concurrency",
    "max request concurrency": "max_concurrency",
    "acceptance rate": "spec_decode_acceptance_rate",
    "acceptance length": "spec_decode_acceptance_length",
    "mean acceptance length": "spec_decode_acceptance_length",
    "drafts": "spec_decode_num_drafts",
    "num_drafts": "spec_decode_num_drafts",
    "draft tokens": "spec_decode_draft_tokens",
    "num_draft_tokens": "spec_decode_draft_tokens",
    "accepted tokens": "spec_decode_accepted_tokens",
    "num_accepted_tokens": "spec_decode_accepted_tokens",
    "accept length": "accept_length",
    "average accept length": "accept_length",
    "backend": "backend",
    "model": "model_id",
}
_SPECULATION: Final = ("spec_decode_", "accept_length")
_LINE: Final = re.compile(
    r"^[\s*>|#-]*(?P<name>[A-Za-z_][\w .-]*?)\s*(?:\((?P<unit>[^)]*)\))?\s*[:=|]\s*(?P<value>.*\S)\s*$"
)
_VALUE: Final = re.compile(
    r"(?P<number>-?[\d,]*\.?\d+(?:e-?\d+)?)\s*(?P<unit>%|ms|s|min|k?tok(?:en)?s?/s|tokens?)?(?=[\s(,;|]|$)"
)
_COUNTS: Final = frozenset(
    {
        "completed",
        "total_output_tokens",
        "spec_decode_num_drafts",
        "spec_decode_draft_tokens",
        "spec_decode_accepted_tokens",
    }
)
# What a figure is in: factors to the key's own unit.
_UNITS: Final = {
    "duration": {"": 1.0, "s": 1.0, "ms": 1e-3, "min": 60.0},
    **{f"mean_{what}_ms": {"": 1.0, "ms": 1.0, "s": 1e3} for what in ("tpot", "itl", "ttft")},
    "output_throughput": {"": 1.0}
    | {f"{k}{token}/s": f for k, f in (("", 1.0), ("k", 1e3)) for token in ("tok", "token", "tokens")},
}
_POSITION: Final = re.compile(r"(?:position|acceptance at token|pos)\s*(\d+)$", re.IGNORECASE)
_PARTS: Final = re.compile(r"\s*(?:,|/)\s+(?=[A-Za-z_#])")
_HINT: Final = re.compile(
    r"draft|accept|position|requests|benchmark|generated tokens|output_tokens|throughput|tpot|itl|ttft|backend|model",
    re.IGNORECASE,
)
_LONGEST: Final = 400
_HEADS: Final = ("Serving Benchmark Result", "Offline Throughput Benchmark Result")


@dataclass(slots=True)
class _Block:
    values: dict[str, Any] = field(default_factory=dict)
    positions: dict[int, str] = field(default_factory=dict)
    percent: bool | None = None

    @property
    def rates(self) -> tuple[list[float], int]:
        """Rates by position as fractions, and their digits; the benchmark prints percent, the script fractions."""
        texts = [self.positions[i] for i in sorted(self.positions)]
        values = [float(t) for t in texts]
        percent = self.percent
        if percent is None:
            percent = max(values) > 1 or self._nearer_percent(sum(values))
        digits = min(len(t.partition(".")[2]) for t in texts) + (2 if percent else 0)
        return [v / 100 if percent else v for v in values], digits

    def _nearer_percent(self, total: float) -> bool:
        """Whether figures all at most 1 are percent: the accepted tokens per draft, where told, decide."""
        drafts, accepted = (self.values.get(f"spec_decode_{key}") for key in ("num_drafts", "accepted_tokens"))
        length = self.values.get("spec_decode_acceptance_length")
        gain = accepted / drafts if drafts and accepted is not None else None if length is None else length - 1
        return gain is not None and abs(total / 100 - gain) < abs(total - gain)


@dataclass(slots=True)
class Printed:
    """Blocks of named figures so far; a new one begins at a heading, or where a name comes again."""

    blocks: list[_Block] = field(default_factory=lambda: [_Block()])

    def add(self, line: str) -> None:
        """Take any line; those without a known name are passed over."""
        if len(line) > _LONGEST or _HINT.search(line) is None:
            return
        if any(head in line for head in _HEADS):
            self._next()
            return
        for part in _PARTS.split(line.replace("**", "").replace("`", "")):
            if (m := _LINE.match(part)) is not None:
                self._take(m["name"].strip().lower(), m["unit"] or "", m["value"].strip(" |"))

    def _next(self) -> None:
        if self.blocks[-1].values or self.blocks[-1].positions:
            self.blocks.append(_Block())

    def _take(self, name: str, unit: str, text: str) -> None:
        position, key = _POSITION.search(name), _NAMES.get(name)
        if position is None and key is None:
            return
        if key in ("backend", "model_id"):
            self._put(str(key), text.split()[0])
            return
        found = _VALUE.match(text)
        if found is None:
            if (key in _COUNTS or position is not None) and text[:1].isdigit():
                raise InputError(f"{name}: {text} is no number in full; expected it as the benchmark prints it")
            return
        value, unit = float(found["number"].replace(",", "")), found["unit"] or unit
        if position is not None:
            self._put_position(int(position[1]), found["number"], percent=True if unit == "%" else None)
            return
        if key in _COUNTS and value != int(value):
            raise InputError(f"{name}: {text} must be a whole number")
        if key == "spec_decode_acceptance_rate" and unit != "%" and value <= 1 and "." in found["number"]:
            value *= 100
        factors = _UNITS.get(str(key))
        if factors is not None:
            if unit not in factors:
                raise InputError(f"{name}: unit {unit!r} is not known; expected {', '.join(u for u in factors if u)}")
            value *= factors[unit]
        self._put(str(key), int(value) if key in _COUNTS else value)

    def _put(self, key: str, value: object) -> None:
        if key in self.blocks[-1].values and self.blocks[-1].values[key] != value:
            self._next()
        self.blocks[-1].values[key] = value

    def _put_position(self, place: int, text: str, *, percent: bool | None) -> None:
        if self.blocks[-1].positions.get(place, text) != text:
            self._next()
        block = self.blocks[-1]
        block.positions[place], block.percent = text, block.percent or percent

    def observations(self, origin: str, width: int | None) -> list[Observation]:
        """One entry per block with a figure of speculation, or with the speeds of a benchmark."""
        return list(self._read(origin, width))

    def _read(self, origin: str, width: int | None) -> Iterator[Observation]:
        for block in self.blocks:
            speculates = block.positions or any(key.startswith(_SPECULATION) for key in block.values)
            if not speculates and len(block.values) < 3:
                continue
            result = dict(block.values)
            if block.positions:
                places = sorted(block.positions)
                if places != list(range(len(places))):
                    raise InputError(f"{origin}: rates of positions {places}: one before the last is missing")
                result["spec_decode_per_position_acceptance_rates"], result["rate_digits"] = block.rates
            yield read_bench(result, origin, width=width)
