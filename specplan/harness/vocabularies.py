"""Draft models of another vocabulary: which of their tokens are which of the target's.

Equal size is not equal meaning: the tokens themselves are compared, wherever the draft's folder holds a tokenizer.
"""

from collections.abc import Sequence
from typing import Any

from specplan.errors import InputError
from specplan.harness.prompts import tokenizer_of
from specplan.harness.sources import ModelSource, Source
from specplan.propose.vocab_mapping import VocabMapping, intersect, space_marks


def vocabulary_mappings(
    sources: Sequence[Source], target_tokenizer: Any
) -> tuple[dict[str, VocabMapping], dict[str, str]]:
    """(mappings of the drafts whose vocabulary differs, what is known of each draft's), by the sources' spelling."""
    mappings: dict[str, VocabMapping] = {}
    notes: dict[str, str] = {}
    for source in sources:
        if not isinstance(source, ModelSource) or source.model is None:
            continue
        try:
            tokenizer = tokenizer_of(source.model)
        except InputError:
            notes[source.spelling] = "assumed: the target's (the draft's folder holds no tokenizer)"
            continue
        if tokenizer.get_vocab() == target_tokenizer.get_vocab():
            notes[source.spelling] = "exact: the target's"
            continue
        found = mapping_between(target_tokenizer, tokenizer)
        mappings[source.spelling] = found
        notes[source.spelling] = str(found)
    return mappings, notes


def mapping_between(target: Any, draft: Any) -> VocabMapping:
    """Intersection of two tokenizers' vocabularies, as vLLM maps them."""
    vocabularies = [dict(sorted(t.get_vocab().items(), key=lambda item: item[1])) for t in (target, draft)]
    marks = [space_marks(next(iter(t.tokenize(" a")), None)) for t in (target, draft)]
    return intersect(
        *vocabularies,
        target_size=1 + max(vocabularies[0].values()),
        draft_size=1 + max(vocabularies[1].values()),
        target_marks=marks[0],
        draft_marks=marks[1],
        draft_unk=draft.unk_token_id,
        draft_eos=draft.eos_token_id,
    )
