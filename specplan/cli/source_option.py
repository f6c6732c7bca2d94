"""Draft sources as the options of `plane`, `tune` and `tie` name them: models and cards are loaded here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from specplan.decide.measured import MeasuredSource, summarise
from specplan.decide.plane import Scene
from specplan.decide.pricing import LAYERS, Pair, Setting, price_notes, priced, prices
from specplan.decide.source import DraftSource, check_source
from specplan.decide.source_text import (
    SourceText,
    measured_rows,
    measured_source,
    read_acceptances,
    read_number,
    read_source,
)
from specplan.decide.step_source import eagle_head, mtp_head
from specplan.errors import InputError
from specplan.files.reading import read_text
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.values import formats
from specplan.values.model import Model

HEADS: Final = {"eagle": eagle_head, "eagle3": eagle_head, "mtp": mtp_head}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The card, the load and the draft length of a command's sources; models and profiles by name."""

    gpu: str
    tp: int
    kv_cache_dtype: str
    layer: str
    engine: str
    batch: int
    context_len: int
    ridge: float | None
    kappa: int

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"--batch {self.batch}: must be at least 1")
        if self.kappa < 1:
            raise InputError(f"--num-speculative-tokens {self.kappa}: the draft length must be at least 1")
        if self.layer not in LAYERS:
            raise InputError(f"--layer {self.layer!r}: one of {', '.join(LAYERS)}")
        if self.ridge is not None and not 0 < self.ridge < float("inf"):
            raise InputError(f"--ridge {self.ridge}: must be finite and above 0")

    def setting(self, target: Model | None, draft: Model | None = None) -> Setting:
        """Where a source runs: models and card if a target is named, else a ridge, else nothing."""
        if target is None:
            return Setting(ridge=self.ridge)
        pair = Pair(
            target=target,
            accelerator=load_accelerator(self.gpu),
            draft=draft,
            tp=self.tp,
            kv_format=None if self.kv_cache_dtype == "auto" else formats.lookup(self.kv_cache_dtype),
            layer=self.layer,
            engine=self.engine,
        )
        ridge = prices(pair, positions=1, batch=self.batch, context_len=self.context_len).ridge
        return Setting(pair=pair, ridge=ridge)

    def placed(self, source: DraftSource, setting: Setting, *, keep_verify: bool = False) -> DraftSource:
        """The source with the c and the verify factor of its setting."""
        if setting.pair is None and setting.ridge is None:
            return source
        c, verify = priced(source, setting, batch=self.batch, context_len=self.context_len)
        if setting.pair is not None and setting.pair.draft is not None:
            source = replace(source, c=c, c_origin="derived")
        return check_source(source if keep_verify else replace(source, verify=verify, verify_origin="derived"))


def draft_model(text: SourceText, target: Model | None) -> Model | None:
    """The model behind a written source: a head made for the target, a named model, or None where c is known."""
    if text.is_weightless or "c" in text.given:
        return None
    if target is None:
        raise InputError(f"source {text.name!r}: give its cost (c=...) or the target that it drafts for")
    return HEADS[text.name](target) if text.name in HEADS else load_model(text.name)


def one_source(place: Place, text: SourceText, target: Model | None) -> tuple[DraftSource, Setting]:
    """A written source on its target."""
    draft = draft_model(text, target)
    setting = place.setting(target, draft)
    label = target.name if target is not None and draft is not None else ""
    source = text.source(kappa=place.kappa, c=0.0 if draft is not None else None, target=label)
    return place.placed(source, setting, keep_verify="verify" in text.given), setting


def scenes(
    place: Place,
    targets: Sequence[str],
    *,
    drafts: Sequence[str],
    sources: Sequence[str],
    points: Sequence[str] = (),
    alphas: Sequence[str] = (),
    costs: Sequence[str] = (),
) -> list[Scene]:
    """One scene for each target (or one without), with all sources placed on it."""
    acceptance = read_acceptances(alphas)
    _check_names(acceptance, drafts, targets)
    if drafts and not targets:
        raise InputError(f"--draft {drafts[0]}: name the target that it drafts for, or give --source {drafts[0]}:c=...")
    written = [read_source(text) for text in sources]
    measured = [row for path in points for row in measured_file(Path(path))]
    known_costs = {name: read_number(value, f"--cost {name}=", 0.0) for name, value in map(_named, costs)}
    out = []
    for name in targets or (None,):
        target = None if name is None else load_model(name)
        placed = [
            one_source(place, SourceText(name=draft, given=_acceptance(acceptance, draft, str(name))), target)
            for draft in drafts
        ]
        placed += [one_source(place, text, target) for text in written]
        derived = {draft: source.c for draft, (source, _) in zip(drafts, placed, strict=False)}
        free = place.setting(target)
        for row in measured:
            source = measured_source(row, kappa=place.kappa, costs={**derived, **known_costs})
            placed.append((place.placed(source, free), free))
        verify = 1.0
        if free.pair is not None or free.ridge is not None:
            chain = DraftSource(name="plane", kappa=place.kappa, c=0.0)
            verify = priced(chain, free, batch=place.batch, context_len=place.context_len)[1]
        assumptions, not_modeled = price_notes(free)
        out.append(
            Scene(
                title="" if target is None else target.name,
                verify=verify,
                ridge=free.ridge,
                placed=tuple(placed),
                assumptions=assumptions,
                not_modeled=not_modeled,
            )
        )
    return out


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not equals or not name:
        raise InputError(f"--cost {text!r}: write NAME=0.16")
    return name, value


def _acceptance(acceptance: Mapping[str, dict[str, Any]], draft: str, target: str) -> dict[str, Any]:
    """The most specific acceptance given: for the pair, the target, the draft, or all."""
    for name in (f"{draft}/{target}", target, draft, ""):
        if name in acceptance:
            return acceptance[name]
    return {}


def _check_names(acceptance: Mapping[str, Any], drafts: Sequence[str], targets: Sequence[str]) -> None:
    known = {"", *drafts, *targets, *(f"{draft}/{target}" for draft in drafts for target in targets)}
    for name in acceptance:
        if name not in known:
            raise InputError(
                f"--alpha {name}=...: no --draft or target of that name; use DRAFT, TARGET or DRAFT/TARGET"
            )
    if acceptance and not drafts:
        raise InputError("--alpha belongs to --draft; write the acceptance of other sources as --source NAME:alpha=...")


def measured_file(path: Path) -> list[MeasuredSource]:
    """Measured sources of a JSON document, or of a file of step records (one summary per source and tag)."""
    import json

    if path.suffix.lower() == ".json":
        text = read_text(path, "a JSON document of replay, measure or ingest")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: not JSON: {error}") from None
        return measured_rows(document, str(path))
    from specplan.records.files import read_steps
    from specplan.records.tally import Tally

    groups: dict[tuple[str, str], list[Any]] = {}
    for step in read_steps(path):
        groups.setdefault((step.source, step.tag), []).append(step)
    if not groups:
        raise InputError(f"{path}: holds no step records")
    return [summarise(Tally.of_steps(steps), source=name, tag=tag) for (name, tag), steps in groups.items()]


def picture_width(width: float | None) -> float | None:
    """A width in inches that a picture can be drawn at, or None for its own."""
    if width is not None and not 6 <= width <= 40:
        raise InputError(f"--width {width:g}: a picture is 6 to 40 inches wide")
    return width
