"""Whether a draft belongs to a target: its sizes against the target's.

A head reads its target's hidden states, and often its embedding, output head or cache; a size that differs makes the
pair impossible, whatever it would cost.
"""

from specplan.errors import InputError
from specplan.values.model import Attention, Layer, Model


def mismatches(draft: Model, target: Model) -> tuple[str, ...]:
    """What keeps `draft` from drafting for `target`, each with the two sizes; empty for a draft that belongs to it.

    Checked are the width of the target's states that the head reads, the vocabulary that they share, the target layers
    that it names, and the heads of cache layers that it reads. A model that stands alone shares only tokens, which the
    engines check by their own rules.

    Examples
    --------
    >>> from dataclasses import replace
    >>> mismatches(llama32_1b, llama3_70b)
    ()
    >>> head = replace(llama32_1b, name="a head", draft_method="eagle", head=False, embedding=False)
    >>> mismatches(head, llama3_70b)
    ('reads hidden states of 2048, the target has 8192',)
    """
    if not draft.draft_method:
        return ()
    found = []
    width = draft.target_hidden_size or draft.hidden_size
    if width != target.hidden_size:
        found.append(f"reads hidden states of {width}, the target has {target.hidden_size}")
    if not (draft.head and draft.embedding) and draft.vocab_size != target.vocab_size:
        found.append(f"has a vocabulary of {draft.vocab_size}, the target of {target.vocab_size}")
    beyond = [i for i in draft.target_layer_ids if i > len(target.layers)]
    if beyond:
        found.append(f"reads layer {beyond[0]}, the target has {len(target.layers)}")
    for heads, size in sorted(_caches(draft.layers, shared=True) - _caches(target.layers, shared=False)):
        found.append(f"reads a cache of {heads} heads of {size}, no layer of the target keeps one")
    return tuple(found)


def _caches(layers: tuple[Layer, ...], *, shared: bool) -> set[tuple[int, int]]:
    """Key-value heads and their size in the layers that read another's cache, or that keep one."""
    found = (layer.mixer for layer in layers)
    return {(a.kv_heads, a.head_dim) for a in found if isinstance(a, Attention) and a.shares_kv == shared}


def check_pair(draft: Model, target: Model) -> None:
    """Refuse a draft that cannot draft for `target`.

    Raises
    ------
    InputError
        One line with the two names and the sizes that differ.

    Examples
    --------
    >>> check_pair(llama32_1b, llama3_70b)
    """
    wrong = mismatches(draft, target)
    if wrong:
        raise InputError(
            f"{draft.name} cannot draft for {target.name}: it {'; it '.join(wrong)}; a head ({draft.draft_method}) "
            f"belongs to the model it was trained on"
        )
