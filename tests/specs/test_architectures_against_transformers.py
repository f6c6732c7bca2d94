"""The referee: transformers builds each causal language model without weights, and every parameter is counted there."""

import json
import os
import random
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from specplan.errors import SpecplanError, UnsupportedError
from specplan.formulas.parameters import elementwise_params, gathered_params, resident_params, streamed_params
from specplan.specs.huggingface.config import import_config
from specplan.specs.huggingface.families import FAMILIES, REFUSED
from specplan.specs.huggingface.fields import recorded

os.environ.setdefault("OMP_NUM_THREADS", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

from transformers import AutoModelForCausalLM  # noqa: E402 - after the check that it is installed
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402 - likewise
from transformers.pytorch_utils import Conv1D  # noqa: E402 - likewise

pytestmark = pytest.mark.transformers
DATA = Path(__file__).parents[1] / "data"
CAUSAL = recorded()["causal_lm"]

# What wrappers build beside the decoder that their text config describes.
_OUTSIDE = re.compile(r"vision|visual|audio|multi_modal|image_embed|whisper|adaptor|projector\.|\bencoder\.")


# Decoders that transformers reaches only through a wrapper's text config.
_OWN_CLASSES = {"mistral4": "Mistral4ForCausalLM"}


def build(model_type: str, **fields: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = CONFIG_MAPPING[model_type](**fields)
        with torch.device("meta"):
            own = _OWN_CLASSES.get(model_type)
            return AutoModelForCausalLM.from_config(config) if own is None else getattr(transformers, own)(config)


def config_of(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    return found


def structural_split(model: Any) -> Counter[str]:
    """Parameters by how a forward pass touches them, from the modules alone: nothing of specplan's tables.

    A table in an `Embedding` is gathered, unless the output head is the same matrix. A linear layer's weight is
    streamed. Vectors, kernels of convolutions and biases are elementwise; other matrices take part in a matrix product.
    """
    owner = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owner.setdefault(id(parameter), module)
    head = model.get_output_embeddings()
    tied = None if head is None else id(head.weight)
    split: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        if _OUTSIDE.search(name):
            continue
        module = owner[id(parameter)]
        last = name.rpartition(".")[2]
        flat = parameter.dim() <= 1 or sum(side > 1 for side in parameter.shape) <= 1
        if isinstance(module, torch.nn.Embedding):
            split["streamed" if id(parameter) == tied else "gathered"] += parameter.numel()
        elif last == "weight" and isinstance(module, (torch.nn.Linear, Conv1D)):
            split["streamed"] += parameter.numel()
        elif (
            flat
            or "Norm" in type(module).__name__
            or last == "D"
            or last.endswith(("bias", "A_log", "decay"))
            or isinstance(module, torch.nn.Conv1d)
        ):
            split["elementwise"] += parameter.numel()
        else:
            split["streamed"] += parameter.numel()
    return split


# transformers allocates gate and up matrices for LongCat's idle experts too, which no checkpoint holds (it publishes
# 560 B): the difference must be exactly those.
def idle_expert_params(config: dict[str, Any]) -> int:
    if config["model_type"] != "longcat_flash":
        return 0
    width = 2 * config["expert_ffn_hidden_size"] * config["hidden_size"]
    return int(config["zero_expert_num"] * width * config["num_layers"])


@pytest.fixture(scope="module")
def built() -> dict[str, Any]:
    found = {}
    for model_type in CAUSAL:
        try:
            model = build(model_type)
        except Exception:  # noqa: S112 - some default configs cannot be built by transformers itself
            continue
        found[model_type] = (config_of(model), structural_split(model))
    return found


def compare(config: dict[str, Any], split: Counter[str]) -> dict[str, tuple[float, float]]:
    """Figures that differ: name -> (specplan's, structural)."""
    model = import_config(config, config["model_type"]).model
    idle = idle_expert_params(config)
    pairs = {
        "total": (resident_params(model) + idle, split.total()),
        "streamed": (streamed_params(model, 1e12) + idle, split["streamed"]),
        "gathered": (gathered_params(model), split["gathered"]),
        "elementwise": (elementwise_params(model), split["elementwise"]),
    }
    return {name: pair for name, pair in pairs.items() if abs(pair[0] - pair[1]) > 0.5}


def test_transformers_builds_nearly_every_entry(built: dict[str, Any]) -> None:
    assert len(built) >= 175


def test_every_buildable_entry_is_exact_or_refused_by_name(built: dict[str, Any]) -> None:
    wrong = {}
    refused = {}
    for model_type, (config, split) in built.items():
        try:
            difference = compare(config, split)
        except UnsupportedError as error:
            refused[model_type] = str(error)
            continue
        if difference:
            wrong[model_type] = difference
    assert wrong == {}
    assert {t for t, message in refused.items() if t not in message or REFUSED[t] not in message} == set()
    assert len(built) - len(refused) >= 135


def test_served_architectures_are_all_exact(built: dict[str, Any]) -> None:
    lists = json.loads((DATA / "served_architectures.json").read_text())
    served = [t for t in lists["served"] if t in built]
    assert len(served) >= 78
    assert {t: compare(*built[t]) for t in served if compare(*built[t])} == {}
    others = [t for t in lists["other_decoders"] if t in built and t not in REFUSED]
    assert len([t for t in others if not compare(*built[t])]) >= 38


def test_types_whose_default_cannot_be_built_are_exact_with_the_missing_fields() -> None:
    fields: dict[str, dict[str, Any]] = {
        "nemotron": {"num_key_value_heads": 8, "num_hidden_layers": 4},
        "ministral": {"num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 4},
        "hunyuan_v1_dense": {"num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 4},
        "hunyuan_v1_moe": {
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_hidden_layers": 2,
            "num_experts": 8,
            "moe_topk": 2,
        },
        "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 3, "num_hidden_layers": 6},
        "dots1": {"n_routed_experts": 16, "n_shared_experts": 2, "num_experts_per_tok": 4, "num_hidden_layers": 4},
        "qwen4_exp_text": {
            "num_hidden_layers": 8,
            "num_experts": 16,
            "indexer_n_heads": 4,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 256,
            "indexer_budget": 64,
            "indexer_compress_ratio": 4,
            "ple_layer_ids": [2, 5],
            "ngram_vocab_size_base": 1000,
            "eos_token_id": 1,
            "output_gate_type": "sigmoid",
        },
    }
    for model_type, chosen in fields.items():
        model = build(model_type, **chosen)
        assert compare(config_of(model), structural_split(model)) == {}, model_type


def test_shipped_configs_are_exact() -> None:
    rows = json.loads((DATA / "published_configs.json").read_text())["models"]
    checked = 0
    for name, row in rows.items():
        model_type = row["config"].get("text_model_type") or row["config"]["model_type"]
        if model_type not in CAUSAL:
            continue
        fields = {
            k: v for k, v in row["config"].items() if k not in ("model_type", "quantization_config", "quantization")
        }
        try:
            model = build(model_type, **fields)
        except Exception:  # noqa: S112 - extracts of configs that transformers cannot build from
            continue
        split = structural_split(model)
        counted = import_config(row["config"], name).model
        assert resident_params(counted) == split.total(), name
        assert abs(streamed_params(counted, 1e12) - split["streamed"]) < 1, name
        checked += 1
    assert checked >= 80


def test_recorded_defaults_are_those_of_the_installed_transformers() -> None:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("write_config_defaults", Path(__file__).with_name("write_config_defaults.py"))
    assert spec is not None
    assert spec.loader is not None
    writer = module_from_spec(spec)
    spec.loader.exec_module(writer)
    if transformers.__version__ not in recorded()["source"]:
        pytest.skip(
            "another version of transformers is installed; run tests/specs/write_config_defaults.py to record it"
        )
    assert json.loads(writer.text_of(writer.document())) == recorded()


@pytest.mark.parametrize(
    "model_type", ["llama", "qwen3_moe", "deepseek_v3", "qwen3_5_text", "gemma4_text", "nemotron_h"]
)
def test_flipped_flags_and_sizes_stay_exact(model_type: str) -> None:
    assert variants(model_type, small=True) == {}


@pytest.mark.slow
def test_flipped_flags_and_sizes_stay_exact_for_every_architecture() -> None:
    wrong = {t: found for t in sorted(set(FAMILIES) & set(CAUSAL)) if (found := variants(t, small=False))}
    for known in _KNOWN_VARIANTS:
        wrong.get(known[0], {}).pop(known[1], None)
    assert sorted(f"{t} {variant}: {pairs}" for t, found in wrong.items() for variant, pairs in found.items()) == []


# Fields that transformers' modules ignore and checkpoints do not, or that change a derived size they do not re-derive.
_KNOWN_VARIANTS = {
    ("deepseek_v4", "n_shared_experts=2"),  # modules hold one shared expert whatever the config says
    ("helium", "hidden_size=1280"),  # the output projection ignores head_dim
    ("helium", "num_attention_heads=40"),
    ("helium", "head_dim=64"),
    ("helium", "head_dim=256"),
    ("zamba", "attention_hidden_size=64"),  # a width that is not its heads' size
    ("zamba2", "tie_word_embeddings=False"),  # unties the shared blocks too
    ("inkling_text", "unpadded_vocab_size=64"),  # modules keep the padded head
    ("doge", "is_moe=True"),  # refused
    ("gpt2", "add_cross_attention=True"),  # refused
    ("gpt-sw3", "add_cross_attention=True"),
    ("xglm", "add_cross_attention=True"),
    ("xlstm", "use_bias=True"),
    ("zamba", "tie_word_embeddings=False"),
    ("gpt_bigcode", "add_cross_attention=True"),  # refused
    ("ctrl", "n_head=48"),  # heads that do not divide the width, which the modules keep whole
    ("zamba2", "n_mamba_heads=24"),
}


def variants(model_type: str, *, small: bool) -> dict[str, Any]:
    """Configs that differ from the default in one field: those whose counts differ from the modules'."""
    wrong: dict[str, Any] = {}
    for name, default in recorded()["types"][model_type]["defaults"].items():
        for value in _other_values(name, default, small=small):
            try:
                model = build(model_type, **{name: value})
            except Exception:  # noqa: S112 - not a valid config
                continue
            try:
                difference = compare(config_of(model), structural_split(model))
            except SpecplanError as error:
                if "not a multiple" in str(error) or "more than the" in str(error):
                    continue  # shapes that no attention or router can have
                difference = {"error": (0, 0)}
            if difference:
                wrong[f"{name}={value}"] = difference
    return wrong


def _other_values(name: str, default: Any, *, small: bool) -> list[Any]:
    if isinstance(default, bool):
        return [not default]
    if name == "vocab_size":
        return []
    if isinstance(default, int):
        values = (
            [default // 2, default * 2]
            if 1 < default < 512
            else [default // 2]
            if 1 < default < 10**7
            else [default + 1]
        )
        return values[:1] if small else values
    if default is None and ("size" in name or "num" in name or name in ("head_dim", "n_inner", "q_lora_rank")):
        return [64]
    return []


# Several fields at once, where one alone could be read by chance.
_QUICK = ("llama", "gemma2", "qwen2_moe", "deepseek_v2", "mamba2", "gpt2", "glm4_moe", "olmo2", "phimoe", "mistral4")


@pytest.mark.parametrize("model_type", _QUICK)
def test_random_perturbations_stay_exact(model_type: str) -> None:
    assert perturbed(model_type) == (3, {})


@pytest.mark.slow
def test_random_perturbations_stay_exact_for_every_architecture() -> None:
    found = {t: perturbed(t) for t in sorted(set(FAMILIES) & {*CAUSAL, *_OWN_CLASSES})}
    assert [f"{t} {of}: {wrong}" for t, (_, found_wrong) in found.items() for of, wrong in found_wrong.items()] == []
    few = {t for t, (valid, _) in found.items() if valid < 3}
    assert len(few) <= 5, few  # types whose classes build nothing without fields that have no default


def perturbed(model_type: str, wanted: int = 3, tries: int = 60) -> tuple[int, dict[str, Any]]:
    """Valid configs of several random fields: how many were tried, and those whose counts differ from the modules'."""
    chance = random.Random(model_type)  # noqa: S311 - a seed, no secret
    fields = {
        name: values
        for name, default in recorded()["types"][model_type]["defaults"].items()
        if (values := _perturbations(name, default, chance)) and not any((model_type, name) == k for k in _SET_ASIDE)
    }
    valid, wrong = 0, {}
    for _ in range(tries):
        if valid == wanted:
            break
        names = chance.sample(sorted(fields), min(len(fields), chance.randint(2, 4)))
        chosen = {name: chance.choice(fields[name]) for name in names}
        try:
            model = build(model_type, **chosen)
        except Exception:  # noqa: S112 - not a valid config
            continue
        try:
            difference = compare(config_of(model), structural_split(model))
        except SpecplanError as error:
            if any(words in str(error) for words in _IMPOSSIBLE):
                continue
            difference = {str(error): (0, 0)}
        valid += 1
        if difference:
            wrong[str(chosen)] = difference
    return valid, wrong


_IMPOSSIBLE = ("not a multiple", "more than the", "entries for", "is null, and the counts need it")
"""Shapes that no attention or router can have, lists made for other layers, and sizes that a class leaves out."""
_SET_ASIDE = frozenset((known, field.partition("=")[0]) for known, field in _KNOWN_VARIANTS)


def _perturbations(name: str, default: Any, chance: random.Random) -> list[Any]:
    if name == "vocab_size":
        return [chance.randrange(1000, 9000)]
    if name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        return [] if not isinstance(default, int) or default < 2 else [2, 3, 5]
    if isinstance(default, int) and not isinstance(default, bool) and default > 1:
        return [value for value in (default // 2, default * 2, default * 3) if value > 1 and value < 2**20]
    return _other_values(name, default, small=False)


def test_roles_of_stored_tensors_follow_from_their_names() -> None:
    """A checkpoint of each architecture, as its modules name their tensors, agrees with the counts from its config."""
    from specplan.specs.checkpoint import summarise
    from specplan.specs.safetensors import StoredTensor

    wrong = {}
    checked = 0
    for model_type in sorted(set(FAMILIES) & set(CAUSAL) - {"longcat_flash"}):
        try:
            model = build(model_type)
        except Exception:  # noqa: S112 - some default configs cannot be built by transformers itself
            continue
        distinct = {id(t): (name, t) for name, t in reversed(model.state_dict(keep_vars=True).items())}
        tensors = [
            StoredTensor(name=name, dtype="BF16", shape=tuple(t.shape), n_bytes=2 * t.numel())
            for name, t in distinct.values()
        ]
        counted = import_config(config_of(model), model_type).model
        found = summarise(tensors, counted)
        pairs = (
            (found.streamed_params, round(streamed_params(counted, 1e12))),
            (found.gathered_params, gathered_params(counted)),
            (found.elementwise_params, elementwise_params(counted)),
        )
        if found.disagreements or any(a != b for a, b in pairs):
            wrong[model_type] = (pairs, found.disagreements)
        checked += 1
    assert wrong == {}
    assert checked >= 125
