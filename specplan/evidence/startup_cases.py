"""Start-ups from a file of rows, made ready to be predicted: the model by its published name, the card by the phrase.

Two forms are read: rows of public logs (``observed`` with ``kv_gib``, ``weights_gib``, ...; engine versions and cards
in the words of their source) and rows of one machine (``available_kv_gib``, ``device_total_gib``, ...). What a source
leaves open is inferred, and each inference is named.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from specplan.decide.startup_log import card_called
from specplan.errors import InputError, NotFoundError
from specplan.files.documents import parse_json
from specplan.files.reading import read_text
from specplan.memory.sglang import DEFAULT_VERSION as SGLANG_VERSION
from specplan.memory.speculative import Speculation, parse_speculative_config
from specplan.memory.vllm import VllmFlags, with_encoder_budget
from specplan.specs.catalog import load_model
from specplan.specs.hardware import card_in
from specplan.specs.served import STORAGE, Served, served
from specplan.units import GIB
from specplan.values.hardware import Accelerator
from specplan.values.model import Model
from specplan.values.vllm_versions import DEFAULT_VERSION

RENAMED: Final = {
    "available_kv_gib": "kv_gib", "device_total_gib": "total_gpu_gib", "num_gpu_blocks": "blocks",
    "requested_gib": "budget_gib", "cuda_graph_estimated_gib": "cudagraph_estimate_gib",
    "free_at_start_gib": "initial_free_gib",
}  # fmt: skip
"""Figures of the second form -> their names in the first."""


SMALLEST_GIB: Final = 4.0
"""A phrase about a card that names less than this speaks of something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One start-up, ready to be predicted.

    Attributes
    ----------
    raw : mapping
        The row, its observed figures under the first form's names.
    model, draft : Model or None
        With towers; the draft or head.
    card : Accelerator or None
        None where the source names none.
    flags : VllmFlags or None
        None for SGLang.
    speculation : Speculation or None
    notes, hand_set : tuple of str
        What was inferred; settings that a person chose for the row.
    fitted : bool
        Whether constants were fitted to it.
    check : mapping
        What a person found out about a shipped row: an explanation, what not to compare.
    """

    raw: Mapping[str, Any]
    model: Model
    card: Accelerator | None
    flags: VllmFlags | None
    speculation: Speculation | None = None
    draft: Model | None = None
    notes: tuple[str, ...] = ()
    hand_set: tuple[str, ...] = ()
    fitted: bool = False
    check: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seen(self) -> Mapping[str, Any]:
        """What the log printed."""
        found: Mapping[str, Any] = self.raw["observed"]
        return found


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a file of either form.

    Raises
    ------
    InputError
        When the file holds no list of rows with ``id``, ``engine``, ``model`` and ``observed``.
    """
    return rows_in(parse_json(read_text(path, "rows of start-ups (JSON)"), str(path)), str(path))


def rows_in(document: Any, path: str) -> list[dict[str, Any]]:
    """Rows of a parsed file of either form."""
    rows = document.get("cases", document.get("rows")) if isinstance(document, Mapping) else document
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{path}: expected an object with a list 'cases' of start-ups, as in kv_cases or vllm_startup")
    out = []
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping) or not isinstance(row.get("observed"), Mapping) or "engine" not in row:
            raise InputError(f"{path}: row {i + 1} needs at least 'id', 'engine', 'model' and an object 'observed'")
        seen = {RENAMED.get(name, name): value for name, value in row["observed"].items() if value is not None}
        shown = {"id": f"row {i + 1}", **{k: v for k, v in row.items() if v is not None}, "observed": seen}
        if row.get("speculative_config") and "spec_config" not in shown:
            shown["spec_config"] = row["speculative_config"]
        out.append(shown)
    return out


def case_of(raw: Mapping[str, Any]) -> Case:
    """A row as a case.

    Raises
    ------
    InputError, NotFoundError
        When its model is not known, or a setting cannot be read.
    """
    if not isinstance(raw.get("model"), str):
        raise InputError("the source names no model")
    notes: list[str] = []
    target = _target(raw)
    notes += target.notes
    card = _card(raw, notes)
    if str(raw["engine"]).startswith("sglang"):
        return Case(
            raw=raw, model=target.whole, card=card, flags=None, notes=tuple(notes), fitted=bool(raw.get("fitted"))
        )
    speculation, draft = _speculation(raw, notes)
    flags = _flags(raw, notes)
    tower = target.tower
    if tower is not None and tower.image_tokens is not None and not flags.language_model_only:
        # The budget of the encoder follows the batch, which follows the card.
        some = card or card_called("h100-sxm", None)
        flags = with_encoder_budget(flags, some, tower.image_tokens, tower.image_values, tower.peak_numbers)
    stated = raw.get("gpu_memory_utilization") is not None and raw.get("tp") is not None
    return Case(
        raw=raw,
        model=target.whole,
        card=card,
        flags=flags,
        speculation=speculation,
        draft=draft,
        notes=tuple(notes),
        fitted=bool(raw.get("fitted")),
        check={} if stated else {"no_flags": "the source does not state utilisation and ranks"},
    )


def _target(raw: Mapping[str, Any]) -> Served:
    """The model, with what stands in brackets behind its name as endings: ``Qwen3.8-27B (AutoRound int4)``."""
    name = str(raw["model"]).strip()
    inside = " ".join(re.findall(r"\(([^)]*)\)", name))
    bare = re.sub(r"\s*\([^)]*\)", "", name).strip()
    if not bare:  # "(Qwen2.5-0.5B class)"
        bare = re.sub(r"\s+class$", "", inside).strip()
        inside = ""
    said = re.findall(r"w\d+a\d+|[a-z]+\d*", f"{inside} {raw.get('quantization') or ''}".lower())
    endings = [word for word in dict.fromkeys(said) if word in STORAGE]
    try:
        found = served(bare)
    except NotFoundError:
        bare = bare.split(" ")[0]
        found = served(bare)
    if endings and found.model.quantization is None:
        return served(bare + "".join(f"-{word}" for word in endings))
    return found


def version_in(text: object, engine: str) -> tuple[str, bool]:
    """The version that a phrase names, and whether it had to be guessed.

    >>> version_in("~0.19 (2026-04)", "vllm"), version_in("0.8.x (V0)", "vllm"), version_in(None, "vllm")
    (('0.19', False), ('0.8', False), ('0.32.0', True))
    """
    default = SGLANG_VERSION if engine == "sglang" else DEFAULT_VERSION
    found = re.search(r"\d+\.\d+(?:\.\d+)*(?:rc\d+)?(?:\.dev\d+)?", str(text or ""))
    if found is None or found[0].startswith("0.0"):
        return default, True
    return found[0], False


def _card(raw: Mapping[str, Any], notes: list[str]) -> Accelerator | None:
    text = str(raw.get("gpu") or "")
    total = raw["observed"].get("total_gpu_gib")
    printed = re.search(r"([\d.]+)\s*GiB", text)
    if total is None and printed is not None and float(printed[1]) >= SMALLEST_GIB:
        total = float(printed[1])
    card = card_in(text)
    if card is None:
        return None if total is None else card_called(None, total * GIB)
    notes += [f"card {card.name}, from {text!r}"] if card.name not in text.lower() else []
    return card if total is None else replace(card, memory_torch_bytes=total * GIB)


def _flags(raw: Mapping[str, Any], notes: list[str]) -> VllmFlags:
    version, guessed = version_in(raw.get("engine_version"), "vllm")
    if guessed:
        notes.append(f"version {version} (not printed)")
    known: dict[str, Any] = {"version": version, "tp": raw.get("tp") or 1, "pp": raw.get("pp") or 1}
    for name in (
        "dtype", "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
        "kv_cache_dtype", "enable_prefix_caching", "enforce_eager", "dcp", "block_size", "language_model_only",
        "enable_expert_parallel", "state_cache", "state_dtype", "custom_all_reduce",
    ):  # fmt: skip
        if raw.get(name) is not None:
            known["expert_parallel" if name == "enable_expert_parallel" else name] = raw[name]
    if "enforce_eager" in str(raw.get("notes") or ""):
        known["enforce_eager"] = True
    return VllmFlags(**known)


def _speculation(raw: Mapping[str, Any], notes: list[str]) -> tuple[Speculation | None, Model | None]:
    config = raw.get("spec_config")
    if not isinstance(config, Mapping) or not config:
        return None, None
    given = {k: v for k, v in config.items() if v is not None}
    method = str(given.get("method", ""))
    if method and "num_speculative_tokens" not in given and method not in ("suffix",):
        notes.append("3 drafted tokens (not printed)")
        given["num_speculative_tokens"] = 3
    known = {k: v for k, v in given.items() if k in ("method", "model", "num_speculative_tokens", "kv_cache_dtype")}
    speculation = parse_speculative_config(known, tp=raw.get("tp") or 1, mtp_modules=0)
    if speculation.method == "mtp" and speculation.model in (None, raw["model"]):
        return replace(speculation, model=None), None
    if not speculation.has_draft_model or speculation.model is None:
        return speculation, None
    try:
        return speculation, load_model(speculation.model)
    except NotFoundError:
        if speculation.method == "mtp":
            return speculation, None  # an assistant whose config is not at hand
        raise
