"""specplan: whether to speculate, with what, how far, and at what price.

Each command is one call that takes names, paths or objects and returns a frozen answer with a table, a document
(`to_dict`) and, where there is one, a picture (`plot`).

>>> import specplan
>>> specplan.cost("llama3-70b", "h100-sxm", draft="llama3.2-1b", tp=4, alpha=0.7)
<Cost: llama3-70b with llama3.2-1b, 4 x h100-sxm, kappa 3, c 0.01778, alpha_break_even 0.05065, speedup 2.405>
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from specplan.api.blocks import blocks as blocks
    from specplan.api.capacity import capacity as capacity
    from specplan.api.compare import compare as compare
    from specplan.api.cost import cost as cost
    from specplan.api.plane import plane as plane
    from specplan.api.schedule import schedule as schedule
    from specplan.api.simulate import simulate as simulate
    from specplan.api.tie import tie as tie
    from specplan.api.tune import tune as tune
    from specplan.errors import SpecplanError as SpecplanError
    from specplan.propose.spelling import read_source as read_source
    from specplan.specs.catalog import load_model as load_model
    from specplan.specs.hardware import load_accelerator as load_accelerator

__version__ = "0.1.0"

_HOME: Final = {
    **{
        name: f"api.{name}"
        for name in ("blocks", "capacity", "compare", "cost", "plane", "schedule", "simulate", "tie", "tune")
    },
    "SpecplanError": "errors",
    "load_accelerator": "specs.hardware",
    "load_model": "specs.catalog",
    "read_source": "propose.spelling",
}
"""Where each public name lives; nothing of it is imported before it is asked for."""

__all__ = ["SpecplanError", "__version__", "blocks", "capacity", "compare", "cost", "load_accelerator", "load_model",
           "plane", "read_source", "schedule", "simulate", "tie", "tune"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'specplan' has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"specplan.{_HOME[name]}"), name)
    if name != "SpecplanError":
        from specplan.api.words import saying_arguments

        found = saying_arguments(found)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
