"""The rules of matchers, one frozen class each, with the engines' defaults."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from specplan.errors import InputError

if TYPE_CHECKING:
    from specplan.propose.ngram import NgramRule
    from specplan.propose.protocol import Proposer
    from specplan.propose.sglang_rule import SglangRule

NGRAM_RULES: Final = ("vllm-v1", "vllm-v2", "vllm-ngram-gpu", "transformers", "latest")
SUFFIX_RULES: Final = ("vllm",)
SGLANG_RULES: Final = ("sglang-0.5.23", "sane")


def _spell(source: Any, unless: Any = None) -> str:
    """Kind and options; those that are None, or as in `unless`, are left out."""
    options = ",".join(
        f"{f.name}={value:g}" if isinstance(value := getattr(source, f.name), float) else f"{f.name}={value}"
        for f in fields(source)
        if getattr(source, f.name) != getattr(unless, f.name, None)
    )
    return f"{source.kind}:{options}" if options else str(source.kind)


def _one_of(kind: str, name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{kind}:{name}={value}: expected one of {', '.join(known)}")


def _at_least(kind: str, source: object, lows: Mapping[str, int]) -> None:
    for name, low in lows.items():
        value = getattr(source, name)
        if value is not None and not low <= value < 2**31:
            raise InputError(f"{kind}:{name}={value:g}: expected a number of at least {low}, below 2^31")


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramSource:
    """N-gram matching in the request's own text.

    Attributes
    ----------
    min, max : int or None
        Shortest and longest n-gram. As in vLLM: one alone is both, none is 5 and 5.
    k : int
        Tokens asked for per step.
    rule : str
        ``vllm-v1`` (earliest occurrence), ``vllm-v2`` (most recent, always k tokens, filler included),
        ``vllm-ngram-gpu``, ``transformers`` (n from max down to 1), ``latest`` (most recent, no filler).
    len : int or None
        Longest request in tokens (``max_model_len``).
    """

    kind: ClassVar[str] = "ngram"

    min: int | None = None
    max: int | None = None
    k: int = 3
    rule: str = "vllm-v1"
    len: int | None = None

    def __post_init__(self) -> None:
        _one_of("ngram", "rule", self.rule, NGRAM_RULES)
        _at_least("ngram", self, {"min": 1, "max": 1, "k": 0, "len": 1})
        low, high = self.lengths
        if low > high:
            raise InputError(f"ngram:min={low},max={high}: min must not be above max")

    @property
    def lengths(self) -> tuple[int, int]:
        """Shortest and longest n-gram, resolved.

        >>> NgramSource().lengths, NgramSource(min=2).lengths, NgramSource(rule="transformers", max=3).lengths
        ((5, 5), (2, 2), (1, 3))
        """
        if self.rule == "transformers":
            return self.min or 1, self.max or 2
        high = self.max or self.min or 5
        return self.min or self.max or 5, high

    @property
    def spelling(self) -> str:
        """Complete spelling.

        >>> NgramSource(min=2, max=5).spelling
        'ngram:min=2,max=5,k=3,rule=vllm-v1'
        """
        low, high = self.lengths
        return _spell(NgramSource(min=low, max=high, k=self.k, rule=self.rule, len=self.len))

    @property
    def short(self) -> str:
        """Spelling without the options that are at their defaults.

        >>> NgramSource(min=2, max=5, k=3).short
        'ngram:min=2,max=5'
        """
        return _spell(self, type(self)())

    @property
    def shares_store(self) -> bool:
        """Never: each request is matched against itself."""
        return False

    def engine_rule(self) -> "NgramRule":
        """The rule behind the spelling."""
        from specplan.propose import ngram

        low, high = self.lengths
        length = ngram.NO_LIMIT if self.len is None else self.len
        match self.rule:
            case "vllm-v2":
                return ngram.vllm_v2(low, high)
            case "vllm-ngram-gpu":
                return ngram.vllm_ngram_gpu(low, high)
            case "transformers":
                if low != 1:
                    raise InputError("ngram:rule=transformers matches down to 1 token; leave min out")
                return ngram.transformers_lookup(high, max_length=length)
            case "latest":
                return ngram.latest_lookup(low, high, max_model_len=length)
        return ngram.vllm_v1(low, high, max_model_len=length)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixSource:
    """Suffix decoding: the request's own text and the responses of earlier ones.

    Attributes
    ----------
    k : int or None
        Most tokens asked for per step; None is the depth, as in vLLM.
    factor : float
        Drafted tokens per matched token.
    depth : int
        Longest indexed string.
    cached : int
        Responses that are kept, oldest out first; 0 keeps none.
    min_prob : float
        A draft ends where its estimated probability falls below this.
    rule : str
        ``vllm``: Arctic's cache as vLLM 0.32 drives it.
    len : int or None
        Longest request in tokens (``max_model_len``).
    """

    kind: ClassVar[str] = "suffix"

    k: int | None = None
    factor: float = 1.0
    depth: int = 24
    cached: int = 10_000
    min_prob: float = 0.1
    rule: str = "vllm"
    len: int | None = None

    def __post_init__(self) -> None:
        _one_of("suffix", "rule", self.rule, SUFFIX_RULES)
        _at_least("suffix", self, {"k": 0, "factor": 0, "depth": 1, "cached": 0, "min_prob": 0, "len": 1})
        if self.min_prob > 1:
            raise InputError(f"suffix:min_prob={self.min_prob:g}: a probability lies in [0, 1]")

    @property
    def tokens(self) -> int:
        """Most tokens asked for per step, resolved."""
        return self.depth if self.k is None else self.k

    @property
    def spelling(self) -> str:
        """Complete spelling.

        >>> SuffixSource().spelling
        'suffix:k=24,factor=1,depth=24,cached=10000,min_prob=0.1,rule=vllm'
        """
        return _spell(replace(self, k=self.tokens))

    @property
    def short(self) -> str:
        """Spelling without the options that are at their defaults.

        >>> SuffixSource(depth=24, factor=2.0).short
        'suffix:factor=2'
        """
        return _spell(self, type(self)())

    @property
    def shares_store(self) -> bool:
        """Whether responses of earlier requests are kept."""
        return self.cached > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangNgramSource:
    """SGLang's n-gram trees over a trie shared by all requests.

    Attributes
    ----------
    budget : int
        Positions verified per step, the root included (``--speculative-num-draft-tokens``).
    match : str
        ``bfs`` (recency) or ``prob`` (frequency).
    depth : int
        Longest indexed window.
    min_breadth, max_breadth : int
        Children per node at the longest and the shortest match.
    capacity : int
        Nodes of the trie.
    rule : str
        ``sglang-0.5.23`` with the engine's quirks (prompts are not indexed, the trie lags one step), or ``sane``.
    """

    kind: ClassVar[str] = "sglang-ngram"

    budget: int = 12
    match: str = "bfs"
    depth: int = 18
    min_breadth: int = 1
    max_breadth: int = 10
    capacity: int = 10_000_000
    rule: str = "sglang-0.5.23"

    def __post_init__(self) -> None:
        _one_of(self.kind, "rule", self.rule, SGLANG_RULES)
        _one_of(self.kind, "match", self.match, ("bfs", "prob"))
        self.engine_rule()

    @property
    def spelling(self) -> str:
        """Complete spelling.

        >>> SglangNgramSource(budget=8).spelling.split(",")[:2]
        ['sglang-ngram:budget=8', 'match=bfs']
        """
        return _spell(self)

    @property
    def short(self) -> str:
        """Spelling without the options that are at their defaults.

        >>> SglangNgramSource().short
        'sglang-ngram'
        """
        return _spell(self, type(self)())

    @property
    def shares_store(self) -> bool:
        """Always: the trie is one per engine."""
        return True

    def engine_rule(self) -> "SglangRule":
        """The rule behind the spelling."""
        from specplan.propose.sglang_rule import SglangRule

        return SglangRule(
            draft_token_num=self.budget,
            match_type="PROB" if self.match == "prob" else "BFS",
            max_trie_depth=self.depth,
            min_bfs_breadth=self.min_breadth,
            max_bfs_breadth=self.max_breadth,
            capacity=self.capacity,
            quirks="sglang-0.5.23" if self.rule == "sglang-0.5.23" else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSource:
    """Any class that answers `specplan.propose.protocol.Proposer`, by where Python finds it.

    Attributes
    ----------
    kind : str
        ``package.module:Class``; it is made without arguments.
    k : int
        Tokens asked for per step.
    len : int or None
        Longest request in tokens.
    """

    kind: str
    k: int = 3
    len: int | None = None

    @property
    def spelling(self) -> str:
        """Complete spelling.

        >>> OwnSource(kind="mine.drafts:Last", k=5).spelling
        'mine.drafts:Last:k=5'
        """
        return f"{self.kind}:k={self.k}" + ("" if self.len is None else f",len={self.len}")

    @property
    def short(self) -> str:
        """The same."""
        return self.spelling

    @property
    def shares_store(self) -> bool:
        """Nothing is known of it, so that requests stay in their order."""
        return True

    def proposer(self) -> "Proposer":
        """A fresh one.

        Raises
        ------
        InputError
            Where there is no such class, or it does not answer the protocol.
        """
        from specplan.propose.protocol import Proposer

        module, _, name = self.kind.partition(":")
        try:
            made = getattr(importlib.import_module(module), name)()
        except (ImportError, AttributeError, TypeError) as error:
            raise InputError(f"source {self.spelling!r}: cannot be made: {error}") from None
        if not isinstance(made, Proposer):
            missing = [m for m in dir(Proposer) if not m.startswith("_") and not hasattr(made, m)]
            raise InputError(
                f"source {self.spelling!r}: does not answer specplan.propose.protocol.Proposer; it lacks "
                f"{', '.join(missing)}"
            )
        return made


TokenSource: TypeAlias = NgramSource | SuffixSource | SglangNgramSource | OwnSource
"""A source that needs token ids and nothing else."""
