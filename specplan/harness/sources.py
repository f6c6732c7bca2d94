"""Draft sources of a measurement, as users spell them: matchers as in replay, and draft models.

``draft:drop=12-15,k=3`` drafts with the target's own weights without layers 12 to 15; ``draft:first=8`` with its first
8 layers; ``draft:model=FOLDER`` with another model. ``sample=probabilistic`` draws drafts instead of taking the argmax.
"""

import re
from dataclasses import dataclass
from typing import ClassVar, Final

import torch

from specplan.errors import InputError
from specplan.harness.drafters import Drafter, MatcherDrafter, ModelDrafter, NoDrafter
from specplan.harness.llama import Llama
from specplan.harness.load import load_llama
from specplan.harness.verifiers import Sampling
from specplan.propose.build import NO_LIMIT, proposer_of
from specplan.propose.spelling import TokenSource, parse_source, split_source

OPTIONS: Final = ("drop", "first", "model", "k", "sample")
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
            raise InputError(f"--source {text}: drop={value} must name layers, such as 12-15 or 3+12-15")
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
    name, options = split_source(text)
    if name == "none" and not options:
        return NoSource()
    if name != "draft":
        return parse_source(text)
    unknown = [key for key in options if key not in OPTIONS]
    if unknown:
        raise InputError(f"--source {text}: draft has no option {unknown[0]!r}; it has {', '.join(OPTIONS)}")
    if len(options.keys() & {"drop", "first", "model"}) != 1:
        raise InputError(f"--source {text}: give one of drop=LAYERS, first=N or model=PATH")
    for key in ("first", "k"):
        if key in options and not (options[key].isdecimal() and 0 < int(options[key]) < 1000):
            raise InputError(f"--source {text}: {key} must be a whole number from 1 to 999")
    sample = options.get("sample", "greedy")
    if sample not in SAMPLES:
        raise InputError(f"--source {text}: sample={sample}: one of {', '.join(SAMPLES)}")
    return ModelSource(
        dropped=_read_ranges(text, options["drop"]) if "drop" in options else (),
        first=int(options["first"]) if "first" in options else None,
        model=options.get("model"),
        k=int(options.get("k", "3")),
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


def draft_model(source: ModelSource, target: Llama) -> Llama:
    """The model behind a draft source, in the target's format and on its device.

    Raises
    ------
    InputError
        When its vocabulary differs from the target's, or it names layers that the target lacks.
    """
    if source.model is not None:
        model = load_llama(source.model, dtype=target.dtype, device=str(target.device))
        if model.vocab_size != target.vocab_size:
            raise InputError(
                f"{source.spelling}: the draft has {model.vocab_size} tokens, the target {target.vocab_size}; without "
                "both tokenizers only a draft of the same vocabulary can be run"
            )
        return model
    n = len(target.layers)
    dropped = source.dropped if source.first is None else tuple(range(source.first, n))
    return target.without_layers(dropped)


def build_drafter(
    source: Source, target: Llama, *, batch: int, capacity: int, sampling: Sampling, generator: torch.Generator
) -> Drafter:
    """A running drafter of `source` for `target`."""
    match source:
        case NoSource():
            return NoDrafter()
        case ModelSource():
            return ModelDrafter(
                model=draft_model(source, target),
                k=source.k,
                batch=batch,
                capacity=capacity + source.k,
                max_model_len=NO_LIMIT,
                sampling=sampling if source.sample == "probabilistic" and sampling.temperature != 0 else None,
                generator=generator,
            )
        case _:
            proposer, k, limit = proposer_of(source)
            return MatcherDrafter(proposer=proposer, k=k, max_model_len=limit)
