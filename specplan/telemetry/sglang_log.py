"""SGLang's log: its decode lines and the arguments of its start."""

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from specplan.errors import InputError
from specplan.telemetry.observation import Interval, Load, Observation
from specplan.telemetry.sglang_rates import mean_step_s, sglang_means, sglang_translations, taken
from specplan.telemetry.vllm_log import seconds_of

MARK: Final = "accept len"
ARGUMENTS: Final = "speculative_num_draft_tokens="
_NUMBER: Final = r"(\d+(?:\.\d+)?|nan)"
_LINE: Final = re.compile(rf"Decode batch.*?#running-req: (\d+).*?accept len: {_NUMBER}(?:, accept rate: {_NUMBER})?")
_RATE: Final = re.compile(r"gen throughput \(token/s\): ([\d.]+)")
_QUEUE: Final = re.compile(r"#queue-req: (\d+)")
_USAGE: Final = re.compile(r"(?:full )?token usage: ([\d.]+)")
_RANK: Final = re.compile(r"\bDP(\d+)\b")
_WIDTH: Final = re.compile(r"speculative_num_draft_tokens=(\d+)")
_STEPS: Final = re.compile(r"speculative_num_steps=(\d+)")
_TOPK: Final = re.compile(r"speculative_eagle_topk=(\d+)")
_MODEL: Final = re.compile(r"(?:served_model_name|model_path)='([^']+)'")

DATED: Final = "older: the line writes 'Decode batch.' with a point, as versions before that change did"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decode:
    when: str
    rank: str
    running: int
    length: float
    rate: float | None
    tokens_per_s: float | None
    queue: int | None
    usage: float | None
    pointed: bool


@dataclass(slots=True)
class SglangLines:
    """Decode lines so far, and the width and longest chain of a draft from the server's arguments."""

    lines: list[_Decode] = field(default_factory=list)
    width: int | None = None
    chain: int | None = None
    topk: int | None = None
    model: str = "sglang"

    def add_arguments(self, line: str) -> None:
        """Take a line with the server's arguments."""
        self.width = int(m[1]) if (m := _WIDTH.search(line)) else self.width
        self.chain = int(m[1]) if (m := _STEPS.search(line)) else self.chain
        self.topk = int(m[1]) if (m := _TOPK.search(line)) else self.topk
        self.model = m[1] if (m := _MODEL.search(line)) else self.model
        if "speculative_algorithm='NGRAM'" in line:
            self.chain = None  # the steps are width // breadth there, and bound nothing

    def add(self, line: str) -> bool:
        """Take a decode line; False where it is none."""
        m = _LINE.search(line)
        if m is None:
            return False
        rate, queue, usage, rank = (p.search(line) for p in (_RATE, _QUEUE, _USAGE, _RANK))
        self.lines.append(
            _Decode(
                when=seconds_of(line)[1],
                rank=rank[1] if rank else "",
                running=int(m[1]),
                length=float(m[2]),
                rate=float(m[3]) if m[3] else None,
                tokens_per_s=float(rate[1]) if rate else None,
                queue=int(queue[1]) if queue else None,
                usage=float(usage[1]) if usage else None,
                pointed="Decode batch." in line,
            )
        )
        return True

    def observations(self, origin: str, width: int | None) -> list[Observation]:
        """One entry, and one per rank where several are in the log."""
        if not self.lines:
            return []
        ranks = sorted({x.rank for x in self.lines})
        total = self._observed(self.lines, "", origin, width)
        if len(ranks) < 2:
            return [total]
        return [total, *(self._observed([x for x in self.lines if x.rank == r], r, origin, width) for r in ranks)]

    def _observed(self, lines: list[_Decode], rank: str, origin: str, given: int | None) -> Observation:
        lines = [x for x in lines if x.length == x.length]
        weight = sum(x.running for x in lines)
        if weight == 0:
            raise InputError(f"{origin}: all 'Decode batch' lines have #running-req: 0; nothing was decoded")
        length = sum(x.running * x.length for x in lines) / weight
        width = given if given is not None else self.width
        rated = [(x.length, x.rate) for x in lines if x.rate is not None and x.running]
        dated = DATED if all(x.pointed for x in lines) else ""
        try:
            reading, notes = taken(rated, width=width, digits=2, dated=dated)
        except InputError as error:
            raise InputError(f"{origin}: {error}") from None
        width = width if width is not None else None if reading is None else reading.width
        rate = sum(x.running * x.rate for x in lines if x.rate is not None) / weight if rated else None
        queues = [x.queue for x in lines if x.queue is not None]
        usages = [x.usage for x in lines if x.usage is not None]
        tree = self.topk is not None and self.topk > 1
        told = [
            f"{len(lines)} decode lines, weighted by #running-req; each covers the same number of passes (assumed)",
            "means without counts: no interval of confidence follows",
            *notes,
        ]
        if tree:
            told.append(f"topk {self.topk}: the draft is a tree, alpha is that of a chain with the same E (derived)")
        speeds = [(x.running, x.length, x.tokens_per_s) for x in lines if x.tokens_per_s is not None]
        return Observation(
            engine="sglang",
            origin=origin,
            source=f"{self.model} DP{rank}" if rank else self.model,
            tally=None,
            means=sglang_means(length, width, self.chain),
            translations=sglang_translations(
                length,
                rate,
                names=("accept len", "accept rate"),
                reading=reading,
                width=width if self.width or given else None,
            ),
            labels=MappingProxyType({"engine": rank} if rank else {}),
            step_s=mean_step_s(speeds),
            mean_batch=weight / len(lines),
            load=Load(
                running=weight / len(lines),
                waiting=sum(queues) / len(queues) if queues else None,
                cache_use=max(usages) if usages else None,
            ),
            series=tuple(
                Interval(
                    when=x.when,
                    drafts=x.running,
                    drafted=x.running * ((width or 1) - 1),
                    accepted=round(x.running * (x.length - 1)),
                    tokens_per_s=x.tokens_per_s,
                    running=x.running,
                )
                for x in lines
                if x.when and x.running
            ),
            notes=tuple(told),
        )
