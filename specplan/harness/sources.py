"""Draft sources of a measurement, as users spell them: matchers as in replay, and draft models.

``draft:drop=12-15,k=3`` drafts with the target's own weights without layers 12 to 15; ``draft:first=8`` with its first
8 layers; ``draft:model=FOLDER`` with another model. ``sample=probabilistic`` draws drafts instead of taking the argmax.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

import torch

from specplan.errors import InputError
from specplan.harness.causal_lm import CausalLM
from specplan.harness.drafters import Drafter, MatcherDrafter, ModelDrafter, NoDrafter
from specplan.harness.llama import Llama
from specplan.harness.load import load_causal_lm
from specplan.harness.verifiers import Sampling
from specplan.propose.build import NO_LIMIT, proposer_of
from specplan.propose.rules import TokenSource
from specplan.propose.spelling import read_source as read_spelling
from specplan.propose.spelling import rule_of
from specplan.propose.vocab_mapping import VocabMapping
from specplan.units import read_whole

SAMPLES: Final = ("greedy", "probabilistic")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A draft model.

    Attributes
    ----------
    dropped : tuple of int
        Layers of the target that the draft leaves out (self-draft).
    first : int or None
        Layers that it keeps from the first on (self-draft).
    model : str or None
        Another model: a folder, a GGUF file or ``smollm2-135m``.
    k : int
        Tokens drafted per step.
    sample : str
        ``greedy`` (one-hot drafts, engines' default) or ``probabilistic``.
    """

    kind: ClassVar[str] = "draft"

    dropped: tuple[int, ...] = ()
    first: int | None = None
    model: str | None = None
    k: int = 3
    sample: str = "greedy"

    @property
    def spelling(self) -> str:
        """Complete spelling.

        >>> read_source("draft:drop=12-15").spelling
        'draft:drop=12-15,k=3,sample=greedy'
        """
        if self.model is not None:
            what = f"model={self.model}"
        elif self.first is not None:
            what = f"first={self.first}"
        else:
            what = "drop=" + _ranges(self.dropped)
        return f"draft:{what},k={self.k},sample={self.sample}"


@dataclass(frozen=True, slots=True)
class NoSource:
    """Plain decoding."""

    spelling: ClassVar[str] = "none"


Source = TokenSource | ModelSource | NoSource


def _ranges(numbers: tuple[int, ...]) -> str:
    """``12-15+20`` for (12, 13, 14, 15, 20)."""
    parts: list[list[int]] = []
    for n in sorted(set(numbers)):
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return "+".join(f"{a}-{b}" if a != b else str(a) for a, b in parts)


def _read_ranges(text: str, value: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in value.split("+"):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InputError(f"source {text!r}: drop={value} must name layers, such as 12-15 or 3+12-15")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(found)


def read_source(text: str) -> Source:
    """The source that a spelling stands for.

    Raises
    ------
    InputError
        For an unknown kind, option or value.

    Examples
    --------
    >>> read_source("draft:first=8,k=5").spelling
    'draft:first=8,k=5,sample=greedy'
    >>> read_source("none").spelling
    'none'
    """
    source = read_spelling(text)
    if source.kind == "none":
        return NoSource()
    if source.kind not in ("draft", "model"):
        return rule_of(source)
    options = {**(source.options or {})}
    if source.kind == "model":
        if options.keys() & {"drop", "first", "model"} or not re.search(r"[./]|^smollm2-135m$", source.name):
            rule_of(source)  # says which methods there are
        options["model"] = source.name
    if len(options.keys() & {"drop", "first", "model"}) != 1:
        raise source.wrong("give one of drop=LAYERS, first=N or model=PATH")
    if (sample := options.get("sample", "greedy")) not in SAMPLES:
        raise source.wrong(f"sample={sample}: one of {', '.join(SAMPLES)}")
    return ModelSource(
        dropped=_read_ranges(text, options["drop"]) if "drop" in options else (),
        first=read_whole(options["first"], f"source {text!r}: first") if "first" in options else None,
        model=options.get("model"),
        k=source.kappa or 3,
        sample=sample,
    )


def draft_length(source: Source) -> int:
    """Most tokens that a step of this source drafts."""
    match source:
        case NoSource():
            return 0
        case ModelSource():
            return source.k
        case _:
            return proposer_of(source)[1]


def draft_model(source: ModelSource, target: CausalLM) -> CausalLM:
    """The model behind a draft source, in the target's format and on its device.

    Raises
    ------
    InputError
        When it names layers that the target lacks, or a self-draft is asked of a model whose layers are not at hand.
    """
    if source.model is not None:
        return load_causal_lm(source.model, dtype=target.dtype, device=str(target.device))
    if not isinstance(target, Llama):
        raise InputError(f"{source.spelling}: a self-draft needs a target of the Llama family; give model=FOLDER")
    n = len(target.layers)
    dropped = source.dropped if source.first is None else tuple(range(source.first, n))
    return target.without_layers(dropped)


@dataclass(slots=True)
class Drafts:
    """Draft models and vocabulary mappings of a measurement, each made once.

    Attributes
    ----------
    target : CausalLM
    mappings : mapping of str to VocabMapping
        By the spelling of a model source: how its vocabulary maps to the target's, where the two differ.
    """

    target: CausalLM
    mappings: Mapping[str, VocabMapping] = field(default_factory=dict)
    _models: dict[str, CausalLM] = field(default_factory=dict)

    def model(self, source: ModelSource) -> CausalLM:
        """The model behind `source`.

        Raises
        ------
        InputError
            When its vocabulary has another size and no mapping is known.
        """
        if source.spelling not in self._models:
            model = draft_model(source, self.target)
            if model.vocab_size != self.target.vocab_size and source.spelling not in self.mappings:
                raise InputError(
                    f"{source.spelling}: the draft has {model.vocab_size} tokens, the target {self.target.vocab_size}; "
                    "put the draft's tokenizer files into its folder, so that their intersection can be drafted"
                )
            self._models[source.spelling] = model
        return self._models[source.spelling]

    def drafter(
        self, source: Source, *, batch: int, capacity: int, sampling: Sampling, generator: torch.Generator
    ) -> Drafter:
        """A running drafter of `source`."""
        match source:
            case NoSource():
                return NoDrafter()
            case ModelSource():
                mapping = self.mappings.get(source.spelling)
                if mapping is not None and source.sample == "probabilistic":
                    raise InputError(f"{source.spelling}: a draft of another vocabulary drafts greedily, as in vLLM")
                return ModelDrafter(
                    model=self.model(source),
                    k=source.k,
                    batch=batch,
                    capacity=capacity + source.k,
                    max_model_len=NO_LIMIT,
                    sampling=sampling if source.sample == "probabilistic" and sampling.temperature != 0 else None,
                    generator=generator,
                    mapping=mapping,
                )
            case _:
                proposer, k, limit = proposer_of(source)
                return MatcherDrafter(proposer=proposer, k=k, max_model_len=limit)
