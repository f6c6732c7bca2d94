"""Sources as users write them, ``ngram:alpha=.8,coverage=.3,k=5``, and as measured documents state them."""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from specplan.decide.measured import Alpha, MeasuredSource
from specplan.decide.source import WEIGHTLESS, DraftSource, check_source
from specplan.errors import InputError
from specplan.records.tally import Tally

KEYS: Final[Mapping[str, str]] = {
    "alpha": "acceptance per position: .7, .6..0.8, .6..0.7..0.8, or per position .8/.7/.6",
    "hit": "acceptance of the first drafted token",
    "cont": "acceptance of each later one",
    "emitted": "measured tokens per step, over all steps",
    "coverage": "share of steps with a draft",
    "c": "draft step over target step",
    "k": "drafted tokens",
    "verify": "verify pass over plain pass",
    "overhead": "what every step pays, in plain passes",
    "nodes": "positions of a tree that is verified whole in every step",
}
SPELLING: Final = f"NAME:key=value,... with keys {', '.join(KEYS)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """A source as it was written: its name and the fields of `DraftSource` that it gives."""

    name: str
    given: Mapping[str, Any]

    @property
    def is_weightless(self) -> bool:
        """Whether its kind streams no weights."""
        return self.name.lower() in WEIGHTLESS

    def source(self, *, kappa: int, c: float | None = None, target: str = "") -> DraftSource:
        """The source, with the draft length and the cost that it does not give itself.

        Raises
        ------
        InputError
            Where c is neither written, nor passed, nor 0 by the kind of source.
        """
        known = {"kappa": kappa, "c": c, **self.given}
        if known["c"] is None:
            if not self.is_weightless:
                raise InputError(
                    f"source {self.name!r}: its cost is unknown; give c=..., or a source without weights "
                    f"({', '.join(WEIGHTLESS)})"
                )
            known["c"] = 0.0
        all_steps = known.get("emitted")
        if all_steps is not None:
            known["emitted"] = _per_draft(self.name, all_steps, known.get("coverage", 1.0))
        return check_source(DraftSource(name=self.name, target=target, **known))


def _per_draft(name: str, all_steps: float, coverage: float) -> float:
    if coverage == 0:
        raise InputError(f"source {name!r}: a source that never drafts has no tokens per drafted step")
    return 1.0 + (all_steps - 1.0) / coverage


def read_source(text: str) -> SourceText:
    """Read ``NAME`` or ``NAME:key=value,...``.

    Raises
    ------
    InputError
        Naming the text, the key and what it must be.

    Examples
    --------
    >>> dict(read_source("ngram:alpha=.8,k=5").given)
    {'alpha': 0.8, 'kappa': 5}
    """
    # a path may hold colons; options hold an equals sign
    name, colon, rest = text.rpartition(":")
    if not colon or ("=" not in rest and rest.strip()):
        name, rest = text, ""
    if not name.strip():
        raise InputError(f"source {text!r}: has no name; write {SPELLING}")
    given: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = (x.strip() for x in part.partition("="))
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; one of {', '.join(KEYS)}"
            raise InputError(f"source {text!r}: unknown key {key!r}{hint}")
        if not equals or not value:
            raise InputError(f"source {text!r}: {key} needs a value: {KEYS[key]}")
        fields = _fields(key, value, f"source {text!r}: {key}")
        if given.keys() & fields.keys():
            raise InputError(f"source {text!r}: {key} is given twice")
        given |= fields
    return SourceText(name=name.strip(), given=given)


def _fields(key: str, value: str, where: str) -> dict[str, Any]:
    match key:
        case "alpha":
            return read_acceptance(value, where)
        case "cont":
            return {"continuation": read_number(value, where, 0.0, 1.0)}
        case "k" | "nodes":
            return {"kappa" if key == "k" else key: read_whole(value, where)}
        case "hit" | "coverage":
            return {key: read_number(value, where, 0.0, 1.0)}
        case "emitted":
            return {key: read_number(value, where, 1.0)}
        case _:
            return {key: read_number(value, where, 0.0)}


def read_number(text: str, where: str, low: float = -math.inf, high: float = math.inf) -> float:
    """One finite number within bounds.

    >>> read_number("0.7", "--alpha", 0, 1)
    0.7
    """
    try:
        number = float(text)
    except ValueError:
        raise InputError(f"{where} {text.strip()!r} is not a number") from None
    if not math.isfinite(number) or not low <= number <= high:
        bounds = f"be at least {low:g}" if high == math.inf else f"lie in [{low:g}, {high:g}]"
        raise InputError(f"{where} {text.strip()} must be finite and {bounds}")
    return number


def read_whole(text: str, where: str) -> int:
    """One whole number of at least 1.

    >>> read_whole("3", "k")
    3
    """
    digits = text.strip()
    if not digits.isdecimal() or len(digits) > 6 or int(digits) < 1:
        raise InputError(f"{where} {digits!r} must be a whole number of at least 1")
    return int(digits)


def read_numbers(texts: Iterable[str], where: str, low: float = -math.inf, high: float = math.inf) -> list[float]:
    """Numbers of repeated or comma-separated values of an option.

    >>> read_numbers(["0.5,0.7", "0.9"], "--alpha", 0, 1)
    [0.5, 0.7, 0.9]
    """
    return [read_number(part, where, low, high) for text in texts for part in text.split(",")]


def read_acceptance(text: str, where: str) -> dict[str, Any]:
    """Fields of `DraftSource` of an acceptance: one number, a number with its interval, or one per position.

    >>> read_acceptance(".6..0.7..0.8", "alpha"), read_acceptance(".8/.7", "alpha")
    ({'alpha': 0.7, 'alpha_low': 0.6, 'alpha_high': 0.8}, {'hazard': (0.8, 0.7)})
    """
    if "/" in text:
        return {"hazard": tuple(read_number(part, where, 0.0, 1.0) for part in text.split("/"))}
    ends = [read_number(part, where, 0.0, 1.0) for part in text.split("..")]
    if len(ends) > 3 or sorted(ends) != ends:
        raise InputError(f"{where} {text!r} must be one number, low..high, or low..best..high")
    if len(ends) == 1:
        return {"alpha": ends[0]}
    middle = ends[1] if len(ends) == 3 else (ends[0] + ends[1]) / 2
    return {"alpha": middle, "alpha_low": ends[0], "alpha_high": ends[-1]}


def read_acceptances(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """``.7`` (for every draft) and ``NAME=.65`` (for a draft, a target, or DRAFT/TARGET), by name.

    >>> read_acceptances([".7", "llama3-8b=.65"])
    {'': {'alpha': 0.7}, 'llama3-8b': {'alpha': 0.65}}
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if name in found:
            raise InputError(f"--alpha {text}: given twice" + (f" for {name}" if name else ""))
        found[name] = read_acceptance(value, "--alpha")
    return found


def measured_rows(document: Any, where: str) -> list[MeasuredSource]:
    """Measured sources of a document that ``replay``, ``measure`` or ``ingest`` printed.

    A row is an object with ``source`` (or ``name``) and ``alpha``; rows are looked for in the document itself, in a
    list, and under ``sources`` and ``points``.

    Raises
    ------
    InputError
        Where there is no such row, or a value in one is not a number.
    """
    found = [_measured(row, where) for row in _rows(document)]
    if not found:
        raise InputError(
            f"{where}: no measured source; expected the JSON of replay, measure or ingest (rows with source and alpha)"
        )
    return found


def _rows(node: Any) -> Iterable[Mapping[str, Any]]:
    if isinstance(node, Mapping):
        if "alpha" in node and ("source" in node or "name" in node):
            yield node
            return
        for key in ("sources", "points", "results"):
            inner = node.get(key)
            if isinstance(inner, Mapping):
                yield from (
                    {"name": name, **row} for name, row in inner.items() if isinstance(row, Mapping) and "alpha" in row
                )
            elif inner is not None:
                yield from _rows(inner)
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for row in node:
            yield from _rows(row)


def _measured(row: Mapping[str, Any], where: str) -> MeasuredSource:
    name = str(row.get("source", row.get("name")))

    def number(key: str) -> float | None:
        value = row.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise InputError(f"{where}: source {name!r}: {key} must be a number, got {value!r}")
        return float(value)

    def count(key: str) -> int | None:
        value = number(key)
        return None if value is None else round(value)

    drafts, drafted = count("drafts"), count("drafted_tokens")
    mean_length = number("mean_draft_len") or (drafted / drafts if drafts and drafted else None)
    fixed = number("num_speculative_tokens") or number("kappa")
    counts: dict[str, Any] = dict.fromkeys(f.name for f in fields(Tally))  # what a document does not tell is unknown
    counts |= {"steps": count("steps"), "drafts": drafts, "drafted_tokens": drafted}
    return MeasuredSource(
        source=name,
        tally=Tally(**counts | {"verified_tokens": count("verified_tokens")}),
        tag=str(row.get("tag") or ""),
        alpha=Alpha(value=number("alpha"), low=number("alpha_low"), high=number("alpha_high"), basis="document"),
        coverage=number("coverage"),
        tokens_per_drafted_step=number("tokens_per_drafted_step"),
        draft_len=mean_length if mean_length is not None else fixed,
    )


def measured_source(row: MeasuredSource, *, kappa: int, costs: Mapping[str, float]) -> DraftSource:
    """A measured source as a point of the plane.

    Parameters
    ----------
    row : MeasuredSource
    kappa : int
        Draft length where the row does not tell it.
    costs : mapping of str to float
        c by name, for sources with weights.

    Raises
    ------
    InputError
        Where the row has no acceptance, or c of a source with weights is not among `costs`.
    """
    name = row.source.partition(":")[0]
    c = costs.get(row.source, costs.get(name, 0.0 if name.lower() in WEIGHTLESS else None))
    if c is None:
        raise InputError(f"measured source {row.source!r}: its cost is not in the record; give --cost {name}=...")
    if row.alpha.value is None and row.tokens_per_drafted_step is None:
        raise InputError(f"measured source {row.source!r}: neither alpha nor tokens per drafted step is known")
    known = row.alpha.low is not None and row.alpha.high is not None
    nodes = _padded_nodes(row.tally)
    length = kappa if row.draft_len is None else max(1, round(row.draft_len))
    return check_source(
        DraftSource(
            name=f"{name} ({row.tag})" if row.tag else name,
            kappa=length if nodes is None else min(length, nodes - 1),
            nodes=nodes,
            c=c,
            alpha=row.alpha.value,
            alpha_low=row.alpha.low if known else None,
            alpha_high=row.alpha.high if known else None,
            emitted=row.tokens_per_drafted_step,
            coverage=1.0 if row.coverage is None else row.coverage,
            alpha_origin="measured",
            c_origin="assumed" if c else "derived",
        )
    )


def _padded_nodes(tally: Tally | None) -> int | None:
    """Nodes of a tree that is verified whole in every step, where more was verified than drafted; else None."""
    if tally is None or not tally.steps or tally.verified_tokens is None or tally.drafted_tokens is None:
        return None
    if tally.verified_tokens <= tally.drafted_tokens:
        return None
    return max(2, 1 + round(tally.verified_tokens / tally.steps))
