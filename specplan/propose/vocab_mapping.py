"""Vocabulary mapping of a draft model and a target with different tokenizers: what both can say.

Token-level intersection as in vLLM 0.32.0: tokens that are the same string in both vocabularies, once each family's
mark for a leading space is a space, are shared; the draft is confined to them.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specplan.errors import InputError
from specplan.propose.protocol import TokenArray, Tokens, as_tokens

ANY_MARK: Final = ("Ġ", "▁")
"""Marks for a leading space: byte-level BPE, SentencePiece."""

FEW_SHARED: Final = 100
"""Fewer shared tokens than this draw a warning, as in vLLM."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VocabMapping:
    """Which token of one vocabulary is which of the other.

    Attributes
    ----------
    to_target : int32 array, shape (V_draft,)
        Target id of a draft id; -1 where it is not shared.
    to_draft : int32 array, shape (V_target,)
        Draft id of a target id; -1 where it is not shared.
    stand_in : int
        Draft id for target ids that are not shared: the draft's unknown token, else its end of sequence.
    """

    to_target: NDArray[np.int32]
    to_draft: NDArray[np.int32]
    stand_in: int

    @property
    def shared(self) -> int:
        """Tokens in the intersection."""
        return int((self.to_target >= 0).sum())

    @property
    def draft_mask(self) -> NDArray[np.bool_]:
        """Shape (V_draft,): draft ids that the draft may propose; the logits of all others are -inf before argmax."""
        return self.to_target >= 0

    def target_to_draft(self, tokens: Tokens) -> TokenArray:
        """What the draft reads for target tokens: the shared id, or the stand-in."""
        ids = self.to_draft[_within(tokens, self.to_draft.size, "target")]
        return np.where(ids < 0, np.int32(self.stand_in), ids)

    def draft_to_target(self, tokens: Tokens) -> TokenArray:
        """What the target verifies for drafted tokens, all of which must be shared."""
        ids = self.to_target[_within(tokens, self.to_target.size, "draft")]
        if (ids < 0).any():
            raise InputError(
                f"draft token {as_tokens(tokens)[ids < 0][0]} is not shared with the target; mask the draft's logits "
                "with draft_mask before choosing"
            )
        return ids

    def __str__(self) -> str:
        """The line that vLLM logs."""
        n, draft, target = self.shared, self.to_target.size, self.to_draft.size
        return (
            f"VocabMapping initialized: target_vocab={target}, draft_vocab={draft}, intersection={n} "
            f"({100 * n / draft:.1f}% of draft, {100 * n / target:.1f}% of target)"
        )


def _within(tokens: Tokens, size: int, what: str) -> TokenArray:
    ids = as_tokens(tokens)
    if ids.size and (ids.min() < 0 or ids.max() >= size):
        raise InputError(f"a {what} token id is outside its vocabulary of {size}")
    return ids


def _by_string(vocab: Mapping[str, int], marks: tuple[str, ...]) -> dict[str, int]:
    """Normalised string -> id; of tokens that become equal, the first in the mapping's order is kept."""
    found: dict[str, int] = {}
    for token, id_ in vocab.items():
        mark = next((m for m in marks if token.startswith(m)), "")
        found.setdefault(" " + token[len(mark) :] if mark else token, id_)
    return found


def intersect(
    target_vocab: Mapping[str, int],
    draft_vocab: Mapping[str, int],
    *,
    target_size: int,
    draft_size: int,
    target_marks: tuple[str, ...] = ANY_MARK,
    draft_marks: tuple[str, ...] = ANY_MARK,
    draft_unk: int | None = None,
    draft_eos: int | None = None,
) -> VocabMapping:
    """Token-level intersection of two vocabularies.

    Parameters
    ----------
    target_vocab, draft_vocab : mapping of str to int
        Token strings as the tokenizers' vocabularies spell them; where two become one string the first entry wins, so
        sort by id what has no order of its own.
    target_size, draft_size : int
        Rows of the models' output heads (the configurations' vocab sizes); a shared string whose id is beyond either is
        left out.
    target_marks, draft_marks : tuple of str
        Each family's marks for a leading space; `space_marks` finds them.
    draft_unk, draft_eos : int or None
        The draft's unknown and end-of-sequence ids.

    Returns
    -------
    VocabMapping

    Raises
    ------
    InputError
        When the draft has neither an unknown nor an end-of-sequence token.

    Warns
    -----
    UserWarning
        Under 100 shared tokens: the draft can hardly say anything.

    Source: vLLM 0.32.0, `v1/spec_decode/vocab_mapping.py` (V1 runner, greedy drafts only).

    Examples
    --------
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     mapping = intersect({"Ġa": 0, "b": 1, "c": 2}, {"b": 0, "▁a": 1, " a": 2, "<unk>": 3},
    ...                         target_size=3, draft_size=4, draft_unk=3)
    >>> mapping.to_target.tolist(), mapping.target_to_draft([0, 1, 2]).tolist()
    ([1, 0, -1, -1], [1, 0, 3])
    >>> print(mapping)
    VocabMapping initialized: target_vocab=3, draft_vocab=4, intersection=2 (50.0% of draft, 66.7% of target)
    """
    stand_in = draft_unk if draft_unk is not None else draft_eos
    if stand_in is None:
        raise InputError("the draft has neither an unknown nor an end-of-sequence token to stand in for unshared ones")
    if target_size < 1 or draft_size < 1:
        raise InputError(f"vocabulary sizes are {target_size} and {draft_size}; they must be at least 1")
    of_target = _by_string(target_vocab, target_marks)
    of_draft = _by_string(draft_vocab, draft_marks)
    to_target = np.full(draft_size, -1, np.int32)
    to_draft = np.full(target_size, -1, np.int32)
    for token, draft_id in of_draft.items():
        target_id = of_target.get(token)
        if target_id is not None and target_id < target_size and draft_id < draft_size:
            to_target[draft_id], to_draft[target_id] = target_id, draft_id
    mapping = VocabMapping(to_target=to_target, to_draft=to_draft, stand_in=stand_in)
    if mapping.shared < FEW_SHARED:
        warnings.warn(
            f"draft and target share only {mapping.shared} tokens (under {FEW_SHARED}); few drafts will be accepted",
            stacklevel=2,
        )
    return mapping


def space_marks(first_token: str | None) -> tuple[str, ...]:
    """A family's mark for a leading space, read off the first token of the text ``" a"``.

    Parameters
    ----------
    first_token : str or None
        That token's string; None where the tokenizer yields none.

    Returns
    -------
    tuple of str
        What stands before the ``a``; both common marks where the token does not tell.

    Examples
    --------
    >>> space_marks("Ġa"), space_marks("▁a"), space_marks("▁")
    (('Ġ',), ('▁',), ('Ġ', '▁'))
    """
    if first_token is not None and len(first_token) > 1 and first_token.endswith("a") and first_token[0] not in " \t":
        return (first_token[:-1],)
    return ANY_MARK
