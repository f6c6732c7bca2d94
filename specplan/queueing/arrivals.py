"""Loads that are described by numbers: arrival rate or concurrency, and lengths of prompts and outputs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from specplan.errors import InputError
from specplan.files.reading import read_text
from specplan.queueing.load import Floats, Ints, Requests
from specplan.units import parse_count, read_number

_Z95: Final = 1.6448536269514722


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths of prompts or of outputs, in tokens.

    Attributes
    ----------
    text : str
        As they were spelled.
    median, p95 : float
        Of a lognormal distribution; equal where every length is the same.
    values, weights : ndarray or None
        A histogram in their place.
    """

    text: str
    median: float = 0.0
    p95: float = 0.0
    values: Ints | None = None
    weights: Floats | None = None

    def draw(self, n: int, rng: np.random.Generator, longest: int) -> Ints:
        """`n` lengths of at least 1, drawn again where they pass `longest`, which the engine would refuse."""
        if self.values is not None:
            return np.asarray(rng.choice(self.values, n, p=self.weights), np.int64)
        if self.p95 == self.median:
            return np.full(n, round(self.median), np.int64)
        spread = math.log(self.p95 / self.median) / _Z95
        drawn = self.median * np.exp(spread * rng.standard_normal(n))
        for _ in range(1000):
            beyond = drawn > longest
            if not beyond.any():
                break
            drawn[beyond] = self.median * np.exp(spread * rng.standard_normal(int(beyond.sum())))
        return np.maximum(np.round(drawn), 1).astype(np.int64)

    @property
    def mean(self) -> float:
        """Mean length, before the model's limit cuts it."""
        if self.values is not None and self.weights is not None:
            return float(self.values @ self.weights)
        if self.p95 == self.median:
            return self.median
        return self.median * math.exp((math.log(self.p95 / self.median) / _Z95) ** 2 / 2)


def read_lengths(text: str, option: str) -> Lengths:
    """Lengths as an option spells them: ``1500``, ``p50=800,p95=4000`` (lognormal), or a histogram file.

    A histogram is CSV with a length and a count per line, or JSON that maps lengths to counts.

    Raises
    ------
    InputError
        For anything else.

    Examples
    --------
    >>> read_lengths("2k", "--input").median
    2048.0
    >>> round(read_lengths("p50=800,p95=4000", "--input").mean)
    1291
    """
    form = f"{option} {text!r}: expected a number of tokens, p50=800,p95=4000, or a histogram file (.csv, .json)"
    if text.lower().endswith((".csv", ".json")):
        return _histogram(Path(text), text, option)
    if "=" not in text:
        tokens = parse_count(text)
        if tokens < 1:
            raise InputError(f"{option} {text}: must be at least 1 token")
        return Lengths(text=text, median=float(tokens), p95=float(tokens))
    words = dict(part.partition("=")[::2] for part in text.split(","))
    if set(words) != {"p50", "p95"}:
        raise InputError(form)
    median, p95 = (read_number(words[key], f"{option} {key}", 1.0) for key in ("p50", "p95"))
    if p95 < median:
        raise InputError(f"{option} {text}: p95 is below p50")
    return Lengths(text=text, median=median, p95=p95)


def _histogram(path: Path, text: str, option: str) -> Lengths:
    where = f"{option} {path}"
    rows: list[tuple[float, float]] = []
    raw = read_text(path, "a histogram of lengths")
    if path.suffix.lower() == ".json":
        from specplan.files.documents import json_object

        found: Mapping[str, object] = json_object(raw, where)
        rows = [(read_number(str(k), where, 1), read_number(str(v), where, 0)) for k, v in found.items()]
    else:
        for number, line in enumerate(raw.splitlines(), 1):
            parts = [p.strip() for p in line.split(",")]
            if number == 1 and not parts[0].replace(".", "").isdigit():
                continue
            if line.strip():
                if len(parts) != 2:
                    raise InputError(f"{where}, line {number}: expected a length and a count, read {line.strip()!r}")
                rows.append((read_number(parts[0], where, 1), read_number(parts[1], where, 0)))
    weights = np.array([w for _, w in rows])
    if not rows or weights.sum() <= 0:
        raise InputError(f"{where}: holds no length with a count above 0")
    values = np.array([round(v) for v, _ in rows], np.int64)
    return Lengths(text=text, values=values, weights=weights / weights.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load by its numbers; one of `rate`, `concurrency` and `trace` is given.

    Attributes
    ----------
    input, output : Lengths or None
        None under a trace.
    rate : float or None
        Requests per second.
    burstiness : float
        Shape of the gamma distribution of gaps: 1 is Poisson, below it bursts, infinite is a clock.
    concurrency : int or None
        Requests in the system; each that ends lets the next one come.
    turnaround_s : float
        Of a closed load: from the end of a request to the arrival of the next one.
    trace : Requests or None
    requests : int
        How many requests, where no trace says so.
    """

    input: Lengths | None = None
    output: Lengths | None = None
    rate: float | None = None
    burstiness: float = 1.0
    concurrency: int | None = None
    turnaround_s: float = 0.0
    trace: Requests | None = None
    requests: int = 2000

    def __post_init__(self) -> None:
        """Refuse loads that make no sense."""
        if sum(x is not None for x in (self.rate, self.concurrency, self.trace)) != 1:
            raise InputError("give one of --rate, --concurrency and --trace")
        if self.trace is None and (self.input is None or self.output is None):
            raise InputError("give the lengths of prompts and outputs: --input and --output")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise InputError(f"--rate {self.rate:g}: must be finite and above 0 requests per second")
        if not self.burstiness > 0:
            raise InputError(f"--burstiness {self.burstiness:g}: must be above 0 (1 is Poisson)")
        for option, number in (("--concurrency", self.concurrency), ("--requests", self.requests)):
            if number is not None and number < 1:
                raise InputError(f"{option} {number}: must be at least 1")

    @property
    def count(self) -> int:
        """Requests of one seed."""
        return self.requests if self.trace is None else len(self.trace)

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Mean tokens of prompts and of outputs."""
        if self.trace is not None:
            return float(self.trace.prompt.mean()), float(self.trace.output.mean())
        assert self.input is not None and self.output is not None  # noqa: S101, PT018 - checked above
        return self.input.mean, self.output.mean

    @property
    def typical_tokens(self) -> int:
        """Tokens of a request in the middle of its output."""
        prompt, output = self.mean_lengths
        return round(prompt + output / 2)

    def draw(self, seed: int, longest: int) -> Requests:
        """The requests of one seed; lengths are drawn so that prompt and output stay within `longest` tokens.

        Examples
        --------
        >>> load = Load(rate=2.0, input=read_lengths("100", ""), output=read_lengths("10", ""), requests=1000)
        >>> round(float(load.draw(0, 4096).arrival[-1]) / 500, 1)
        1.0
        """
        if self.trace is not None:
            return self.trace
        assert self.input is not None and self.output is not None  # noqa: S101, PT018 - checked above
        rng = np.random.default_rng([seed, 0])
        n = self.requests
        if self.rate is not None:
            if math.isinf(self.burstiness):
                gaps = np.full(n, 1 / self.rate)
            else:
                gaps = rng.gamma(self.burstiness, 1 / (self.rate * self.burstiness), n)
            arrival = np.cumsum(gaps) - gaps[0]
        else:
            arrival = np.full(n, np.nan)
            arrival[: self.concurrency] = 0.0
        output = self.output.draw(n, rng, longest - 1)
        prompt = self.input.draw(n, rng, longest - 1)
        over = prompt + output > longest
        if over.any() and (self.input.p95 > self.input.median or self.output.p95 > self.output.median):
            prompt[over] = np.maximum(longest - output[over], 1)
        return Requests(
            arrival=arrival,
            prompt=prompt,
            output=output,
            closed=min(self.concurrency or 0, n),
            turnaround_s=self.turnaround_s,
        )
