"""What the answers of all questions share: a short repr, tables for terminals and notebooks, and the JSON document."""

import functools
import inspect
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

from specplan.formulas.requantize import requantized
from specplan.report import json_document
from specplan.report.console import Console
from specplan.specs.catalog import load_target
from specplan.specs.hardware import load_accelerator
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import Source

P = ParamSpec("P")
A = TypeVar("A", bound="Answer")


class Answer:
    """An answer as text, table, mapping and JSON; subclasses add the frozen figures and the question's `asked`."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]  # every answer is a dataclass
    asked: Mapping[str, Any]

    @classmethod
    def of(cls, report: Any) -> Self:
        """The answer with the figures of a report of its kind."""
        return cls(**{f.name: getattr(report, f.name) for f in fields(report)})

    def document(self) -> dict[str, Any]:
        """The figures as a document, in base units."""
        raise NotImplementedError

    def show(self, console: Console) -> None:
        """Print the tables that the command prints."""
        raise NotImplementedError

    def headline(self) -> str:
        """The answer in a few words."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The document that ``--json`` prints, with every input that reproduces it."""
        document = self.document()
        inputs = dict(document.get("inputs", {}))
        document["inputs"] = inputs | {key: value for key, value in self.asked.items() if key not in inputs}
        whole: dict[str, Any] = json_document.plain({"schema_version": json_document.SCHEMA_VERSION, **document})
        return whole

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def __str__(self) -> str:
        return self._shown("table")

    def _repr_html_(self) -> str:
        return self._shown("html")

    def _shown(self, form: str) -> str:
        out = io.StringIO()
        self.show(Console(file=out, columns=132, form=form))
        return out.getvalue().rstrip("\n")


def question(ask: Callable[P, A]) -> Callable[P, A]:
    """A question whose answer remembers all arguments, defaults included, under the names that they have here."""
    signature = inspect.signature(ask)

    @functools.wraps(ask)
    def asking(*args: P.args, **kwargs: P.kwargs) -> A:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        asked = {name: told(value) for name, value in given.arguments.items() if name != "progress"}
        answer = ask(*args, **kwargs)
        return replace(answer, asked=asked)

    return asking


def told(value: Any) -> Any:
    """An argument as a document states it: what has a name by its name.

    >>> told((Path("a.json"), 3))
    ['a.json', 3]
    """
    if isinstance(value, Model | Accelerator):
        return value.name
    if isinstance(value, Source):
        return value.text or value.name
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [told(v) for v in value]
    return value


def model_of(model: str | Path | Model, quantization: str | None = None) -> Model:
    """A model, by name or path where it is not one yet, its linear weights in another format where one is named."""
    if not isinstance(model, Model):
        return load_target(model, quantization)
    return model if quantization is None else requantized(model, quantization)


def accelerator_of(accelerator: str | Path | Accelerator) -> Accelerator:
    """A card, by name or path where it is not one yet."""
    return accelerator if isinstance(accelerator, Accelerator) else load_accelerator(accelerator)


def several(value: Any) -> list[Any]:
    """One thing, or each of a sequence of them.

    >>> several("ngram"), several([1, 8])
    (['ngram'], [1, 8])
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(value)
    return [value]
