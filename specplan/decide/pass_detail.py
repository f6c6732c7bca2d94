"""A pass kernel by kernel: how many of each, how long, and the share of it that the roofline explains."""

from dataclasses import dataclass

import numpy as np

from specplan.errors import InputError
from specplan.formulas.pass_kernels import floors
from specplan.formulas.step import pass_shape
from specplan.timing.step_time import machine, pass_time
from specplan.values.formats import NumberFormat
from specplan.values.hardware import Accelerator
from specplan.values.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """All kernels of one name in a pass; seconds, and the least that the card's peaks allow."""

    name: str
    count: int
    seconds: float
    floor_s: float


def pass_detail(
    target: Model,
    accelerator: Accelerator,
    *,
    engine: str = "vllm",
    tp: int = 1,
    batch: int = 1,
    width: int = 1,
    context_len: int = 0,
    kv_format: NumberFormat | None = None,
) -> tuple[KernelRow, ...]:
    """Kernels of a pass of `width` positions for each of `batch` requests, the longest first.

    Raises
    ------
    InputError
        Where nobody measured the card's kernels under such an engine.

    Examples
    --------
    >>> from specplan.specs.catalog import load_model
    >>> from specplan.specs.hardware import load_accelerator
    >>> rows = pass_detail(load_model("llama3.1-8b"), load_accelerator("h100-sxm"), context_len=1000)
    >>> rows[0].name, rows[0].count, round(rows[0].floor_s / rows[0].seconds, 2)
    ('gate-up', 32, 0.86)
    """
    on = machine(accelerator, engine, tp)
    found = pass_time(on, pass_shape(target, tp, kv_format), batch, width, context_len).kernels
    if not found:
        raise InputError(
            f"--detail: {accelerator.name} under {on.engine.name} is timed by the additive law, not kernel by kernel"
        )
    rows = [
        KernelRow(name=name, count=round(n), seconds=float(np.max(seconds)), floor_s=float(np.max(floor)))
        for name, (n, seconds, floor) in floors(found).items()
    ]
    return tuple(sorted(rows, key=lambda r: -r.seconds))
