"""Step time on a card under an engine, in three layers that a user chooses and always sees named.

- ``bound``: the roofline of peaks; a machine can only be slower. Nothing is measured.
- ``modelled``: the additive law of `specplan.formulas.step` with what was measured on the card (or on a card of its
  family, or assumed; the notes say which) and what the engine adds: launches, host time, its own all-reduce.
- ``measured``: a table of step times that the user or ``specplan calibrate`` brings, smoothed by the same law.

Constants were fitted on some published tables and are tested on others; `specplan.plan.validate` names both.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from specplan.errors import InputError
from specplan.formulas.step import PassLoad, PassRates, PassShape, PassTerms, bound_s, pass_load, pass_terms
from specplan.values.hardware import Accelerator, Calibration
from specplan.values.model import Model

FloatArray = npt.NDArray[np.float64]

LAYERS: Final = ("bound", "modelled", "measured")

ASSUMED: Final = Calibration(
    card="none",
    date="2026-11",
    source="assumed: middle of the calibrated cards",
    bandwidth_fraction=0.80,
    kv_bandwidth_fraction=0.85,
    matmul_fraction=0.60,
    launch_s=30e-6,
    collective_latency_s=10e-6,
    ring_latency_s=25e-6,
    link_fraction=0.30,
    host_s=1.2e-3,
)
"""What stands in where neither the card nor its family was measured."""

WIDTH_FRACTION: Final = ((5.0, 0.74), (8.0, 0.87))
"""Share of the 16-bit bandwidth that weight-only kernels reach, by payload bits: unpacking costs time.

Fitted on gpt-fast, Llama-2-7B int8 and int4 on an A100. Formats that the card multiplies natively are exempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How an engine runs passes: what it adds to bytes and arithmetic.

    Attributes
    ----------
    name, version : str
        What the figures describe.
    launch_factor, draft_launch_factor : float
        Launches per layer relative to a card's `Calibration.launch_s`, for target passes and for draft passes (which
        run with partial graphs or none).
    draft_pass_s : float
        Time per draft pass outside its layers: sampling its token and preparing the next pass.
    host_s : float or None
        Time per step outside all passes; None takes the card's calibration.
    host_request_s : float
        What each request adds to it.
    speculation_s : float
        What a drafted step adds outside all passes: rejection, hand-over between proposer and verifier.
    native : tuple of str
        Quantised formats that it multiplies natively where the card can; others are unpacked to 16 bits.
    layer_request_factor : float
        What each request adds to a layer of 4096 hidden numbers, relative to ``launch_s`` (copies and appends of rows
        that are not fused into one kernel; in proportion to the width of the hidden state).
    ring : bool
        All-reduce by the vendor's library instead of an own kernel.
    eager_layer_s, draft_eager_layer_s : float
        Host time to launch one layer where no graph records it; a pass is never shorter than its launching.
    draft_order : str
        ``vllm``: k passes, the first over the whole verified width; ``sglang``: k - 1 passes and one extension over the
        verified width after the verification; ``chain``: k passes of one position.
    source : str
        Where the figures come from.
    """

    name: str
    version: str
    source: str
    launch_factor: float = 1.0
    draft_launch_factor: float = 1.0
    draft_pass_s: float = 0.0
    host_s: float | None = None
    host_request_s: float = 0.0
    speculation_s: float = 0.0
    native: tuple[str, ...] = ("fp8", "int8", "nvfp4", "mxfp4")
    layer_request_factor: float = 0.0
    ring: bool = False
    eager_layer_s: float = 0.0
    draft_eager_layer_s: float = 0.0
    draft_order: str = "vllm"


ENGINES: Final[Mapping[str, Engine]] = {
    e.name: e
    for e in (
        Engine(
            name="vllm",
            version="0.32",
            draft_launch_factor=2.4,
            draft_pass_s=0.022e-3,
            host_request_s=18e-6,
            source="host and launches: arXiv 2601.11580, vLLM 0.10.1; draft passes: vLLM's example table of times by k",
        ),
        Engine(
            name="sglang",
            version="0.5.23",
            draft_launch_factor=1.0,
            draft_pass_s=0.05e-3,
            host_s=0.28e-3,
            host_request_s=18e-6,
            draft_order="sglang",
            source="host: SGLang documentation, Llama-3.1-8B on one H100 at 158.3 tokens/s; draft passes run in graphs",
        ),
        Engine(
            name="gpt-fast",
            draft_order="chain",
            native=(),
            version="0f925b5d",
            launch_factor=1.36,
            draft_launch_factor=1.36,
            host_s=0.0,
            source="gpt-fast README, Llama-2-7B on A100",
        ),
        Engine(
            name="magicdec",
            draft_order="chain",
            version="2408.11049",
            launch_factor=2.09,
            draft_launch_factor=2.09,
            host_s=0.0,
            layer_request_factor=0.0098,
            speculation_s=0.7e-3,
            ring=True,
            source="MagicDec Tables 3 (Llama-2-7B) and 7",
        ),
        Engine(
            name="transformers",
            draft_order="chain",
            version="eager",
            host_s=0.0,
            ring=True,
            speculation_s=2.07e-3,
            native=(),
            eager_layer_s=0.756e-3,
            draft_eager_layer_s=0.756e-3,
            source="Sequoia, Llama-2-7B on an A100 PCIe at 24.2 ms a token",
        ),
        Engine(
            name="transformers-graphs-draft",
            draft_order="chain",
            version="eager target, recorded draft",
            host_s=0.0,
            ring=True,
            speculation_s=2.07e-3,
            native=(),
            eager_layer_s=0.756e-3,
            source="Sequoia: the target as transformers, drafts from recorded graphs",
        ),
        Engine(
            name="vllm-v0",
            version="0.8 and before",
            draft_launch_factor=2.4,
            draft_pass_s=0.022e-3,
            host_request_s=18e-6,
            speculation_s=8.0e-3,
            source="as vllm; what a drafted step adds: MoESD, Mixtral with EAGLE on HumanEval at temperature 0",
        ),
        Engine(
            name="serving",
            draft_order="chain",
            version="generic",
            draft_pass_s=1.2e-3,
            source="assumed: every pass returns to the host, which takes as long as vLLM's step",
        ),
        Engine(
            name="vllm-cpu",
            version="0.32",
            host_s=0.0,
            source="vLLM 0.32 on one core: all but the kernels is inside the fitted launches",
        ),
    )
}
"""Engines that can be timed, by name."""


def engine_named(name: str) -> Engine:
    """Engine by name.

    >>> engine_named("vllm").version
    '0.32'
    """
    found = ENGINES.get(name)
    if found is None:
        raise InputError(f"unknown engine {name!r}; one of {', '.join(ENGINES)}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTable:
    """Measured times of one model's passes, smoothed: coefficients of 1, positions, requests and cached tokens.

    Attributes
    ----------
    fixed_s, per_token_s, per_request_s, per_cached_token_s : float
        None below 0, so that time rises with every input.
    worst_residual : float
        Largest relative miss of the smoothing on its own rows.
    source : str
        File and how many rows.
    """

    fixed_s: float
    per_token_s: float
    per_request_s: float
    per_cached_token_s: float
    worst_residual: float
    source: str

    def time_s(self, batch: npt.ArrayLike, width: npt.ArrayLike, context_len: npt.ArrayLike) -> FloatArray:
        """Time of a pass, seconds."""
        b, w, t = (np.asarray(x, np.float64) for x in (batch, width, context_len))
        return np.asarray(
            self.fixed_s + self.per_token_s * b * w + self.per_request_s * b + self.per_cached_token_s * b * t
        )


def measured_table(rows: Sequence[tuple[float, float, float, float]], source: str) -> MeasuredTable:
    """Smooth measured rows (batch, width, context, seconds) by the additive law, each row weighing its relative miss.

    Raises
    ------
    InputError
        Without rows, or with a time that is not above 0.

    Examples
    --------
    >>> table = measured_table([(1, 1, 0, 0.010), (1, 3, 0, 0.012), (8, 1, 1000, 0.025)], "example")
    >>> round(float(table.time_s(1, 2, 0)), 4)
    0.011
    """
    if not rows:
        raise InputError(f"{source}: a table of step times needs at least one row of batch, width, context and seconds")
    data = np.asarray(rows, np.float64)
    if data.ndim != 2 or data.shape[1] != 4 or not np.all(np.isfinite(data)) or np.any(data[:, 3] <= 0):
        raise InputError(f"{source}: rows are batch, width, context and a time above 0 in seconds")
    b, w, t, seconds = data.T
    features = np.stack([np.ones_like(b), b * w, b, b * t], axis=1) / seconds[:, None]
    scale = np.maximum(features.max(axis=0), 1e-300)
    coefficients = nnls(features / scale, np.ones_like(b))[0] / scale
    predicted = (features @ coefficients) - 1
    return MeasuredTable(
        fixed_s=float(coefficients[0]),
        per_token_s=float(coefficients[1]),
        per_request_s=float(coefficients[2]),
        per_cached_token_s=float(coefficients[3]),
        worst_residual=float(np.abs(predicted).max()),
        source=f"{source} ({len(data)} rows)",
    )


def load_measured_table(path: Path) -> MeasuredTable:
    """Measured table from a JSON document with ``rows``, each with batch, width, context and seconds.

    ``step_s`` and ``seconds`` name the time; a missing width is 1, a missing context 0.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
        raw = document["rows"] if isinstance(document, dict) else document
        rows = [
            (
                float(r["batch"]),
                float(r.get("width", 1)),
                float(r.get("context", 0)),
                float(r["seconds"] if "seconds" in r else r["step_s"]),
            )
            for r in raw
        ]
    except FileNotFoundError:
        raise InputError(f"no table of step times at {path}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: not a JSON table of step times: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        shape = '{"rows": [{"batch": 8, "width": 4, "context": 2048, "seconds": 0.012}, ...]}'
        raise InputError(f"{path}: expected {shape}: {error!r}") from None
    return measured_table(rows, str(path))


def arithmetic_flops(
    model: Model, accelerator: Accelerator, native: tuple[str, ...] = ("fp8", "int8", "nvfp4", "mxfp4")
) -> tuple[float, str]:
    """Peak rate at which the card multiplies the model's weights, and the format: weight-only ones in 16 bits.

    Raises
    ------
    InputError
        When the profile has no rate that fits.
    """
    stored = (model.quantization or model.weight_format).name
    for name in native:
        if stored.startswith(name) and name in accelerator.flops:
            return accelerator.flops[name], name
    for name in (model.weight_format.name, "bfloat16", "float16", "float32"):
        if name in accelerator.flops:
            return accelerator.flops[name], name
    raise InputError(f"{accelerator.name}: the profile has no matmul rate for {model.weight_format.name} weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A card under an engine with some ranks: everything that passes of any model have in common.

    Attributes
    ----------
    accelerator, engine, tp
        What runs.
    layer : str
        ``bound``, ``modelled`` or ``measured``; ``upper`` is the other end of the bound (`other_bound`).
    calibration : Calibration
        The card's, with what it lacks filled from `ASSUMED`.
    notes : tuple of str
        What was borrowed or assumed.
    """

    accelerator: Accelerator
    engine: Engine
    tp: int
    layer: str
    calibration: Calibration
    notes: tuple[str, ...]

    @property
    def host_s(self) -> float:
        """Time per step outside all passes; 0 in the bound."""
        if self.layer != "modelled":
            return 0.0
        engine = self.engine.host_s
        return engine if engine is not None else (self.calibration.host_s or 0.0)


def machine(accelerator: Accelerator, engine: str = "vllm", tp: int = 1, layer: str = "modelled") -> Machine:
    """Resolve what is measured, borrowed and assumed for `accelerator`.

    Parameters
    ----------
    accelerator : Accelerator
    engine : str
        A name in `ENGINES`.
    tp : int
        Tensor-parallel ranks, at least 1.
    layer : str
        One of `LAYERS`.
    """
    if tp < 1:
        raise InputError(f"--tensor-parallel-size {tp}: must be at least 1")
    if layer not in LAYERS:
        raise InputError(f"unknown layer {layer!r}; one of {', '.join(LAYERS)}")
    found = accelerator.calibration
    notes: list[str] = []
    if found is None:
        notes.append(f"{accelerator.name} and its family ({accelerator.family}) have no calibration: {ASSUMED.source}")
        found = ASSUMED
    elif found.card != accelerator.name:
        notes.append(f"calibration of {accelerator.name} is borrowed from {found.card} (family {accelerator.family})")
    missing = [name for name in _CALIBRATED if getattr(found, name) is None]
    needed = [
        name for name in missing if tp > 1 or name not in ("collective_latency_s", "ring_latency_s", "link_fraction")
    ]
    if needed:
        notes.append(f"not measured on {found.card}, assumed: {', '.join(needed)}")
    filled = replace(found, **{name: getattr(ASSUMED, name) for name in missing})
    if tp > 1 and accelerator.link_bandwidth is None:
        notes.append(f"{accelerator.name} has no direct links: ranks exchange over PCIe")
    return Machine(
        accelerator=accelerator,
        engine=engine_named(engine),
        tp=tp,
        layer=layer,
        calibration=filled,
        notes=tuple(notes) if layer == "modelled" else (),
    )


def other_bound(on: Machine) -> Machine:
    """The machine whose bound is the sum of its peaks' times instead of the largest."""
    return replace(on, layer="upper")


_CALIBRATED: Final = (
    "bandwidth_fraction",
    "kv_bandwidth_fraction",
    "matmul_fraction",
    "launch_s",
    "collective_latency_s",
    "ring_latency_s",
    "link_fraction",
    "host_s",
)


def link_bandwidth(accelerator: Accelerator) -> float | None:
    """Bytes/s between ranks in one direction: direct links, else PCIe, else unknown."""
    return accelerator.link_bandwidth or accelerator.pcie_bandwidth


def pass_rates(on: Machine, model: Model, *, draft: bool = False) -> PassRates:
    """Rates of the additive law for passes of `model` on a machine."""
    c, card = on.calibration, on.accelerator
    flops, arithmetic = arithmetic_flops(model, card, on.engine.native)
    launch = c.launch_s or 0.0
    own_kernel = not on.engine.ring and card.link_bandwidth is not None
    # The vendor's library passes a message around; its latency grows with the steps of a tree over the ranks.
    ring = (c.ring_latency_s or 0.0) * np.log2(max(on.tp, 2)) / 3
    return PassRates(
        bandwidth=card.bandwidth,
        flops=flops,
        link_bandwidth=link_bandwidth(card),
        weight_fraction=c.bandwidth_fraction or 1.0,
        kv_fraction=c.kv_bandwidth_fraction or 1.0,
        matmul_fraction=c.matmul_fraction or 1.0,
        link_fraction=c.link_fraction or 1.0,
        # Numbers of 4 bits are unpacked and scaled even where the card multiplies them.
        width_fraction=WIDTH_FRACTION[:1] if arithmetic in ("fp8", "int8") else WIDTH_FRACTION,
        layer_s=launch * (on.engine.draft_launch_factor if draft else on.engine.launch_factor),
        layer_request_s=launch * on.engine.layer_request_factor * model.hidden_size / 4096,
        overlap=card.family != "cpu",
        reduce_latency_s=(c.collective_latency_s or 0.0) if own_kernel else float(ring),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """Time of passes in the chosen layer, with the roofline bounds beside it; arrays over the passes, seconds."""

    layer: str
    total_s: FloatArray
    lower_s: FloatArray
    upper_s: FloatArray
    terms: PassTerms


def pass_time(
    on: Machine,
    shape: PassShape,
    batch: npt.ArrayLike,
    width: npt.ArrayLike = 1,
    context_len: npt.ArrayLike = 0,
    *,
    scored: npt.ArrayLike | None = None,
    draft: bool = False,
    table: MeasuredTable | None = None,
) -> PassTime:
    """Time of a forward pass of `width` positions for each of `batch` requests, host time between passes aside.

    Parameters
    ----------
    on : Machine
    shape : PassShape
        Of the model, for the machine's ranks.
    batch, width, context_len, scored : array_like
        As in `specplan.formulas.step.pass_load`.
    draft : bool
        Whether the engine runs it as a draft pass.
    table : MeasuredTable, optional
        Needed in the ``measured`` layer.

    Raises
    ------
    InputError
        For a shape counted for other ranks, or ``measured`` without a table.
    """
    if shape.tp != on.tp:
        raise InputError(f"the model was counted for {shape.tp} ranks, the machine has {on.tp}")
    load: PassLoad = pass_load(shape, batch, width, context_len, scored)
    rates = pass_rates(on, shape.model, draft=draft)
    lower, upper = bound_s(load, rates.bandwidth, rates.flops, rates.link_bandwidth)
    terms = pass_terms(load, rates)
    match on.layer:
        case "bound":
            total = lower
        case "upper":
            total = upper
        case "modelled":
            eager = on.engine.draft_eager_layer_s if draft else on.engine.eager_layer_s
            total = np.maximum(terms.total_s, shape.layers * eager)
        case _:
            if table is None:
                raise InputError(f"the measured layer needs a table of step times of {shape.model.name}")
            total = np.broadcast_to(table.time_s(batch, width, context_len), lower.shape)
    return PassTime(layer=on.layer, total_s=np.asarray(total), lower_s=lower, upper_s=upper, terms=terms)


def host_time(on: Machine, batch: npt.ArrayLike, *, drafted: bool = False) -> FloatArray:
    """Time per step outside all passes, seconds; 0 outside the modelled layer (a measured table contains it)."""
    b = np.asarray(batch, np.float64)
    if on.layer != "modelled":
        return np.zeros_like(b)
    return on.host_s + on.engine.host_request_s * b + (on.engine.speculation_s if drafted else 0.0)
