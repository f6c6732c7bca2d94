"""Published tables against specplan's predictions: how far each kind of figure can be trusted.

The tables ship with the package, each row with its source and whether its kind was used to fit constants (``fit``) or
only to test them (``test``). Nothing here fits anything.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from typing import Any, Final

import numpy as np

from specplan.errors import NotFoundError
from specplan.formulas.speedup import speedup
from specplan.formulas.step import PassShape, pass_shape
from specplan.timing.draft_time import host_ngram_s, model_draft_s
from specplan.timing.step_time import Machine, host_time, machine, pass_time
from specplan.values import formats
from specplan.values.hardware import Accelerator
from specplan.values.model import Access, Attention, DenseMLP, Experts, Layer, Model, Weight

AcceleratorLoader = Callable[[str], Accelerator]

LIMITS: Final[Mapping[str, float]] = {
    "decode latency": 0.12,
    "plain pass": 0.15,
    "verify pass": 0.15,
    "draft time": 0.25,
    "speedup": 0.10,
    "draft cost c": 0.35,
    "verified step of experts": 0.25,
    "speedup, closed form": 0.05,
}
"""Largest median error that is accepted, by quantity; others are shown without a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One published figure and its prediction, in the same unit (``s`` or a ratio)."""

    quantity: str
    label: str
    use: str
    unit: str
    predicted: float
    published: float

    @property
    def error(self) -> float:
        """Predicted over published, less 1."""
        return self.predicted / self.published - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of one quantity of one table, rows used for fitting and for testing apart."""

    quantity: str
    use: str
    count: int
    median_error: float
    median_signed_error: float
    worst_error: float
    limit: float | None

    @property
    def holds(self) -> bool:
        """Whether the median lies within the limit."""
        return self.limit is None or self.median_error <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """One published table."""

    name: str
    title: str
    source: str
    note: str | None
    comparisons: tuple[Comparison, ...]
    summaries: tuple[Summary, ...]
    notes: tuple[str, ...]


def table_names() -> tuple[str, ...]:
    """Names of the shipped tables.

    >>> "magicdec" in table_names()
    True
    """
    folder = resources.files("specplan") / "data" / "published"
    return tuple(sorted(p.name.removesuffix(".json") for p in folder.iterdir() if p.name.endswith(".json")))


def validate(load_accelerator: AcceleratorLoader, names: tuple[str, ...] | None = None) -> tuple[TableReport, ...]:
    """Replay published tables.

    Parameters
    ----------
    load_accelerator : callable
        Card by name (`specplan.specs.hardware.load_accelerator`).
    names : tuple of str, optional
        Tables to replay; all if None.

    Raises
    ------
    NotFoundError
        For an unknown table.

    Examples
    --------
    >>> from specplan.specs.hardware import load_accelerator
    >>> (leviathan,) = validate(load_accelerator, ("leviathan",))
    >>> leviathan.summaries[0].count, round(leviathan.summaries[0].median_error, 3)
    (18, 0.003)
    """
    return tuple(_report(_document(name), load_accelerator) for name in names or table_names())


def _document(name: str) -> dict[str, Any]:
    if name not in table_names():
        raise NotFoundError(f"no published table {name!r}; one of {', '.join(table_names())}, startup")
    text = (resources.files("specplan") / "data" / "published" / f"{name}.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def _report(document: Mapping[str, Any], load_accelerator: AcceleratorLoader) -> TableReport:
    table = _Table(document, load_accelerator)
    comparisons = tuple(c for row in document["rows"] for c in table.compare(row))
    return TableReport(
        name=document["name"],
        title=document["title"],
        source=document["source"],
        note=document.get("note"),
        comparisons=comparisons,
        summaries=summaries(comparisons),
        notes=tuple(table.notes),
    )


def summaries(comparisons: tuple[Comparison, ...]) -> tuple[Summary, ...]:
    """Errors by quantity, rows used for fitting and for testing apart."""
    found = []
    for quantity, use in dict.fromkeys((c.quantity, c.use) for c in comparisons):
        errors = np.array([c.error for c in comparisons if (c.quantity, c.use) == (quantity, use)])
        found.append(
            Summary(
                quantity=quantity,
                use=use,
                count=errors.size,
                median_error=float(np.median(np.abs(errors))),
                median_signed_error=float(np.median(errors)),
                worst_error=float(errors[np.argmax(np.abs(errors))]),
                limit=LIMITS.get(quantity),
            )
        )
    return tuple(found)


def model_of_shape(name: str, s: Mapping[str, Any], quantization: str | None = None) -> Model:
    """Model from the plain shape that a published table carries.

    A head on the target's hidden states (``head_of``) has ``fusion_inputs`` hidden vectors projected to one.

    >>> size = {"layers": 2, "hidden_size": 8, "mlp_width": 16, "vocab_size": 10}
    >>> len(model_of_shape("tiny", {**size, "heads": 2, "kv_heads": 1, "head_dim": 4}).layers)
    2
    """
    weight_format = formats.lookup(s.get("weight_format", "bfloat16"))
    attention = Attention(heads=s["heads"], kv_heads=s["kv_heads"], head_dim=s["head_dim"])
    gated = s.get("gated", True)
    feed_forward: DenseMLP | Experts = DenseMLP(width=s["mlp_width"], gated=gated)
    if "experts" in s:
        feed_forward = Experts(
            count=s["experts"],
            per_token=s["experts_per_token"],
            width=s["mlp_width"],
            shared_width=s.get("shared_width", 0),
        )
    hidden = s["hidden_size"]
    extra: tuple[Weight, ...] = ()
    if "fusion_inputs" in s:
        extra = (Weight(component="mlp", name="fusion", size=s["fusion_inputs"] * hidden**2, access=Access.MATMUL),)
    own = "head_of" not in s
    return Model(
        name=name,
        source="shape in the published table",
        hidden_size=hidden,
        vocab_size=s["vocab_size"],
        tied_embeddings=s.get("tied_embeddings", False),
        layers=(Layer(mixer=attention, feed_forward=feed_forward),) * s["layers"],
        weight_format=weight_format,
        quantization=None if quantization is None else formats.lookup(_QUANTIZATIONS.get(quantization, quantization)),
        extra=extra,
        head=own,
        embedding=own,
    )


_QUANTIZATIONS: Final = {"int4-g32": "int4-gptq-g32"}


class _Table:
    """Predictions for the rows of one document; shapes and machines are made once."""

    def __init__(self, document: Mapping[str, Any], load_accelerator: AcceleratorLoader) -> None:
        self._shapes: Mapping[str, Mapping[str, Any]] = document.get("models", {})
        self._load = lru_cache(maxsize=None)(load_accelerator)
        self._pass_shape = lru_cache(maxsize=None)(self._count)
        self._machine = lru_cache(maxsize=None)(self._make_machine)
        self.notes: dict[str, None] = {}

    def _count(self, name: str, tp: int, quantization: str | None, cpu: bool) -> PassShape:
        shape = self._shapes[name]
        if cpu:
            shape = {**shape, "weight_format": "float32"}
        target = shape.get("head_of")
        head_of = None if target is None else model_of_shape(target, self._shapes[target])
        return pass_shape(model_of_shape(name, shape, quantization), tp, head_of=head_of)

    def _make_machine(self, gpu: str, engine: str, tp: int) -> Machine:
        made = machine(self._load(gpu), engine, tp)
        self.notes.update(dict.fromkeys(made.notes))
        return made

    def _on(self, row: Mapping[str, Any]) -> Machine:
        return self._machine(row["gpu"], row["engine"], row["tp"])

    def _shape(self, row: Mapping[str, Any], role: str = "model") -> PassShape:
        return self._pass_shape(row[role], row["tp"], row.get("quantization"), row["gpu"] == "cpu")

    def compare(self, row: Mapping[str, Any]) -> Iterator[Comparison]:
        """Predict what the row publishes."""
        kinds: Mapping[str, Callable[[Mapping[str, Any]], Iterator[tuple[str, str, float, float]]]] = {
            "step": self._step,
            "pass": self._pass,
            "draft-step": self._draft_step,
            "speculation": self._speculation,
            "draft-cost": self._draft_cost,
            "moe-peak": self._moe_peak,
            "speedup": self._speedup,
            "speedup-kept": self._speedup_kept,
            "closed-form": self._closed_form,
            "overhead": self._overhead,
            "tree-overhead": self._tree_overhead,
        }
        label = _label(row)
        for quantity, unit, predicted, published in kinds[row["kind"]](row):
            yield Comparison(
                quantity=quantity, label=label, use=row["use"], unit=unit, predicted=predicted, published=published
            )

    def _pass_s(
        self, row: Mapping[str, Any], width: float = 1, batch: float | None = None, *, drafted: bool = False
    ) -> float:
        """A target pass and the host time that comes with it, in a plain or a drafted step."""
        on, b = self._on(row), row["batch"] if batch is None else batch
        host = host_time(on, b, drafted=drafted)
        return float(pass_time(on, self._shape(row), b, width, row["context"]).total_s + host)

    def _draft_s(self, row: Mapping[str, Any], kappa: int, batch: float | None = None) -> float:
        on, b = self._on(row), row["batch"] if batch is None else batch
        own_head = "head_of" not in self._shapes[row["draft"]]
        context = row.get("draft_context", row["context"])
        return float(model_draft_s(on, self._shape(row, "draft"), b, kappa, context, own_head=own_head))

    def _step(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
        yield "decode latency" if row["batch"] == 1 else "plain step", "s", self._pass_s(row), row["published_s"]

    def _pass(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
        on = self._on(row)
        predicted = float(pass_time(on, self._shape(row), row["batch"], row["width"], row["context"]).total_s)
        yield "forward pass", "s", predicted, row["published_s"]

    def _draft_step(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
        kappa = row["kappa"]
        step = self._pass_s(row, kappa + 1, drafted=True) + self._draft_s(row, kappa)
        yield "drafted step", "s", step, row["published_s"]

    def _speculation(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
        kappa = row["kappa"]
        plain, verify, draft = self._pass_s(row), self._pass_s(row, kappa + 1), self._draft_s(row, kappa)
        yield "plain pass", "s", plain, row["plain_s"]
        yield "verify pass", "s", verify, row["verify_s"]
        yield "draft time", "s", draft, row["draft_s"]
        step = draft + self._pass_s(row, kappa + 1, drafted=True)
        yield "speedup", "", row["emitted"] * plain / step, row["speedup"]

    def _draft_cost(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
        # Marginal cost of one more drafted token, which is what publishers measure.
        one_more = self._draft_s(row, 3) - self._draft_s(row, 2)
        yield "draft cost c", "", one_more / self._pass_s(row), row["published"]
        bound = replace(self._on(row), layer="roofline")
        draft = pass_time(bound, self._shape(row, "draft"), row["batch"], 1, row["draft_context"]).total_s
        target = pass_time(bound, self._shape(row), row["batch"], 1, row["context"]).total_s
        yield "c from the bound alone", "", float(draft / target), row["published"]

    def _gain(self, row: Mapping[str, Any], batch: int) -> float:
        kappa = row["kappa"]
        step = self._pass_s(row, kappa + 1, batch, drafted=True)
        if row["draft"] is None:
            step += float(host_ngram_s(batch, row["context"]))
        else:
            step += self._draft_s(row, kappa, batch)
        return float(row["emitted"]) * self._pass_s(row, 1, batch) / step

    def _speedup(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
        yield "speedup", "", self._gain(row, row["batch"]), row["published"]

    def _speedup_kept(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
        kept = self._gain(row, row["batch_to"]) / self._gain(row, row["batch"])
        yield "speedup kept", "", kept, row["published"]

    def _moe_peak(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
        batches = np.arange(1, 513)
        on = self._on(row)
        plain = pass_time(on, self._shape(row), batches, 1, row["context"]).total_s + host_time(on, batches)
        batch = int(batches[np.argmin(np.abs(plain - row["plain_s"]))])
        step = self._pass_s(row, row["kappa"] + 1, batch, drafted=True) + self._draft_s(row, row["kappa"], batch)
        yield "verified step of experts", "", step / self._pass_s(row, 1, batch), row["published"]

    @staticmethod
    def _closed_form(row: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
        closed = float(speedup(row["alpha"], row["kappa"], row["c"]))
        yield "speedup, closed form", "", closed, row["published"]
        if "measured" in row:
            yield "closed form and measured", "", closed, row["measured"]

    def _overhead(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
        plain = self._pass_s(row)
        step = self._pass_s(row, row["kappa"] + 1, drafted=True)
        if row["draft"] is not None:
            step += self._draft_s(row, row["kappa"])
        else:
            step += float(host_ngram_s(row["batch"], row["context"]))
        yield "step over plain step", "", step / plain, row["published"]

    def _tree_overhead(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str, float, float]]:
        plain = self._pass_s(row)
        step = self._pass_s(row, row["nodes"], drafted=True) + self._draft_s(row, row["depth"])
        yield "step over plain step", "", step / plain, row["published"]


def _label(row: Mapping[str, Any]) -> str:
    """What the row is about, in the words of its own fields."""
    if row["kind"] == "closed-form":
        parts = (
            row["task"],
            row.get("draft_name"),
            f"alpha {row['alpha']:g}",
            f"kappa {row['kappa']}",
            f"c {row['c']:g}",
        )
        return " ".join(p for p in parts if p)
    target = " ".join(p for p in (row["model"], row.get("quantization")) if p)
    names = target + (f" + {row['draft']}" if row.get("draft") else "")
    where = f"{row['tp']} x {row['gpu']}, {row['engine']}"
    numbers = [
        f"{short} {row[name]}"
        for name, short in (
            ("batch", "B"),
            ("width", "w"),
            ("context", "T"),
            ("kappa", "k"),
            ("nodes", "nodes"),
            ("depth", "depth"),
            ("dataset", ""),
        )
        if name in row
    ]
    return f"{names}, {where}, {' '.join(numbers)}"
