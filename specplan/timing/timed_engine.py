"""How engines run passes: what each adds to bytes and arithmetic, with where the figure comes from.

The figures were fitted on some published tables; `specplan.evidence.validate` names the rows and tests the others.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError

FloatArray = npt.NDArray[np.float64]

VLLM_GRAPHS: Final = ((2, 1), (4, 2), (256, 8), (512, 16))
"""vLLM records graphs of 1, 2, 4 and multiples of 8 to 256, of 16 to 512 positions."""

SGLANG_GRAPHS: Final = ((2, 1), (4, 2), (32, 4), (160, 8))
"""SGLang records graphs of 1, 2, 4, multiples of 4 to 32 and of 8 to 160 requests."""


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
    vocabulary_s : float
        What mapping a reduced vocabulary back to the target's adds to a draft pass.
    host_s : float or None
        Time per step outside all passes; None takes the card's calibration.
    host_request_s : float
        What each request adds to it.
    speculation_s, speculation_request_s : float
        What a drafted step adds outside all passes (rejection, hand-over between proposer and verifier), and what each
        request beyond the first adds to that.
    native : tuple of str
        Quantised formats that it multiplies natively where the card can; others are unpacked to 16 bits.
    layer_request_factor : float
        What each request adds to a layer of 4096 hidden numbers, relative to ``launch_s`` (copies and appends of rows
        that are not fused into one kernel; in proportion to the width of the hidden state).
    ring : bool
        All-reduce by the vendor's library instead of an own kernel.
    eager_layer_s, draft_eager_layer_s : float
        Host time to launch one layer where no graph records it; a pass is never shorter than its launching.
    kernels : str
        Engine whose kernels' laws describe its passes; empty for an engine with kernels of its own, which is timed by
        the additive law and the card's calibration.
    captured : tuple of (int, int)
        Sizes of recorded graphs, to the next of which positions are padded: (largest, step) from small to large.
    draft_layer_s : float
        What a layer of a draft pass takes beside its kernels.
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
    vocabulary_s: float = 0.0
    host_s: float | None = None
    host_request_s: float = 0.0
    speculation_s: float = 0.0
    speculation_request_s: float = 0.0
    native: tuple[str, ...] = ("fp8", "int8", "nvfp4", "mxfp4")
    layer_request_factor: float = 0.0
    ring: bool = False
    eager_layer_s: float = 0.0
    draft_eager_layer_s: float = 0.0
    kernels: str = ""
    captured: tuple[tuple[int, int], ...] = ()
    draft_layer_s: float = 0.0
    draft_order: str = "vllm"

    @property
    def family(self) -> str:
        """The engine without its version: what decides which sources it offers."""
        return "sglang" if self.draft_order == "sglang" else self.name

    def padded(self, tokens: npt.ArrayLike) -> FloatArray:
        """Positions that a pass of `tokens` multiplies: the next recorded size, or as many where no graph is so large.

        >>> ENGINES["vllm"].padded([1, 3, 5, 260, 1000]).tolist()
        [1.0, 4.0, 8.0, 272.0, 1000.0]
        """
        t = np.ceil(np.asarray(tokens, np.float64) - 1e-9)
        out = t.copy()
        for largest, step in reversed(self.captured):
            out = np.where(t <= largest, np.ceil(t / step) * step, out)
        return out


ENGINES: Final[Mapping[str, Engine]] = {
    e.name: e
    for e in (
        Engine(
            name="vllm",
            version="0.32",
            kernels="vllm",
            captured=VLLM_GRAPHS,
            draft_launch_factor=2.4,
            draft_pass_s=0.046e-3,
            host_s=0.8e-3,
            host_request_s=25e-6,
            speculation_s=0.2e-3,
            source="host: vLLM on an H200 at 5.53 ms a token (suffix-decoding artifact); draft passes: vLLM's example "
            "table of times by k; a drafted step: between none and 0.8 ms in public rows of 0.11 and later",
        ),
        Engine(
            name="sglang",
            version="0.5",
            kernels="sglang",
            draft_launch_factor=1.0,
            draft_pass_s=0.05e-3,
            host_s=0.15e-3,
            host_request_s=25e-6,
            speculation_s=3.15e-3,
            speculation_request_s=0.05e-3,
            draft_order="sglang",
            source="host: SGLang documentation, Llama-3.1-8B on one H100 at 158.3 tokens/s; draft passes run in "
            "graphs; a drafted step: public rows of EAGLE heads under 0.4 and 0.5 without overlapped scheduling",
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
            layer_request_factor=0.0099,
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
            name="vllm-0.10",
            version="0.10 to 0.12",
            kernels="vllm",
            captured=VLLM_GRAPHS,
            draft_launch_factor=2.4,
            draft_pass_s=0.046e-3,
            host_s=1.06e-3,
            host_request_s=25e-6,
            speculation_s=0.8e-3,
            speculation_request_s=0.03e-3,
            source="host: arXiv 2601.11580, vLLM 0.10.1; a drafted step: its speedups of EAGLE and n-gram drafts",
        ),
        Engine(
            name="vllm-0.9",
            version="0.8 and 0.9",
            kernels="vllm",
            captured=VLLM_GRAPHS,
            draft_launch_factor=2.4,
            draft_pass_s=0.2e-3,
            host_s=0.95e-3,
            host_request_s=25e-6,
            speculation_s=0.65e-3,
            vocabulary_s=0.62e-3,
            source="vllm-project/vllm 20780, EAGLE and EAGLE-3 on Llama-3.1-8B by drafted tokens: four rows of twelve",
        ),
        Engine(
            name="vllm-v0",
            version="0.7 and before",
            kernels="vllm",
            captured=VLLM_GRAPHS,
            draft_launch_factor=2.4,
            draft_pass_s=0.046e-3,
            host_request_s=25e-6,
            speculation_s=5e-3,
            source="as vllm-0.10; what a drafted step adds: MoESD, Mixtral with EAGLE on HumanEval at temperature 0",
        ),
        Engine(
            name="tensorrt-llm",
            version="1.3",
            kernels="tensorrt-llm",
            captured=VLLM_GRAPHS,
            draft_pass_s=0.05e-3,
            host_s=0.5e-3,
            host_request_s=10e-6,
            speculation_s=0.5e-3,
            source="kernels as measured; host and drafted step assumed: an overlapped scheduler in C++",
        ),
        Engine(
            name="llama.cpp",
            version="2026",
            draft_order="chain",
            native=(),
            host_s=0.3e-3,
            host_request_s=10e-6,
            speculation_s=0.2e-3,
            draft_pass_s=0.1e-3,
            source="assumed: kernels as fast as the card's calibration, a sampler on the host after every pass",
        ),
        Engine(
            name="serving",
            draft_order="chain",
            version="generic",
            kernels="vllm",
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


_RANGES: Final[Mapping[str, tuple[tuple[tuple[int, int], str], ...]]] = {
    "vllm": (((0, 8), "vllm-v0"), ((0, 10), "vllm-0.9"), ((0, 13), "vllm-0.10")),
}
"""Versions before which an engine is another of the table."""


def engine_named(name: str) -> Engine:
    """Engine by name, with or without a version: ``vllm``, ``vllm-0.10``, ``vllm 0.9.1``, ``sglang==0.5.5``.

    A version that is not a number (``dev``, ``0.1x``) is taken as the newest.

    >>> engine_named("vllm").version, engine_named("vllm 0.9.1").name, engine_named("sglang==0.5.5").name
    ('0.32', 'vllm-0.9', 'sglang')
    """
    found = ENGINES.get(name)
    if found is not None:
        return found
    base, _, version = name.strip().replace("==", " ").replace("-", " ", 1).partition(" ")
    numbers = re.match(r"v?(\d+)\.(\d+)(?![\dx])", version)
    if base not in ENGINES or not version.strip():
        found = ENGINES.get(name.replace("==", " ").partition(" ")[0])
        if found is not None:
            return found
        raise InputError(f"unknown engine {name!r}; one of {', '.join(ENGINES)}")
    if numbers is None:
        return ENGINES[base]
    at = int(numbers[1]), int(numbers[2])
    return ENGINES[next((other for before, other in _RANGES.get(base, ()) if at < before), base)]
