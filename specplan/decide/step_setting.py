"""Where steps of several sources are timed: target, machine, memory and measured tables, and what follows from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.decide.cost import DEFAULT_UTILIZATION, DEFAULT_WORKSPACE
from specplan.decide.step_source import Loads, StepSource, StepTime, most_kappa, step_time
from specplan.formulas import kv_cache, parameters
from specplan.timing.measured_steps import MeasuredTable
from specplan.timing.step_time import Machine
from specplan.values.formats import NumberFormat
from specplan.values.model import Model

MAX_KAPPA: Final = 8
"""Longest draft that is tried where a source does not fix one."""

MAX_BATCH: Final = 1024
"""Largest batch in which a crossover is sought; vLLM's default of ``max_num_seqs`` on large cards."""

BANDS: Final[Mapping[str, float]] = {"own": 0.10, "borrowed": 0.15, "assumed": 0.25}
"""Relative error of a modelled speedup: twice the median that `specplan validate` shows for composed speedups (about
4%) rounded up, where the card itself was measured; wider where its constants are borrowed or assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Inputs of a comparison beside the sources."""

    target: Model
    on: Machine
    kv_format: NumberFormat | None = None
    max_kappa: int = MAX_KAPPA
    gpu_memory_utilization: float = DEFAULT_UTILIZATION
    workspace_bytes: float = DEFAULT_WORKSPACE
    price_per_hour: float | None = None
    tables: Mapping[str, MeasuredTable] | None = None

    def table(self, name: str) -> MeasuredTable | None:
        """Measured table of the target (its name) or of a source's draft (the source's name)."""
        return None if self.tables is None else self.tables.get(name)


def error_band(on: Machine, tables: Mapping[str, MeasuredTable] | None = None) -> float | None:
    """Relative error to expect of a speedup; None for the bound, which has no error but a direction.

    >>> from specplan.timing.step_time import machine
    >>> from specplan.specs.hardware import load_accelerator
    >>> error_band(machine(load_accelerator("h100-sxm"))), error_band(machine(load_accelerator("mi355x")))
    (0.1, 0.25)
    """
    if on.layer == "bound":
        return None
    if on.layer == "measured":
        return max((t.worst_residual for t in (tables or {}).values()), default=0.0)
    own = on.accelerator.calibration
    if own is None:
        return BANDS["assumed"]
    return BANDS["own"] if own.card == on.accelerator.name else BANDS["borrowed"]


def times(
    setting: Setting, source: StepSource, of: Loads, batch: npt.ArrayLike, context_len: npt.ArrayLike, k: npt.ArrayLike
) -> StepTime:
    """`step_time` with the setting's machine and tables."""
    return step_time(
        setting.on,
        source,
        of,
        batch,
        context_len,
        k,
        target_table=setting.table(setting.target.name),
        draft_table=setting.table(source.name),
    )


def best_kappa(
    setting: Setting, source: StepSource, of: Loads, batch: npt.ArrayLike, context_len: npt.ArrayLike
) -> npt.NDArray[np.int64]:
    """Draft length with the least time per token at each batch; the source's own where it fixes one."""
    b = np.atleast_1d(np.asarray(batch, np.float64))
    longest = most_kappa(source, setting.max_kappa)
    if source.kind == "none" or source.kappa is not None:
        return np.full(b.shape, longest, np.int64)
    ks = np.arange(1, longest + 1)
    found = times(setting, source, of, b[:, None], context_len, ks[None, :])
    return np.asarray(ks[np.argmin(found.per_token_s, axis=1)], np.int64)


def device_bytes(setting: Setting, source: StepSource, context_len: int) -> float:
    """Bytes on each rank that a source takes from the pool beside its weights and cache.

    vLLM's n-gram of the default runner keeps the ids of all slots on the card, 4 bytes each.
    """
    on_card = source.kind in ("ngram", "ngram-gpu") and setting.on.engine.draft_order == "vllm"
    return 4.0 * MAX_BATCH * context_len if on_card else 0.0


def sequences_left(setting: Setting, source: StepSource, context_len: int) -> int:
    """Whole requests of `context_len` tokens whose cache fits beside target, draft and workspace.

    A drafting request also owns the slots of its verified and, for models, of its looked-ahead positions, and a
    recurrent state per drafted token.
    """
    card, tp = setting.on.accelerator, setting.on.tp
    memory = card.memory_torch_bytes or card.memory_driver_bytes or 0.0
    models = [setting.target, *([source.model] if source.model is not None else [])]
    pool = (
        memory * setting.gpu_memory_utilization
        - sum(parameters.resident_bytes(m, tp) for m in models)
        - setting.workspace_bytes
        - device_bytes(setting, source, context_len)
    )
    kappa = most_kappa(source, setting.max_kappa)
    slots = 1 + kappa + (kappa if source.is_model else 0)
    per_sequence = sum(float(kv_cache.kv_bytes_stored(m, context_len + slots, setting.kv_format, tp)) for m in models)
    per_sequence += kappa * float(kv_cache.kv_bytes_stored(setting.target, 0, setting.kv_format, tp))
    return int(kv_cache.pool_sequences(pool, per_sequence))
