"""A Hugging Face ``config.json`` becomes a model."""

import dataclasses
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specplan.errors import InputError, UnsupportedError
from specplan.files.documents import json_object
from specplan.files.reading import read_text
from specplan.specs.huggingface.draft_registry import DRAFT_METHODS, draft_method
from specplan.specs.huggingface.drafts import build_draft, mtp_draft
from specplan.specs.huggingface.families import FAMILIES, REFUSED, Family
from specplan.specs.huggingface.fields import Fields, recorded, served_classes
from specplan.specs.huggingface.likeness import alike
from specplan.specs.huggingface.module_formats import apply_quantization
from specplan.specs.huggingface.quantization import read_quantization
from specplan.specs.huggingface.unread import unread_fields
from specplan.values.formats import NumberFormat, lookup
from specplan.values.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A model read from a config.

    Attributes
    ----------
    model : Model
    assumptions : tuple of str
        What the config does not say and was taken from elsewhere.
    model_type : str
        The decoder's type, which chose the row of the table.
    wrapper : str
        Type of the multimodal config around it; empty where there is none.
    """

    model: Model
    assumptions: tuple[str, ...] = ()
    model_type: str = ""
    wrapper: str = ""


_NESTED: Final = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "lm_config",
    "text_model_config",
    "language_model_config",
    "language_model",
    "text_model",
    "llm",
)


def find_text_config(config: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], str, bool]:
    """The decoder's fields inside a config, where they stand, and whether they are nested in a wrapper."""
    outer = config
    for _ in range(4):
        inner = next((config[name] for name in _NESTED if isinstance(config.get(name), dict)), None)
        if inner is None or ("hidden_size" in config and "hidden_size" not in inner):
            break
        name = next(name for name in _NESTED if config.get(name) is inner)
        where = f"{where} ({name})"
        config = inner
    if config is outer:
        return config, where, False
    # What wrappers state once for all. The decoder's own field wins, but for the head: the wrapper owns it.
    common = {k: outer[k] for k in ("dtype", "torch_dtype", "quantization_config") if k in outer}
    own = {k: v for k, v in config.items() if v is not None or k not in common}
    head = {k: outer[k] for k in ("tie_word_embeddings",) if outer.get(k) is not None}
    return {**common, **own, **head}, where, True


def _model_type(config: Mapping[str, Any], outer: Mapping[str, Any], where: str) -> str:
    """Type of the decoder: its own, or the one that a wrapper's type implies for its text."""
    stated = (config.get("text_model_type"), config.get("model_type"), outer.get("model_type"))
    found = next((value for value in stated if isinstance(value, str) and value), None)
    if found is None:
        raise InputError(f"{where}: field 'model_type' is missing; it says which architecture the sizes describe")
    wrappers = recorded()["wrappers"]
    while found not in FAMILIES and found in wrappers:
        found = wrappers[found]
    if found in FAMILIES or found in REFUSED:
        return found
    names = outer.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    return served_classes().get(name, found)


def _family(model_type: str, where: str, assume: str | None) -> tuple[Family, str] | None:
    """Row that counts the type, and its name; None for a type that nothing is known of."""
    wanted = assume or model_type
    if wanted in FAMILIES:
        return FAMILIES[wanted], wanted
    if wanted in REFUSED:
        raise UnsupportedError(f"{where}: model_type {wanted!r} cannot be counted: {REFUSED[wanted]}")
    if assume:
        near = difflib.get_close_matches(wanted, FAMILIES, n=3, cutoff=0.5)
        hint = f"the closest known are {', '.join(near)}" if near else "see: specplan architectures"
        raise UnsupportedError(f"{where}: --assume {wanted!r} is no known model_type; {hint}")
    return None


def _unknown(config: Mapping[str, Any], model_type: str, where: str) -> UnsupportedError:
    """Refusal of an unknown type, with the known types that its structure fits and what each would count."""
    found = alike(lambda known: import_config(config, where, assume=known).model, model_type)
    if found:
        fits = "; ".join(
            f"as {', '.join(kind.names[:4])}{', ...' if len(kind.names) > 4 else ''} ({kind.params:,} parameters)"
            for kind in found[:3]
        )
        words = f"every structural field of it is read {fits}. If it equals one of them: specplan import --assume "
        words += found[0].names[0]
    else:
        words = "no known type reads every structural field of it. Write a spec by hand (start from "
        words += "model_specs/llama3-8b.yaml)"
    return UnsupportedError(f"{where}: model_type {model_type!r} is not known; {words}")


def import_config(
    config: Mapping[str, Any],
    where: str = "config.json",
    *,
    name: str = "",
    assume: str | None = None,
    beside: Mapping[str, Any] | None = None,
    allow_unread: bool = False,
) -> Imported:
    """Model that a parsed ``config.json`` describes.

    Parameters
    ----------
    config : mapping
        The parsed file.
    where : str
        What to call it in errors.
    name : str
        Name of the model; the config's ``_name_or_path`` or its type if empty.
    assume : str, optional
        Count it as this ``model_type``, whatever it says it is.
    beside : mapping, optional
        The parsed ``hf_quant_config.json`` beside the config, where there is one.
    allow_unread : bool
        Count a config with fields that may change the counts and are not understood, and say so.

    Raises
    ------
    InputError
        One line that names the field.
    UnsupportedError
        When the architecture cannot be counted exactly.

    Examples
    --------
    >>> found = import_config({"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
    ...     "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
    ...     "tie_word_embeddings": True, "torch_dtype": "bfloat16"})
    >>> from specplan.formulas.parameters import resident_params
    >>> resident_params(found.model)
    1235814400
    """
    inner, at, nested = find_text_config(config, where)
    method = assume if assume in DRAFT_METHODS else draft_method(config)
    if method:
        return _import_draft(config, where, method, name, allow_unread=allow_unread)
    if assume is None and str(config.get("model_type")) in REFUSED:
        _family(str(config["model_type"]), at, None)
    stated = _model_type(inner, config, at)
    row = _family(stated, at, assume)
    if row is None:
        raise _unknown(config, stated, at)
    family, model_type = row
    f = Fields(
        inner,
        model_type,
        at,
        nested=nested or stated != inner.get("model_type"),
        defaults=family.defaults,
        like=family.like,
    )
    if f.flag("add_cross_attention"):
        raise UnsupportedError(f"{at}: cross-attention (add_cross_attention) cannot be counted")
    parts = family.build(f)
    stated_tie = f.flag("tie_word_embeddings")
    tied = stated_tie if parts.tied is None else parts.tied
    model = Model(
        name=name or str(config.get("_name_or_path") or model_type),
        source=where,
        hidden_size=f.hidden,
        vocab_size=parts.vocab_size or f.count("vocab_size"),
        tied_embeddings=tied,
        layers=parts.layers,
        weight_format=_weight_format(f),
        final_norm_vectors=parts.final_norm_vectors,
        extra=parts.extra,
        embedding_size=parts.embedding_size,
        head_vocab_size=parts.head_vocab_size,
        max_position=_max_position(f),
        mtp_layers=parts.mtp_layers,
        model_type=model_type,
    )
    _account_for(f, config, allow_unread)
    quantization = read_quantization(f, {**config, **inner}, beside)
    if quantization is not None:
        model = apply_quantization(model, quantization, f)
    if assume:
        f.assumptions.insert(0, f"counted as {assume}, though it says {stated}")
    wrapper = str(config.get("model_type", "")) if config.get("model_type") != stated else ""
    model = dataclasses.replace(model, assumptions=tuple(f.assumptions))
    return Imported(model=model, assumptions=tuple(f.assumptions), model_type=model_type, wrapper=wrapper)


def _account_for(f: Fields, config: Mapping[str, Any], allow_unread: bool) -> None:
    """Refuse a config with fields that are not understood, or say how many there are."""
    found = unread_fields(f, config)
    if not found:
        return
    named = ", ".join(f"{n} = {_short(f, config, n)}" for n in found[:6]) + (", ..." if len(found) > 6 else "")
    some = "1 field that is" if len(found) == 1 else f"{len(found)} fields that are"
    if not allow_unread:
        raise UnsupportedError(
            f"{f.where}: {some} not understood and may change the counts: {named}; to count without "
            f"{'it' if len(found) == 1 else 'them'}: specplan import --allow-unread"
        )
    f.assumptions.insert(0, f"counted without {some} not understood: {named}")


def _short(f: Fields, config: Mapping[str, Any], name: str) -> str:
    block, _, field = name.rpartition(".")
    fields = f.blocks.get(block, {}) if block else {**config, **f.config}
    return json.dumps(fields.get(field))[:40]


def _import_draft(
    config: Mapping[str, Any], where: str, method: str, name: str, *, allow_unread: bool = False
) -> Imported:
    """Draft head that runs on its target's hidden states."""
    if method == "mtp":
        target = import_config({**config, "architectures": []}, where, name=name, allow_unread=allow_unread)
        return dataclasses.replace(target, model=mtp_draft(target.model))
    inner, at, nested = find_text_config(config, where)
    layer = config.get("transformer_layer_config")
    if isinstance(layer, dict):  # the "speculators" form: the decoder layer's fields in a block of their own
        inner, at, nested = {**inner, **layer}, f"{where} (transformer_layer_config)", True
    base = str(inner.get("model_type") or "")
    known = base if base in FAMILIES else {"dflash": "qwen3"}.get(method, "llama")
    f = Fields(inner, known, at, nested=nested, like=FAMILIES[known].like, defaults=FAMILIES[known].defaults)
    model = build_draft(f, method, FAMILIES[known].build)
    f.names |= _DRAFT_FIELDS
    f.names_inside = _DRAFT_FIELDS
    _account_for(f, config, allow_unread)
    model = dataclasses.replace(
        model,
        name=name or str(config.get("_name_or_path") or method),
        source=where,
        weight_format=_weight_format(f),
        max_position=_max_position(f),
        model_type=base,
    )
    quantization = read_quantization(f, config, None)
    if quantization is not None:
        model = apply_quantization(model, quantization, f)
    model = dataclasses.replace(model, assumptions=tuple(f.assumptions))
    return Imported(model=model, assumptions=tuple(f.assumptions), model_type=base)


def _max_position(f: Fields) -> int | None:
    """Longest context that the config itself states; a class's default would say nothing about the model."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length", "seq_length", "n_ctx"):
        value = f.config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40:
            return value
    return None


def _weight_format(f: Fields) -> NumberFormat:
    stated = f.config.get("dtype") or f.config.get("torch_dtype")
    if isinstance(stated, str) and stated != "auto":
        try:
            return lookup(stated)
        except InputError as error:
            raise InputError(f"{f.where}: field 'dtype': {error}") from None
    f.assume("weights are bfloat16 (the config states no dtype)")
    return lookup("bfloat16")


_DRAFT_FIELDS: Final = frozenset({
    "selector_top_k", "causal", "pure_draft_prefix_len", "shift_label", "add_swa_attention_sink_bias",
    "block_size", "num_anchors", "dflash_config", "eagle_config", "num_target_layers", "target_layer_count",
    "n_predict", "sample_from_anchor", "num_lookahead_tokens", "scale_input", "max_window_layers", "draft_tokens",
    "aux_hidden_state_layer_ids", "norm_before_residual", "verifier", "target_model_type", "num_speculative_tokens",
    "ttt_length", "parallel_drafting", "num_depths", "layer_types",
})  # fmt: skip
"""Fields of drafts that say how they are used."""


def read_config(path: Path, *, assume: str | None = None, allow_unread: bool = False) -> Imported:
    """Model in the ``config.json`` at `path`."""
    config = json_object(read_text(path, "a Hugging Face config (JSON)"), str(path), nan="keep")
    name = path.parent.name if path.name == "config.json" else path.stem
    quant = path.with_name("hf_quant_config.json")
    beside = json_object(read_text(quant, "ModelOpt's quantisation (JSON)"), str(quant)) if quant.is_file() else None
    return import_config(
        config, str(path), name=name or path.stem, assume=assume, beside=beside, allow_unread=allow_unread
    )
