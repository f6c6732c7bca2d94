"""The ways to draft that are known, one row each: what drafts, in how many passes, and what the engines call it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from specplan.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftMethod:
    """One way to draft.

    Attributes
    ----------
    name : str
        As sources spell it.
    by : {"matcher", "head", "model"}
        What drafts: a search over tokens, a head on the target's states, a model that stands alone.
    vllm, sglang : str or None
        vLLM's ``method`` and SGLang's ``--speculative-algorithm``; None where the engine does not draft so.
    one_pass : bool
        Whether all tokens come out of one pass instead of one pass each.
    masked : bool
        Whether that pass is over mask tokens, each of which is scored: block drafters.
    lookahead : tuple of (int, int)
        Slots that vLLM reserves behind a step's drafts: so many per drafted token, and so many beside.
    older_runner : bool
        Whether vLLM runs it on its first model runner.
    timed : bool
        Whether the time of its draft passes is known here.
    aliases : tuple of str
        Other names.
    """

    name: str
    by: Literal["matcher", "head", "model"]
    vllm: str | None = None
    sglang: str | None = None
    one_pass: bool = False
    masked: bool = False
    lookahead: tuple[int, int] = (0, 0)
    older_runner: bool = False
    timed: bool = True
    aliases: tuple[str, ...] = ()

    def slots(self, kappa: int) -> int:
        """Cache slots that a request owns behind its tokens while vLLM drafts `kappa` of them.

        The drafts themselves, and what the next drafting may write before they are verified.

        >>> draft_method("ngram").slots(3), draft_method("eagle").slots(3), draft_method("dflash").slots(3)
        (3, 6, 7)
        """
        each, beside = self.lookahead
        return kappa + each * kappa + beside


MTP_NAMES: Final = (
    "deepseek_mtp", "dots3_note_mtp", "mimo_mtp", "mimo_v2_mtp", "glm4_moe_mtp", "glm4_moe_lite_mtp", "glm_ocr_mtp",
    "ernie_mtp", "nemotron_h_mtp", "exaone_moe_mtp", "exaone4_5_mtp", "qwen3_next_mtp", "qwen4_exp_mtp",
    "qwen3_5_mtp", "longcat_flash_mtp", "bailing_hybrid_v3_mtp", "minimax_m3_mtp", "bailing_hybrid_mtp",
    "kimi_k3_mtp", "pangu_ultra_moe_mtp", "step3p5_mtp", "hy_v3_mtp", "hy_v4_mtp", "gemma4_mtp", "inkling_mtp",
    "glm5_next_mtp",
)  # fmt: skip
"""Names that vLLM 0.32 rewrites to ``mtp``."""

_M: Final = DraftMethod

METHODS: Final[Mapping[str, DraftMethod]] = {
    m.name: m
    for m in (
        _M(name="ngram", by="matcher", vllm="ngram", sglang="NGRAM",
           aliases=("n-gram", "prompt-lookup", "prompt_lookup", "prompt-lookup-decoding")),
        _M(name="ngram-host", by="matcher", vllm="ngram", older_runner=True),
        _M(name="ngram-gpu", by="matcher", vllm="ngram_gpu", aliases=("ngram_gpu", "n-gram-gpu")),
        _M(name="suffix", by="matcher", vllm="suffix", older_runner=True,
           aliases=("suffix-decoding", "suffix_decoding")),
        _M(name="model", by="model", vllm="draft_model", sglang="STANDALONE", lookahead=(1, 0),
           aliases=("draft_model", "draft-model", "standalone")),
        _M(name="eagle", by="head", vllm="eagle", sglang="EAGLE", lookahead=(1, 0)),
        _M(name="eagle3", by="head", vllm="eagle3", sglang="EAGLE3", lookahead=(1, 0),
           aliases=("eagle-3", "eagle_3")),
        _M(name="mtp", by="head", vllm="mtp", sglang="NEXTN", lookahead=(1, 0), aliases=(*MTP_NAMES, "nextn")),
        _M(name="dflash", by="head", vllm="dflash", sglang="DFLASH", one_pass=True, masked=True, lookahead=(1, 1)),
        _M(name="dspark", by="head", vllm="dspark", sglang="DSPARK", one_pass=True, masked=True,
           lookahead=(1, 0)),
        _M(name="medusa", by="head", vllm="medusa", one_pass=True, older_runner=True),
        _M(name="mlp_speculator", by="head", vllm="mlp_speculator", older_runner=True, timed=False),
    )
}  # fmt: skip
"""Method of each name; the slots are those of vLLM 0.32 (`config/vllm.py`), whose paged cache reserves them."""


def draft_method(name: str) -> DraftMethod:
    """Method by its name or another name of it.

    Raises
    ------
    InputError
        For an unknown one.

    Examples
    --------
    >>> draft_method("deepseek_mtp").name, draft_method("STANDALONE").vllm
    ('mtp', 'draft_model')
    """
    found = METHODS.get(name) or _BY_ALIAS.get(name.lower())
    if found is None:
        raise InputError(f"unknown draft method {name!r}; one of {', '.join(METHODS)}")
    return found


_BY_ALIAS: Final = {alias: m for m in METHODS.values() for alias in (m.name, *m.aliases)}


def named(**having: object) -> tuple[str, ...]:
    """Names of the methods that have these attributes, in the table's order.

    >>> named(by="head", one_pass=True)
    ('dflash', 'dspark', 'medusa')
    """
    return tuple(m.name for m in METHODS.values() if all(getattr(m, k) == v for k, v in having.items()))
