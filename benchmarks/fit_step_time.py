"""Refit the constants of the step-time model on the published rows marked ``fit``, and show them beside those in use.

The rows marked ``test`` are never read by the fit; their medians are printed for both sets of constants.
A constant that differs from the shipped one by more than rounding means that tables, law or constants have drifted
apart. Constants that the rows cannot tell apart are held: the streaming fraction of the H100 (0.88, so that launches
take the rest of the fixed part), the launches of gpt-fast (1.36 of vLLM's) and of vLLM's draft passes (2.4).

Prints one table and, as its last line, one JSON document. Takes about ten minutes:
five hundred replays of more than a second each.
"""

import json
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from specplan.evidence.validate import TableReport, validate
from specplan.specs.hardware import list_accelerators
from specplan.timing import step_time
from specplan.timing.timed_engine import ENGINES, Engine
from specplan.values.hardware import Accelerator

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Constant:
    """One fitted number: a field of a family's calibration (by its card), of an engine, or a width factor."""

    owner: str
    field: str
    low: float
    high: float


FITTED = (
    Constant("h100-sxm", "kv_bandwidth_fraction", 0.7, 1),
    Constant("h100-sxm", "matmul_fraction", 0.55, 0.65),
    Constant("h100-sxm", "launch_s", 22e-6, 28e-6),
    Constant("h100-sxm", "ring_latency_s", 3e-6, 60e-6),
    Constant("h100-sxm", "link_fraction", 0.05, 0.95),
    Constant("h100-sxm", "host_s", 0.5e-3, 2e-3),
    Constant("a100-sxm-80gb", "bandwidth_fraction", 0.6, 0.95),
    Constant("a100-sxm-80gb", "kv_bandwidth_fraction", 0.7, 1),
    Constant("a100-sxm-80gb", "matmul_fraction", 0.55, 0.65),
    Constant("a100-sxm-80gb", "launch_s", 5e-6, 100e-6),
    Constant("a100-sxm-80gb", "collective_latency_s", 1e-6, 30e-6),
    Constant("a100-sxm-80gb", "ring_latency_s", 3e-6, 90e-6),
    Constant("a100-sxm-80gb", "link_fraction", 0.05, 0.95),
    Constant("l40", "kv_bandwidth_fraction", 0.6, 1),
    Constant("l40", "ring_latency_s", 5e-6, 300e-6),
    Constant("l40", "link_fraction", 0.1, 0.95),
    Constant("mi250x-gcd", "bandwidth_fraction", 0.4, 0.95),
    Constant("mi300x", "collective_latency_s", 2e-6, 60e-6),
    Constant("tpu-v4", "launch_s", 2e-6, 100e-6),
    Constant("cpu", "bandwidth_fraction", 0.4, 1),
    Constant("cpu", "matmul_fraction", 0.2, 1),
    Constant("magicdec", "launch_factor", 1, 4),
    Constant("magicdec", "layer_request_factor", 0, 0.03),
    Constant("vllm", "draft_pass_s", 0, 0.5e-3),
    Constant("vllm", "host_request_s", 0, 50e-6),
    Constant("sglang", "host_s", 0, 2e-3),
    Constant("vllm-v0", "speculation_s", 0, 20e-3),
    Constant("transformers", "speculation_s", 0, 20e-3),
    Constant("transformers", "eager_layer_s", 0.3e-3, 1.2e-3),
    Constant("4 bits", "width_fraction", 0.5, 1),
    Constant("8 bits", "width_fraction", 0.5, 1),
)

CARDS = {card.name: card for card in list_accelerators()}
BITS = {"4 bits": 0, "8 bits": 1}


def shipped(constant: Constant) -> float:
    """The value in use."""
    if constant.owner in BITS:
        return step_time.WIDTH_FRACTION[BITS[constant.owner]][1]
    if constant.owner in ENGINES:
        return float(getattr(ENGINES[constant.owner], constant.field))
    return float(getattr(CARDS[constant.owner].calibration, constant.field))


def engines(values: dict[Constant, float]) -> dict[str, Engine]:
    """Engines with fitted fields; what two engines share follows."""
    made = dict(ENGINES)
    for c, value in values.items():
        if c.owner in made:
            made[c.owner] = replace(made[c.owner], **{c.field: value})
    slow, vllm = made["transformers"], made["vllm"]
    made["magicdec"] = replace(made["magicdec"], draft_launch_factor=made["magicdec"].launch_factor)
    made["transformers-graphs-draft"] = replace(
        made["transformers-graphs-draft"], eager_layer_s=slow.eager_layer_s, speculation_s=slow.speculation_s
    )
    made["vllm-v0"] = replace(made["vllm-v0"], draft_pass_s=vllm.draft_pass_s, host_request_s=vllm.host_request_s)
    return made


def replay(values: dict[Constant, float]) -> tuple[TableReport, ...]:
    """All tables with `values` in place of the shipped constants."""
    calibrations = {c.owner: CARDS[c.owner].calibration for c in values if c.owner in CARDS}
    for c, value in values.items():
        if c.owner in calibrations:
            calibrations[c.owner] = replace(calibrations[c.owner], **{c.field: value})
    by_family = {CARDS[name].family: found for name, found in calibrations.items()}

    def load(name: str) -> Accelerator:
        card = CARDS[name]
        return replace(card, calibration=by_family.get(card.family, card.calibration))

    factors = dict(zip(BITS.values(), (step_time.WIDTH_FRACTION[i][1] for i in BITS.values()), strict=True))
    factors |= {BITS[c.owner]: value for c, value in values.items() if c.owner in BITS}
    widths = tuple((bits, factors[i]) for i, (bits, _) in enumerate(step_time.WIDTH_FRACTION))
    with patch.dict(ENGINES, engines(values)), patch.object(step_time, "WIDTH_FRACTION", widths):
        return validate(load)


def residuals(values: dict[Constant, float]) -> FloatArray:
    """Logarithms of predicted over published, fitted rows only; each quantity of a table weighs at most six rows."""
    found: list[float] = []
    for report in replay(values):
        groups: dict[str, list[float]] = {}
        for c in report.comparisons:
            if c.use == "fit":
                groups.setdefault(c.quantity, []).append(float(np.log(c.predicted / c.published)))
        for quantity, errors in groups.items():
            weight = np.sqrt(min(len(errors), 6) / len(errors)) * (0.3 if quantity == "speedup" else 1.0)
            found += [float(e * weight) for e in errors]
    return np.array(found)


def tested_medians(reports: tuple[TableReport, ...]) -> dict[str, float]:
    """Median error of each quantity of each table over rows that were not fitted."""
    return {f"{r.name}: {s.quantity}": s.median_error for r in reports for s in r.summaries if s.use == "test"}


def main() -> None:
    """Fit and compare."""
    start = np.array([shipped(c) for c in FITTED])
    low, high = np.array([c.low for c in FITTED]), np.array([c.high for c in FITTED])
    scale = np.maximum(start, 1e-7)
    inside = np.clip(start, low + 1e-6 * (high - low), high - 1e-6 * (high - low))
    solved = least_squares(
        lambda x: residuals(dict(zip(FITTED, x * scale, strict=True))),
        inside / scale,
        bounds=(low / scale, high / scale),
        loss="soft_l1",
        f_scale=0.08,
        max_nfev=15,
        diff_step=1e-3,
    )
    refitted = dict(zip(FITTED, solved.x * scale, strict=True))
    print(f"{'owner':<26}{'constant':<24}{'in use':>12}{'refitted':>12}")
    for c in FITTED:
        print(f"{c.owner:<26}{c.field:<24}{shipped(c):>12.4g}{refitted[c]:>12.4g}")
    before = tested_medians(replay({}))
    after = tested_medians(replay(refitted))
    print(f"\n{'median error of rows that were not fitted':<50}{'in use':>10}{'refitted':>10}")
    for name, value in before.items():
        print(f"{name:<50}{value:>10.1%}{after[name]:>10.1%}")
    print(
        json.dumps(
            {
                "constants": {f"{c.owner}.{c.field}": [shipped(c), refitted[c]] for c in FITTED},
                "tested_medians": {name: [value, after[name]] for name, value in before.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
