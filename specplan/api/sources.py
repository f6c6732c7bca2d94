"""Draft sources and where they run, as the options of commands name them: models, cards and documents are read here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from specplan.api.answer import accelerator_of, model_of, told
from specplan.decide.cautions import source_cautions
from specplan.decide.documents import measured_source, sources_of
from specplan.decide.measured import confidence_of, summarise
from specplan.decide.plane import Scene
from specplan.decide.pricing import Pair, Setting, price_notes, priced
from specplan.decide.source import Placed, elsewhere, placed
from specplan.decide.step_source import head_for, is_padded, with_tree
from specplan.errors import InputError, NotFoundError
from specplan.files.documents import read_json
from specplan.propose.spelling import read_source, restated, with_acceptance
from specplan.specs.catalog import load_model
from specplan.timing.measured_steps import MeasuredTable, load_measured_table
from specplan.timing.roofline import ridge
from specplan.timing.step_time import LAYERS
from specplan.units import read_number
from specplan.values import formats
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.source import Source

_DOCUMENT: Final = re.compile(r"(.+?\.jsonl?(?:\.gz|\.zst)?)(?::(.*))?")


def load_sources(texts: Sequence[str | Source], kappa: int | None = None, *, models: bool = True) -> list[Source]:
    """Sources as they are written, or as documents measured them (``FILE.json``, ``FILE.json:NAME``, or step records).

    Parameters
    ----------
    texts : sequence of str or Source
    kappa : int, optional
        Draft length of those that fix none.
    models : bool
        Whether to load the models that draft; a name that no file answers to is a draft of one's own where c is given.
    """
    if kappa is not None and kappa < 1:
        raise InputError(f"--num-speculative-tokens {kappa}: must be at least 1")
    found: list[Source] = []
    for text in texts:
        read = [text] if isinstance(text, Source) else _measured(text) or [read_source(text, kappa)]
        found += [with_model(source) for source in read] if models else read
    for i, source in enumerate(found):
        if any(other.title == source.title and other != source for other in found[:i]):
            raise source.wrong(f"two sources are called {source.title!r}; give one another name=...")
    return found


def one_source(text: str | Source, kappa: int | None = None, *, target: Model | None = None) -> Source:
    """The one source that a text stands for, its model loaded; a method's head is made for the target, if one is named.

    A source that states its c needs no model.
    """
    found = load_sources([text], kappa)
    if len(found) > 1:
        raise InputError(f"--source {text}: holds {len(found)} sources; name one: {text}:{found[0].title}")
    source = found[0]
    if target is None or source.is_model or source.c is not None or source.is_weightless:
        return source
    return replace(source, model=head_for(source, target))


def with_model(source: Source) -> Source:
    """The source with the model that drafts, where it has one."""
    if source.kind != "model":
        return source
    try:
        return replace(source, model=load_model(source.name))
    except NotFoundError:
        if source.c is None:
            raise
        return source


def _measured(text: str) -> list[Source]:
    """Sources of a measured document; none where the text names no such file."""
    match = _DOCUMENT.fullmatch(text.strip())
    if match is None:
        return []
    path, wanted = Path(match[1]), match[2]
    if path.suffix.lower() == ".json":
        document = read_json(path, "a JSON document of replay, measure or ingest")
        if isinstance(document, dict) and ("model_type" in document or "architectures" in document):
            return []  # the config of a model
        every = sources_of(document, str(path))
    else:
        every = _of_steps(path)
    if not wanted:
        return [s for s in every if not s.label.endswith(")")] or every
    chosen = [s for s in every if wanted in (s.title, s.text, s.name)]
    if not chosen:  # figures may be stated anew behind the name, or alone
        called, _, keys = wanted.rpartition(":")
        chosen = [s for s in every if called in ("", s.title, s.text, s.name)] if "=" in keys else []
        chosen = [restated(s, keys) for s in chosen]
    if not chosen:
        raise InputError(f"{path}: no source {wanted!r}; it holds {', '.join(s.title for s in every)}")
    return chosen


def _of_steps(path: Path) -> list[Source]:
    """One source for each source and tag of a file of step records."""
    from specplan.records.files import read_steps
    from specplan.records.tally import Tally

    groups: dict[tuple[str, str], list[Any]] = {}
    for step in read_steps(path):
        groups.setdefault((step.source, step.tag), []).append(step)
    if not groups:
        raise InputError(f"{path}: holds no step records")
    return [
        measured_source(
            replace(summarise(Tally.of_steps(steps), source=name, tag=tag), confidence_explains=confidence_of(steps))
        )
        for (name, tag), steps in groups.items()
    ]


def load_tables(named: Sequence[str] | None) -> Mapping[str, MeasuredTable]:
    """Measured tables given as NAME=FILE."""
    found = {}
    for text in named or ():
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise InputError(f"--measured {text!r}: expected NAME=FILE, with the name of the target or of a source")
        found[name] = load_measured_table(Path(path))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The card, the load and the draft length of a command's sources; models and profiles by name."""

    gpu: str | Path | Accelerator
    tp: int
    kv_cache_dtype: str
    layer: str
    engine: str
    batch: int
    context_len: int
    ridge: float | None
    kappa: int
    measured: Sequence[str] = ()
    stepwise: bool = False
    """Whether what is asked prices adaptive verification step by step, so that no one verify factor stands for it."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"--batch {self.batch}: must be at least 1")
        if self.kappa < 1:
            raise InputError(f"--num-speculative-tokens {self.kappa}: the draft length must be at least 1")
        if self.layer not in LAYERS:
            raise InputError(f"--layer {self.layer!r}: one of {', '.join(LAYERS)}")
        if self.ridge is not None and not 0 < self.ridge < float("inf"):
            raise InputError(f"--ridge {self.ridge}: must be finite and above 0")

    @property
    def where(self) -> str:
        """Layer, machine and load, as the first line of what is printed names them."""
        at = f"batch {self.batch}, context {self.context_len:,}"
        return f"times: {self.layer}, {self.engine} on {self.tp} x {told(self.gpu)}, {at}"

    def setting(self, target: Model | None, draft: Model | None = None) -> Setting:
        """Where a source runs: models and card if a target is named, else a ridge, else nothing."""
        if target is None:
            return Setting(ridge=self.ridge)
        pair = Pair(
            target=target,
            accelerator=accelerator_of(self.gpu),
            draft=draft,
            tp=self.tp,
            kv_format=None if self.kv_cache_dtype == "auto" else formats.lookup(self.kv_cache_dtype),
            layer=self.layer,
            engine=self.engine,
            tables=load_tables(self.measured),
        )
        return Setting(pair=pair, ridge=ridge(target, pair.accelerator))

    def placed(self, source: Source, target: Model | None) -> tuple[Placed, Setting]:
        """A source on its target, with what the setting makes of its c and verify factor where it states none."""
        draft = None
        if target is not None:
            source = with_tree(elsewhere(source), self.engine)
        if source.c is None and not source.is_weightless:
            if target is None:
                raise source.wrong("give its cost (c=...) or the target that it drafts for")
            draft = with_model(source).model if source.kind == "model" else head_for(source, target)
        setting = self.setting(target, draft)
        label = target.name if target is not None and draft is not None else ""
        found = placed(source, kappa=self.kappa, c=0.0 if draft is not None else None, target=label)
        if setting.pair is None and setting.ridge is None:
            return found, setting
        if setting.pair is not None:
            found = replace(found, padded=is_padded(setting.pair.machine, replace(source, model=draft)))
        fixed = replace(found, source=replace(found.source, adaptive=None)) if self.stepwise else found
        c, verify = priced(fixed, setting, batch=self.batch, context_len=self.context_len)
        if draft is not None:
            found = replace(found, c=c, c_origin="derived")
        if source.verify is None:
            found = replace(found, verify=verify, verify_origin="derived")
        return found, setting


def scenes(
    place: Place,
    targets: Sequence[str | Path | Model],
    *,
    drafts: Sequence[str],
    sources: Sequence[Source],
    alphas: Sequence[str] = (),
    costs: Sequence[str] = (),
) -> list[Scene]:
    """One scene for each target (or one without), with all sources placed on it."""
    acceptance = dict(_named(text, "--alpha", "") for text in alphas)
    _check_names(acceptance, drafts, [str(told(name)) for name in targets])
    if drafts and not targets:
        raise InputError(f"--draft {drafts[0]}: name the target that it drafts for, or give --source {drafts[0]}:c=...")
    known = {name: read_number(c, f"--cost {name}=", 0.0) for name, c in (_named(t, "--cost") for t in costs)}
    written = [replace(s, c=known[s.name]) if s.c is None and s.name in known else s for s in sources]
    out = []
    for name in targets or (None,):
        target = None if name is None else model_of(name)
        found = [place.placed(_accepting(acceptance, draft, str(told(name))), target) for draft in drafts]
        found += [place.placed(source, target) for source in written]
        free = place.setting(target)
        verify = 1.0
        if free.pair is not None or free.ridge is not None:
            chain = Placed(source=Source(name="plane", kind="free"), kappa=place.kappa, c=0.0)
            verify = priced(chain, free, batch=place.batch, context_len=place.context_len)[1]
        assumptions, not_modeled = price_notes(free)
        assumptions = (*cautions_of(found, target, place.context_len), *assumptions)
        out.append(
            Scene(
                title="" if target is None else target.name,
                verify=verify,
                ridge=free.ridge,
                placed=tuple(found),
                assumptions=assumptions,
                not_modeled=not_modeled,
            )
        )
    return out


def cautions_of(found: Sequence[tuple[Placed, Setting]], target: Model | None, context_len: int) -> tuple[str, ...]:
    """What is to be known of the drafts beside the target, each once."""
    if target is None:
        return ()
    lines: dict[str, None] = {}
    for one, setting in found:
        source = one.source
        if source.model is None and setting.pair is not None and setting.pair.draft is not None:
            source = replace(source, model=setting.pair.draft)
        kappa = one.kappa if source.kappa is not None else None
        lines |= dict.fromkeys(source_cautions(target, source, context_len=context_len, kappa=kappa))
    return tuple(f"caution: {line}" for line in lines)


def _named(text: str, option: str, name: str | None = None) -> tuple[str, str]:
    """``NAME=value``; without a name, `name`."""
    found, equals, value = text.rpartition("=")
    if equals and found:
        return found, value
    if name is None:
        raise InputError(f"{option} {text!r}: write NAME=0.16")
    return name, text


def _accepting(acceptance: Mapping[str, str], draft: str, target: str) -> Source:
    """A draft with the most specific acceptance given: for the pair, the target, the draft, or all."""
    source = read_source(draft)
    for name in (f"{draft}/{target}", target, draft, ""):
        if name in acceptance:
            return with_acceptance(source, acceptance[name], "--alpha")
    return source


def _check_names(acceptance: Mapping[str, str], drafts: Sequence[str], targets: Sequence[str]) -> None:
    known = {"", *drafts, *targets, *(f"{draft}/{target}" for draft in drafts for target in targets)}
    for name in acceptance:
        if name not in known:
            raise InputError(
                f"--alpha {name}=...: no --draft or target of that name; use DRAFT, TARGET or DRAFT/TARGET"
            )
    if acceptance and not drafts:
        raise InputError("--alpha belongs to --draft; write the acceptance of other sources as --source NAME:alpha=...")
