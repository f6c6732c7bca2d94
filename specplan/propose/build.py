"""A running proposer of a spelled source."""

from typing import Final

from specplan.propose.protocol import Proposer
from specplan.propose.rules import NgramSource, OwnSource, SglangNgramSource, SuffixSource, TokenSource

NO_LIMIT: Final = 2**31 - 1


def proposer_of(source: TokenSource) -> tuple[Proposer, int, int]:
    """A fresh proposer of a source, the tokens to ask for, and the model length that caps drafts."""
    match source:
        case NgramSource():
            from specplan.propose.ngram import NgramProposer

            return NgramProposer(source.engine_rule()), source.k, source.len or NO_LIMIT
        case SuffixSource():
            from specplan.propose.suffix import SuffixCache, SuffixProposer

            cache = SuffixCache(source.depth, source.cached)
            proposer = SuffixProposer(cache, max_spec_factor=source.factor, min_token_prob=source.min_prob)
            return proposer, source.tokens, source.len or NO_LIMIT
        case SglangNgramSource():
            from specplan.propose.sglang_ngram import SglangNgram

            return SglangNgram(source.engine_rule()), source.budget - 1, NO_LIMIT
        case OwnSource():
            return source.proposer(), source.k, source.len or NO_LIMIT
