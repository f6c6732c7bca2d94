"""Write ``config_defaults.json``: field defaults of the installed transformers' config classes.

Run by hand after an upgrade of transformers: ``python tests/specs/write_config_defaults.py``. The import of a config
never needs transformers; a test compares the file with the installed version.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[2] / "specplan" / "specs" / "huggingface" / "config_defaults.json"

# What every config class has and no count depends on.
NOISE = frozenset(
    {
        *("transformers_version", "architectures", "output_hidden_states", "return_dict", "dtype"),
        *(
            "chunk_size_feed_forward",
            "id2label",
            "label2id",
            "problem_type",
            "use_cache",
            "pad_token_id",
            "eos_token_id",
        ),
        *("bos_token_id", "sep_token_id", "output_attentions", "rope_parameters", "is_encoder_decoder", "hidden_act"),
        *("hidden_activation", "activation_function", "output_router_logits", "rescale_prenorm_residual"),
        *("residual_in_fp32", "time_step_init_scheme", "scale_attn_weights", "mode", "step_kernel", "chunkwise_kernel"),
        *("sequence_kernel", "decoder_start_token_id", "image_token_id", "use_mamba_kernels", "use_mambapy"),
        *("use_associative_scan", "norm_topk_prob", "scoring_func", "topk_method", "rope_interleave", "init_device"),
    }
)


# Decoders that transformers reaches only through wrappers whose text config may be of any type.
INSIDE_OPEN_WRAPPERS = ("mistral4",)


def text_class(config_class: Any) -> Any:
    """Config class of the decoder inside a wrapper, or None."""
    for name in ("text_config", "llm_config", "language_config", "decoder", "thinker_config"):
        if isinstance((inner := (getattr(config_class, "sub_configs", None) or {}).get(name)), type):
            return inner if getattr(inner, "model_type", "") else None
    return None


def facts(config_class: Any) -> dict[str, Any]:
    """Defaults that are numbers, flags, words or short lists; and which name stands for which."""
    defaults = {}
    for field in dataclasses.fields(config_class):
        value = field.default
        simple = value is None or isinstance(value, bool | int | str)
        simple = simple or (isinstance(value, list | tuple) and all(isinstance(v, bool | int | str) for v in value))
        if field.name not in NOISE and value is not dataclasses.MISSING and simple:
            defaults[field.name] = list(value) if isinstance(value, tuple) else value
    return {"defaults": defaults, "renamed": dict(getattr(config_class, "attribute_map", None) or {})}


def document() -> dict[str, Any]:
    """All causal language models' config classes, the text configs of wrappers, and which wrapper holds which."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    wanted = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *INSIDE_OPEN_WRAPPERS}
    wrappers: dict[str, str] = {}
    open_wrappers = []
    for name in CONFIG_MAPPING_NAMES:
        try:
            config_class = CONFIG_MAPPING[name]
        except (ImportError, AttributeError, KeyError):
            continue
        if "AutoConfig" in str((getattr(config_class, "sub_configs", None) or {}).get("text_config")):
            open_wrappers.append(name)
        inner = text_class(config_class)
        if inner is not None and dataclasses.is_dataclass(inner) and inner.model_type != name:
            wrappers[name] = inner.model_type
            if inner.model_type in CONFIG_MAPPING_NAMES:
                wanted.add(inner.model_type)
    types = {name: facts(CONFIG_MAPPING[name]) for name in sorted(wanted)}
    return {
        "source": f"configuration classes of transformers {transformers.__version__} (Apache-2.0)",
        "causal_lm": sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        "wrappers": dict(sorted(wrappers.items())),
        "open_wrappers": sorted(open_wrappers),
        "types": types,
    }


def text_of(found: dict[str, Any]) -> str:
    """JSON with one model type a line."""
    rows = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in found["types"].items())
    head = {k: v for k, v in found.items() if k != "types"}
    lines = [f" {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in head.items()]
    return "{\n" + ",\n".join(lines) + ',\n "types": {\n' + rows + "\n }\n}\n"


if __name__ == "__main__":
    TARGET.write_text(text_of(document()), "utf-8")
