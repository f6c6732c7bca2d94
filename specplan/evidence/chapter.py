"""Every number that the chapter prints, recomputed: one table for the tests and for ``specplan check-chapter``.

A row passes when our value lies within half a unit of the last printed digit. Where the chapter computes onward from a
rounded figure, the row is computed from that figure, and a second row pins the value from exact shapes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.formulas import kv_cache, parameters, roofline
from specplan.formulas.emitted import expected_emitted, mixture_yield
from specplan.formulas.indifference import free_draft_tie
from specplan.formulas.speedup import speedup
from specplan.units import GIB, KIB
from specplan.values.hardware import Accelerator
from specplan.values.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class ChapterRow:
    """One printed number.

    Attributes
    ----------
    section : str
        Part of the chapter.
    sentence : str
        What the number is, in our words, close enough to find the sentence.
    printed : str
        The number as printed, without its unit.
    value : float
        Ours, in the printed unit.
    unit : str
        Printed unit; empty for a plain number.
    origin : str
        ``chapter``: printed there; ``its code``: what its code prints when run;
        ``exact shapes``: from unrounded shapes; ``publisher``: a published total.
    """

    section: str
    sentence: str
    printed: str
    value: float
    unit: str
    origin: str = "chapter"

    @property
    def tolerance(self) -> float:
        """Half a unit of the last printed digit.

        >>> ChapterRow(section="", sentence="", printed="10.37", value=10.373, unit="ms").tolerance
        0.005
        """
        _, _, decimals = self.printed.replace(",", "").partition(".")
        return 0.5 * 10.0 ** -len(decimals)

    @property
    def passes(self) -> bool:
        """Whether our value rounds to the printed one (either way at the exact half)."""
        printed = float(self.printed.replace(",", ""))
        return abs(self.value - printed) <= self.tolerance * (1 + 1e-9)


_PLANE: Final = "the plane"
_EXAMPLE: Final = "1B drafting 70B"
_MEMORY: Final = "the draft's memory"
_MATCHING: Final = "matching"
_PITFALLS: Final = "pitfalls"

# The chapter's rounded inputs, each used by the rows that it computes onward from.
_ROUND_C_8B: Final = 0.165
_ROUND_70B_CHECKPOINT: Final = 70.55e9
_PRINTED_MEMORY: Final = 79.65 * GIB
_UTILIZATION: Final = 0.9
_WORKSPACE: Final = 2 * GIB
_LENGTH: Final = 8192


def chapter_rows(llama3_70b: Model, llama3_8b: Model, llama32_1b: Model, h100: Accelerator) -> tuple[ChapterRow, ...]:
    """All rows, computed from the shipped specs of the chapter's three models and its card."""
    return (
        *_plane_rows(llama3_70b, llama3_8b, llama32_1b),
        *_example_rows(llama3_70b, llama32_1b, h100),
        *_memory_rows(llama3_70b, llama32_1b),
        *_exact_memory_rows(llama3_70b, llama32_1b),
        *_matching_rows(),
        *_pitfall_rows(h100),
        *_published_rows(llama3_70b, llama3_8b, llama32_1b),
    )


def _c(draft: Model, target: Model) -> float:
    return float(roofline.cost_ratio(parameters.streamed_params(draft), parameters.streamed_params(target)))


def _row(
    section: str, sentence: str, printed: str, value: npt.ArrayLike, unit: str = "", origin: str = "chapter"
) -> ChapterRow:
    number = float(np.asarray(value))
    return ChapterRow(section=section, sentence=sentence, printed=printed, value=number, unit=unit, origin=origin)


def _plane_rows(big: Model, small: Model, draft: Model) -> Iterator[ChapterRow]:
    c70, c8 = _c(draft, big), _c(draft, small)
    tie8, tie70 = (100 * float(free_draft_tie(0.7, 3, c)) for c in (c8, c70))
    yield _row(_PLANE, "matcher that ties the 1B draft at alpha 0.7 on the 8B target", "43", tie8, "%")
    yield _row(_PLANE, "the same bar on the 70B target", "67", tie70, "%")
    yield _row(_EXAMPLE, "c of the 1B draft against the 8B target", "0.165", c8)
    yield _row(_EXAMPLE, "c of the 1B draft against the 70B target", "0.0178", c70)
    yield _row(_EXAMPLE, "change in c from one target swap (ninefold)", "9", c8 / c70)
    yield _row(_EXAMPLE, "E at alpha 0.7, kappa 3", "2.533", expected_emitted(0.7, 3))
    yield _row(_EXAMPLE, "1 + kappa c on the 8B target", "1.495", 1 + 3 * _ROUND_C_8B)
    yield _row(_EXAMPLE, "1 + kappa c on the 70B target", "1.053", 1 + 3 * c70)
    yield _row(_EXAMPLE, "speedup on the 8B target, c rounded to 0.165", "1.69", speedup(0.7, 3, _ROUND_C_8B), "x")
    yield _row(_EXAMPLE, "speedup on the 8B target, exact c", "1.6955", speedup(0.7, 3, c8), "x", "exact shapes")
    yield _row(_EXAMPLE, "speedup on the 70B target", "2.40", speedup(0.7, 3, c70), "x")
    yield _row(_EXAMPLE, "speedup that a free draft must reach there", "2.4047", speedup(0.7, 3, c70), "x")
    for kappa, printed in ((3, "0.666"), (5, "0.661"), (7, "0.654")):
        yield _row(_EXAMPLE, f"alpha-dagger, 70B target, kappa {kappa}", printed, free_draft_tie(0.7, kappa, c70))
    for kappa, printed in ((1, "0.459"), (3, "0.430"), (7, "0.314")):
        tie = free_draft_tie(0.7, kappa, _ROUND_C_8B)
        yield _row(_EXAMPLE, f"alpha-dagger at c 0.165, kappa {kappa}", printed, tie)


def _example_rows(big: Model, draft: Model, h100: Accelerator) -> Iterator[ChapterRow]:
    hidden, ffn = big.hidden_size, 28672
    q_and_o, k_and_v, mlp = 2 * hidden**2, 2 * hidden * 1024, 3 * hidden * ffn
    layer = q_and_o + k_and_v + mlp
    streamed = parameters.streamed_params(big)
    head = big.vocab_size * hidden
    rank_bytes = parameters.streamed_bytes(big, tp=4)
    floor = float(roofline.decode_floor_s(rank_bytes, h100.bandwidth))
    yield _row(_EXAMPLE, "parameters of one 70B layer", "855.6", layer / 1e6, "M")
    yield _row(_EXAMPLE, "parameters of 80 layers", "68.451", (streamed - head) / 1e9, "B")
    yield _row(_EXAMPLE, "parameters of the output head", "1.051", head / 1e9, "B")
    yield _row(_EXAMPLE, "streamed parameters of the 70B target", "69.502", streamed / 1e9, "B")
    yield _row(_EXAMPLE, "streamed bytes in bf16", "139.0", 2 * streamed / 1e9, "GB")
    yield _row(_EXAMPLE, "streamed bytes per GPU at TP 4", "34.75", rank_bytes / 1e9, "GB")
    yield _row(_EXAMPLE, "decode floor at batch 1", "10.37", 1e3 * floor, "ms")
    yield _row(_EXAMPLE, "tokens per second at that floor", "96", 1 / floor, "tokens/s")
    yield _row(_EXAMPLE, "streamed parameters of the 1B draft", "1.236", parameters.streamed_params(draft) / 1e9, "B")


def _pools(checkpoint: float, draft_params: float, shard_bytes: float | None = None) -> tuple[float, float]:
    """Pool per GPU in bytes, alone and with the draft, in the chapter's setting (four GPUs, bf16)."""
    weights = 2 * checkpoint / 4
    alone = float(kv_cache.kv_pool_bytes(_PRINTED_MEMORY, _UTILIZATION, weights, _WORKSPACE))
    return alone, alone - (2 * draft_params / 4 if shard_bytes is None else shard_bytes)


def _memory_rows(big: Model, draft: Model) -> Iterator[ChapterRow]:
    per_token, draft_per_token = kv_cache.kv_bytes_per_token(big), kv_cache.kv_bytes_per_token(draft)
    both = per_token + draft_per_token
    draft_params = parameters.resident_params(draft)
    alone, shared = _pools(_ROUND_70B_CHECKPOINT, draft_params)
    tokens, tokens_shared = 4 * alone / per_token, 4 * shared / both
    sequences, sequences_shared = tokens // _LENGTH, tokens_shared // _LENGTH
    resident, embedding = parameters.resident_params(big), parameters.gathered_params(big)
    yield _row(_MEMORY, "budget per GPU: 0.9 of 79.65 GiB", "71.69", _UTILIZATION * _PRINTED_MEMORY / GIB, "GiB")
    yield _row(_MEMORY, "parameters of the whole 70B checkpoint", "70.55", resident / 1e9, "B")
    yield _row(_MEMORY, "input embedding, resident but gathered", "1.05", embedding / 1e9, "B")
    yield _row(_MEMORY, "weight shard per GPU", "32.85", 2 * _ROUND_70B_CHECKPOINT / 4 / GIB, "GiB")
    yield _row(_MEMORY, "KV pool per GPU", "36.83", alone / GIB, "GiB")
    yield _row(_MEMORY, "KV pool of four GPUs", "147.3", 4 * alone / GIB, "GiB")
    yield _row(_MEMORY, "KV per token of the 70B target", "320", per_token / KIB, "KiB")
    yield _row(_MEMORY, "tokens in the pool (checkpoint rounded to 70.55 B)", "482,772", math.floor(tokens))
    yield _row(_MEMORY, "sequences at 8k", "58", sequences)
    yield _row(_MEMORY, "weights of the 1B draft", "2.30", 2 * draft_params / GIB, "GiB")
    yield _row(_MEMORY, "draft weights per shard", "0.575", 2 * draft_params / 4 / GIB, "GiB")
    yield _row(_MEMORY, "KV per token of the draft", "32", draft_per_token / KIB, "KiB")
    yield _row(_MEMORY, "draft's KV on top of the target's", "10", 100 * draft_per_token / per_token, "%")
    yield _row(_MEMORY, "pool with the draft, four GPUs", "145.0", 4 * shared / GIB, "GiB")
    yield _row(_MEMORY, "KV per token with the draft", "352", both / KIB, "KiB")
    yield _row(_MEMORY, "tokens with the draft (checkpoint rounded)", "432,026", math.floor(tokens_shared))
    yield _row(_MEMORY, "sequences with the draft", "52", sequences_shared)
    yield _row(_MEMORY, "loss of whole sequences", "10.3", 100 * (1 - sequences_shared / sequences), "%")
    yield _row(_MEMORY, "loss of tokens", "10.5", 100 * (1 - tokens_shared / tokens), "%")


def _exact_memory_rows(big: Model, draft: Model) -> Iterator[ChapterRow]:
    """Tokens from unrounded matrices and tables (norms left out, as the chapter's checkpoint leaves them out)."""
    matrices = parameters.streamed_params(big) + parameters.gathered_params(big)
    alone, shared = _pools(matrices, parameters.streamed_params(draft))
    per_token, draft_per_token = kv_cache.kv_bytes_per_token(big), kv_cache.kv_bytes_per_token(draft)
    tokens = math.floor(4 * alone / per_token)
    with_draft = math.floor(4 * shared / (per_token + draft_per_token))
    yield _row(_MEMORY, "tokens in the pool", "482,757", tokens, origin="exact shapes")
    yield _row(_MEMORY, "tokens with the draft", "432,013", with_draft, origin="exact shapes")


def _matching_rows() -> Iterator[ChapterRow]:
    depth, narrow, wide = 18, 1, 10
    scale = (wide - narrow) / (depth - 1)

    def breadth(match_len: int) -> float:
        return (depth - 1 - match_len) * scale + narrow

    yield _row(_MATCHING, "token positions walked per step: batch 64 of 8k (5 x 10^5)", "5", 64 * 8192 / 1e5, "x 10^5")
    yield _row(_MATCHING, "SGLang's breadth scale, (10 - 1) / 17", "0.53", scale)
    yield _row(_MATCHING, "breadth after a 17-token match", "1", breadth(17))
    yield _row(_MATCHING, "breadth after a 2-token match", "8.9", breadth(2))
    yield _row(_MATCHING, "positions of one pass over 8 trees of 8 nodes", "64", roofline.verified_positions(8, 7))
    yield _row(
        _MATCHING,
        "sparse and accurate: coverage 0.1, alpha 0.99",
        "1.29",
        mixture_yield(0.1, 0.99, 3),
        origin="its code",
    )
    yield _row(
        _MATCHING,
        "common and moderate: coverage 0.9, alpha 0.7",
        "2.38",
        mixture_yield(0.9, 0.7, 3),
        origin="its code",
    )
    yield _row(_MATCHING, "yield without coverage", "1", mixture_yield(0, 1, 3))
    yield _row(_MATCHING, "yield of a perfect source", "4", mixture_yield(1, 1, 3))


def _pitfall_rows(h100: Accelerator) -> Iterator[ChapterRow]:
    factor, match_len = 2.0, 12
    asked = int(factor * match_len)
    yield _row(_PITFALLS, "tokens asked for by a 12-token match at factor 2", "24", asked)
    yield _row(_PITFALLS, "verified positions at batch 16", "400", roofline.verified_positions(16, asked))
    ridge = roofline.ridge_positions(h100.flops["bfloat16"], h100.bandwidth, 2)
    yield _row(_PITFALLS, "ridge of an H100 in bf16", "295", ridge, "positions")


def _published_rows(*models: Model) -> Iterator[ChapterRow]:
    for model in models:
        if model.published_params is not None:
            total = parameters.resident_params(model)
            printed = f"{model.published_params:,}"
            yield _row("totals", f"parameters of {model.name}", printed, total, origin="publisher")
