"""What changed between vLLM versions, for every room: defaults, budget terms, wording, settings, slots of drafts.

One row per change; a release is a row in `CHANGES`, `NEWEST`, and its recorded cases in `EVIDENCE`. A rule is taken
from source where it was read (0.32.0, 0.33.0), else from the oldest public log that shows it; a boundary that lies
between two logs is put at the later one and says so.
"""

import re
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from specplan.errors import UnsupportedError

Version = tuple[int, int, int]

OLDEST: Final[Version] = (0, 8, 0)
NEWEST: Final[Version] = (0, 33, 0)
DEFAULT_VERSION: Final = "0.32.0"
"""The newest one whose memory terms public logs show."""
GRAPHS_IN_BUDGET: Final = (0, 21, 0)
"""From here on the estimate of CUDA graphs comes off the pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRules:
    """How one version sizes its pool and what it prints.

    Attributes
    ----------
    version : str
        As the user wrote it.
    utilization : float
        Default of ``--gpu-memory-utilization``.
    graphs_in_budget : bool
        Whether the CUDA-graph estimate comes off the pool (before, graphs came on top of the budget).
    tokens_by_concurrency : bool
        Whether printed tokens are int(concurrency x max_model_len).
    one_line : bool
        Whether tokens and concurrency stand in one log line.
    batches_in_flight : bool
        Whether windows reserve every batch that can be in flight (before, one batch).
    align_states : bool
        Whether prefix caching is on by default for recurrent hybrids (``mamba_cache_mode=align``).
    runner_v2 : bool
        Whether model runner V2 is the default: its token buffer counts, its sampler profiles fewer copies.
    latent_copies : bool
        Whether absorbed latent projections of an unquantised checkpoint take memory of their own.
    draft_window : bool
        Whether the windows of a block-diffusion draft (DFlash) are kept as windows (before, as full attention).
    block_draft_slots : bool
        Whether DFlash and DSpark take query slots of the target's step (after, their queries are a pass of their own).
    drops_last_hit : bool
        Whether EAGLE-like drafts compute the last block of a prefix-cache hit again (after, a block's hash covers the
        tokens that the draft reads behind it).
    skips_unused_drafts : bool
        Whether nothing is drafted in a step after which no request can use a draft.
    settings : frozenset of str
        Fields of ``--speculative-config`` that came with it or before, beside those of 0.32.
    rejections : tuple of str
        Values of ``rejection_sample_method``.
    dropped : frozenset of str
        Methods of 0.32 that it no longer has.
    """

    version: str
    utilization: float = 0.9
    graphs_in_budget: bool = False
    tokens_by_concurrency: bool = False
    one_line: bool = False
    batches_in_flight: bool = False
    align_states: bool = False
    runner_v2: bool = False
    latent_copies: bool = True
    draft_window: bool = False
    block_draft_slots: bool = True
    drops_last_hit: bool = True
    skips_unused_drafts: bool = False
    settings: frozenset[str] = frozenset()
    rejections: tuple[str, ...] = ("standard", "synthetic", "block")
    dropped: frozenset[str] = frozenset()


CHANGES: Final[tuple[tuple[Version, dict[str, Any], str], ...]] = (
    (
        (0, 18, 1),
        {"align_states": True},
        "a 0.18.1rc1 log of a Qwen3.5 hybrid reserves 2 + k states; a 0.10 log does not",
    ),
    ((0, 20, 2), {"tokens_by_concurrency": True}, "one machine, 0.20.0 against 0.20.2: 1.58M tokens became 5.75M"),
    (
        GRAPHS_IN_BUDGET,
        {"graphs_in_budget": True},
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS is 1 by default",
    ),
    (
        (0, 21, 0),
        {"utilization": 0.92},
        "0.9 in 0.19 logs, 0.92 in 0.27-era logs and 0.32 source; between them not read",
    ),
    ((0, 24, 0), {"draft_window": True}, "0.20.1rc1 charged DFlash layers in full, 0.27-era logs by their window"),
    ((0, 27, 0), {"batches_in_flight": True}, "0.22 logs reserve one batch, 0.27-era logs two"),
    ((0, 27, 0), {"runner_v2": True, "latent_copies": False}, "0.32 source; the release that switched was not read"),
    ((0, 32, 0), {"one_line": True}, "0.32 source; two lines in every older log"),
    (
        (0, 33, 0),
        {
            "settings": frozenset({
                "draft_lm_head_quantization", "disable_lookahead_block_hashes", "xpress_topc", "fly_window_size",
                "fly_entropy_threshold", "fly_entropy_top_k",
            }),
            "rejections": ("standard", "synthetic", "block", "fly"),
            "dropped": frozenset({"medusa", "mlp_speculator"}),
        },
        "0.33 source, config/speculative.py",
    ),
    (
        (0, 33, 0),
        {"block_draft_slots": False, "skips_unused_drafts": True, "drops_last_hit": False},
        "0.33 source, config/speculative.py and v1/core/sched/scheduler.py",
    ),
)  # fmt: skip
"""(since version, what changed, where it was seen)."""

EVIDENCE: Final[tuple[tuple[str, str, str], ...]] = (
    ("0.32.0", "cache plans", "156 plans of its planner, equal"),
    ("0.32.0", "scheduler", "125 recorded runs, equal step by step"),
    ("0.32.0", "memory terms", "source, and public start-up logs up to 0.32 (`specplan validate startup`)"),
    ("0.32.0", "n-gram and suffix drafts, samplers", "recorded outputs, equal"),
    ("0.33.0", "cache plans", "its planner gives the 156 plans of 0.32"),
    ("0.33.0", "scheduler", "44 recorded runs, equal step by step"),
    ("0.33.0", "memory terms", "those of 0.32: no public start-up log was seen"),
)
"""(version, what, how it is known); recorded by `tools/record_planner.py` and `tools/record_scheduler.py`."""


def version_number(version: str) -> Version:
    """(major, minor, patch) of a version; what is no digit is left out.

    A build before a release counts as the release (0.20.2rc1 is 0.20.2).

    >>> version_number("0.19.2rc1.dev8"), version_number("0.27")
    ((0, 19, 2), (0, 27, 0))
    """
    parts = [re.match(r"\d*", part) for part in (*version.strip().removeprefix("v").split("."), "0", "0")[:3]]
    digits = [int(part[0] or 0) if part else 0 for part in parts]
    return digits[0], digits[1], digits[2]


def known_version(version: str | None) -> str:
    """The version where its rules are known, else the default one's.

    >>> known_version("0.33.0"), known_version("0.6.5"), known_version(None)
    ('0.33.0', '0.32.0', '0.32.0')
    """
    if version is None or not OLDEST[:2] <= version_number(version)[:2] <= NEWEST[:2]:
        return DEFAULT_VERSION
    return version


def vllm_rules(version: str = DEFAULT_VERSION) -> VllmRules:
    """Rules of a vLLM version.

    Raises
    ------
    UnsupportedError
        Before `OLDEST` and after `NEWEST`, and for what is not a version.

    Examples
    --------
    >>> vllm_rules("0.19.0").utilization, vllm_rules("0.32.0").utilization
    (0.9, 0.92)
    """
    if re.match(r"v?\d+\.\d+", version.strip()) is None:
        raise UnsupportedError(f"{version!r} is not a vLLM version; write one such as {DEFAULT_VERSION}")
    number = version_number(version)
    if not OLDEST[:2] <= number[:2] <= NEWEST[:2]:
        raise UnsupportedError(
            f"vLLM {version} is not known; versions 0.{OLDEST[1]} to 0.{NEWEST[1]} are (name the nearest one with "
            "--engine-version)"
        )
    rules = VllmRules(version=version.strip().removeprefix("v"))
    known = {f.name for f in fields(VllmRules)}
    for since, change, _ in CHANGES:
        assert change.keys() <= known  # noqa: S101 - the table names fields
        if number >= since:
            rules = replace(rules, **change)
    return rules
