"""What a user should know of a draft beside its target, said alike by every command that takes the two."""

from typing import Final

from specplan.memory.speculative import SglangSpeculation, Speculation
from specplan.values.draft_methods import METHODS
from specplan.values.model import Model
from specplan.values.source import HEADS, PARALLEL, Source

FAR: Final = 3
"""Positions to which one measured alpha is carried without a word; heads are trained on so few."""


def _method(name: str) -> str:
    """Our name of an engine's word for a method; the word itself where we know none."""
    for m in METHODS.values():
        if name in (m.name, m.vllm, m.sglang, *m.aliases):
            return m.name
    return name


def draft_cautions(
    target: Model, draft: Model, *, method: str = "", context_len: int = 0, max_model_len: int | None = None
) -> tuple[str, ...]:
    """Cautions about a draft checkpoint: another method's name, its vocabulary, its positions.

    Parameters
    ----------
    target, draft : Model
    method : str
        What the user calls it, in our or an engine's word; empty where nobody does.
    context_len : int
        Longest context that it is to draft in.
    max_model_len : int or None
        The draft's own limit, where the user sets one.

    Examples
    --------
    >>> from specplan.values.formats import lookup
    >>> model = Model(name="8b", source="", hidden_size=4096, vocab_size=128256, tied_embeddings=False, layers=(),
    ...               weight_format=lookup("bf16"))
    >>> from dataclasses import replace
    >>> head = replace(model, name="head", draft_method="eagle3", max_position=2048, embedding=False)
    >>> for line in draft_cautions(model, head, method="EAGLE", context_len=8192): print(line)
    head is an eagle3 head, configured as eagle: the engine would load it by another rule; name it eagle3
    head states 2048 positions, the context is 8192: its acceptance beyond them is not that within
    """
    found = []
    told = _method(method)
    known = draft.draft_method
    mine = {known, "eagle"} if known == "mtp" and method.isupper() else {known}  # SGLang runs NEXTN as EAGLE
    if known and told and told not in mine:
        found.append(
            f"{draft.name} is an {known} head, configured as {told}: the engine would load it by another rule; name it "
            f"{known}"
        )
    if draft.embedding and not known and draft.vocab_size != target.vocab_size:
        found.append(
            f"vocabularies differ ({target.name} {target.vocab_size}, {draft.name} {draft.vocab_size}): SGLang refuses "
            "the pair, vLLM unless use_heterogeneous_vocab is set, and then drafts only shared tokens, greedily"
        )
    if draft.max_position is not None and context_len > draft.max_position:
        found.append(
            f"{draft.name} states {draft.max_position} positions, the context is {context_len}: "
            + ("its acceptance beyond them is not that within" if known else "engines stop drafting there")
        )
    if max_model_len is not None and (known or (draft.max_position or 0) <= max_model_len):
        why = "a head drafts as far as its target serves" if known else "it is no shorter than the draft's own"
        found.append(f"max_model_len {max_model_len} of the draft saves nothing: {why}")
    return tuple(found)


def source_cautions(
    target: Model, source: Source, *, context_len: int = 0, kappa: int | None = None
) -> tuple[str, ...]:
    """Cautions about a source on a target: its draft's, and one alpha carried beyond where heads are trained."""
    found: list[str] = []
    if source.model is not None:
        method = source.kind if source.kind not in ("model", "draft") else ""
        found += draft_cautions(target, source.model, method=method, context_len=context_len)
    heads = source.kind in (*HEADS, *PARALLEL) or (source.model is not None and bool(source.model.draft_method))
    if heads and source.alpha is not None and not source.hazard and kappa is not None and kappa > FAR:
        found.append(
            f"{source.title}: one alpha is carried to {kappa} drafted tokens; a head's later positions are accepted "
            "less, give them as alpha=.8/.7/.6"
        )
    return tuple(found)


def speculation_cautions(
    target: Model, draft: Model | None, speculation: Speculation | SglangSpeculation | None, context_len: int
) -> tuple[str, ...]:
    """Cautions about what an engine is configured with."""
    if draft is None or speculation is None:
        return ()
    if isinstance(speculation, SglangSpeculation):
        return draft_cautions(target, draft, method=speculation.algorithm, context_len=context_len)
    limit = speculation.max_model_len
    return draft_cautions(target, draft, method=speculation.method, context_len=context_len, max_model_len=limit)
