"""Constants of vLLM's memory terms that were fitted to logs: one dated row per change, with data and residuals.

Everything else in `vllm_memory` follows from shapes. A flag of `specplan blocks` replaces each term that these
constants make. Residuals of every log are printed by ``specplan validate startup``.
"""

from dataclasses import dataclass, replace
from typing import Final

from specplan.units import GIB

Bounded = tuple[float, float, float]
"""Low, best, high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Constants for the versions from `since` on.

    Attributes
    ----------
    since : tuple of int
        First version (major, minor, patch).
    date : str
        Of the fit (by hand, on printed terms; hidden sizes and vocabularies from the models' configs).
    data, residuals : str
        What was fitted in this row, and how well. What a row does not name it takes from the row before.
    logits_copies_bytes : float
        Sampling: bytes per row and vocabulary entry beside the logits in the model's own format.
    logits_chunk_bytes : float or None
        Sampling: these copies are made in chunks of at most this (runner V2).
    held_hidden, held_bytes : float
        Sampling: hidden states (tokens x width x bytes) held, in copies; what else is held.
    forward_hidden : float
        Widest feed-forward: hidden states held, in copies.
    peak_bounds : tuple of float
        Activation peak: low and high, relative.
    non_torch_one, non_torch_plain, non_torch_custom, non_torch_pipeline : tuple of float
        Non-torch memory (GiB) on one rank; on several without custom all-reduce; with it, before layers and doublings;
        with pipeline stages only.
    non_torch_layer, non_torch_doubling : float
        Added with custom all-reduce per layer, and at four, eight, ... ranks (GiB).
    graph_first_mib : float
        CUDA graphs: MiB of the first capture at 51 sizes.
    graph_layer_mib, graph_width_mib : float
        CUDA graphs: MiB per further size and layer: a constant, and one per unit of width.
    graph_experts : float
        CUDA graphs: factor on these where layers route.
    graph_bounds : tuple of float
        CUDA graphs: low, best and high, relative.
    """

    since: tuple[int, int, int]
    date: str
    data: str
    residuals: str
    logits_copies_bytes: float
    logits_chunk_bytes: float | None
    held_hidden: float
    held_bytes: float
    forward_hidden: float
    peak_bounds: tuple[float, float]
    non_torch_one: Bounded
    non_torch_plain: Bounded
    non_torch_custom: Bounded
    non_torch_pipeline: Bounded
    non_torch_layer: float
    non_torch_doubling: float
    graph_first_mib: float
    graph_layer_mib: float
    graph_width_mib: float
    graph_experts: float
    graph_bounds: Bounded


_V0_10: Final = Fit(
    since=(0, 10, 0),
    date="2026-11-30",
    data="0.10.0 and 0.10.1.1: Llama-3.2-1B, Qwen2-7B on one and two A100, OPT-2.7B on four cards; high bounds from "
    "0.10 logs of two H200 (1.38 GiB) and eight A100 (2.1); for graphs the constants of 0.19",
    residuals="peak and non-torch together within 0.02 GiB",
    logits_copies_bytes=12.0,
    logits_chunk_bytes=None,
    held_hidden=1.126,
    held_bytes=0.005 * GIB,
    forward_hidden=4.3,
    peak_bounds=(0.85, 1.3),
    non_torch_one=(0.02, 0.05, 0.13),
    non_torch_plain=(0.05, 0.15, 0.35),
    non_torch_custom=(0.05, 0.15, 2.10),
    non_torch_pipeline=(0.05, 0.07, 0.15),
    non_torch_layer=0.0,
    non_torch_doubling=0.0,
    graph_first_mib=262.0,
    graph_layer_mib=0.12,
    graph_width_mib=3.4e-5,
    graph_experts=2.0,
    graph_bounds=(0.3, 1.0, 1.5),
)
_V0_8: Final = replace(
    _V0_10,
    since=(0, 8, 0),
    data="peaks that the V0 engine prints at its default of 256 requests: 1.40 to 1.44 GiB for Qwen2 vocabularies, "
    "1.16 for Phi-4",
    residuals="within 0.2 GiB",
    logits_copies_bytes=36.0,
    peak_bounds=(0.5, 1.5),
)
_V0_10_2: Final = replace(
    _V0_10,
    since=(0, 10, 2),
    data="peak: Qwen3-235B on eight L40S (0.10.2), a 36-layer Qwen3 (0.10.2), Qwen3-14B (0.15/0.16)",
    residuals="within 0.1 GiB",
    logits_copies_bytes=36.0,
    held_bytes=0.052 * GIB,
    peak_bounds=(0.7, 1.15),
)
_V0_15: Final = replace(
    _V0_10_2,
    since=(0, 15, 0),
    data="non-torch on one rank: Qwen3-14B on an H100 (0.15/0.16: 0.13 GiB; 0.17: 0.14 GiB)",
    residuals="0.01 GiB",
    non_torch_one=(0.02, 0.13, 0.26),
)
_V0_17: Final = replace(
    _V0_15,
    since=(0, 17, 0),
    data="peak: 42 start-ups of 0.19.0 on H100 (llm-d-planner accuracy results, 2026-04); Qwen3-14B fell from 5.64 to "
    "2.23 GiB between 0.16 and 0.17",
    residuals="median 0.001 GiB, 90th percentile 0.01, largest 0.05 (a first pipeline stage)",
    logits_copies_bytes=12.45,
    peak_bounds=(0.97, 1.05),
)
_V0_18: Final = replace(
    _V0_17,
    since=(0, 18, 0),
    data="non-torch and graphs: the same 42 start-ups (one rank 0.24 to 0.26 and once 0.46; two 2.06 to 2.11; four "
    "2.13; stages 0.07 GiB); estimates of graphs at 51 sizes in two modes",
    residuals="non-torch: 90th percentile 0.01 GiB, largest 0.21; graphs: median 16 %, 90th 30 %, largest 61 %",
    non_torch_one=(0.23, 0.25, 0.46),
    non_torch_plain=(0.10, 0.21, 0.75),
    non_torch_custom=(2.04, 2.05, 2.09),
    non_torch_layer=0.00062,
    non_torch_doubling=0.06,
)
_V0_21: Final = replace(
    _V0_18,
    since=(0, 21, 0),
    data="graphs, from here on taken off the pool: seven logs (0.22 to 0.32) print 0.1 to 0.7 of the 0.19 estimate",
    residuals="a factor of 2.5 either way: replace it with --cuda-graphs when a log is at hand",
    graph_bounds=(0.1, 0.4, 1.0),
)
_V0_27: Final = replace(
    _V0_21,
    since=(0, 27, 0),
    data="runner V2 (0.32 source: logits and one fp32 copy in chunks of 1 GiB); peaks and consumed memory of "
    "Qwen2.5-0.5B, Qwen3-235B on four RTX PRO 6000, Qwen3.8-27B on RTX 3090 and 5090 (graph estimates 0.13 and 0.20)",
    residuals="0.31 GiB printed for the first against 0.29; up to 0.6 GiB below where a vision encoder peaks",
    graph_bounds=(0.08, 0.2, 1.0),
    logits_copies_bytes=4.0,
    logits_chunk_bytes=float(GIB),
    peak_bounds=(0.6, 2.2),
    non_torch_one=(0.20, 0.30, 0.46),
    non_torch_plain=(0.21, 0.75, 1.80),
)

FITS: Final[tuple[Fit, ...]] = (_V0_8, _V0_10, _V0_10_2, _V0_15, _V0_17, _V0_18, _V0_21, _V0_27)
"""Oldest first."""

CPU_PROCESS: Final[Bounded] = (0.90, 0.93, 1.10)
"""CPU backend: GiB of the worker's own memory beside weights, which vLLM subtracts as resident set size.

Data: four starts of vLLM 0.32 with SmolLM2-135M (plain, n-gram, two drafts): 0.91 to 1.09. Fitted by hand, 2026-11-30.
"""
