"""Nothing is counted in silence: a structural field that no row reads is named, and refused unless allowed."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from specplan.errors import InputError, ModelNote, SpecplanError, UnsupportedError
from specplan.formulas.parameters import resident_params
from specplan.specs.catalog import load_model
from specplan.specs.huggingface.config import import_config
from specplan.specs.importing import import_source
from specplan.specs.model_yaml import ModelFile, dump_model_yaml, model_from_text

DATA = Path(__file__).parents[1] / "data"
ROWS = json.loads((DATA / "published_configs.json").read_text())["models"]
FILES: dict[str, Any] = json.loads((DATA / "model_configs.json").read_text())
CONFIGS = {**{name: row["config"] for name, row in ROWS.items()}, **FILES}


def counted(config: dict[str, Any]) -> bool:
    try:
        import_config(config, "x")
    except SpecplanError:
        return False
    return True


KNOWN = sorted(name for name, config in CONFIGS.items() if counted(config))


def test_published_configs_are_understood() -> None:
    refused = []
    for name, config in CONFIGS.items():
        try:
            import_config(config, name)
        except SpecplanError as error:
            if "not understood" in str(error):
                refused.append(name)
    assert refused == []
    assert len(KNOWN) >= 150


# Names of the kind that new architectures bring; none is known to any row.
NEW: dict[str, Any] = {
    "ngram_table_rows": 131072,
    "emb_neighbor_num": 4,
    "routed_latent_size": 3584,
    "attn_res_block_size": 12,
    "use_second_gate": True,
    "engram_layer_ids": [2, 15],
    "memory_config": {"slots": 4096},
    "mlp_bottleneck_size": 512,
    "num_value_residual_heads": 4,
    "hyper_connection_rate": 4,
}


@pytest.mark.parametrize("seed", range(5))
def test_fifty_configs_with_one_new_field_are_refused_by_its_name(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - a sample, no secret
    for name in rng.sample(KNOWN, 10):
        field = rng.choice(sorted(NEW))
        config = {**CONFIGS[name], field: NEW[field]}
        with pytest.raises(UnsupportedError, match=field):
            import_config(config, "x")
        found = import_config(config, "x", allow_unread=True)
        assert resident_params(found.model) == resident_params(import_config(CONFIGS[name], "x").model)
        assert any(field in assumed for assumed in found.assumptions)


def test_fields_inside_blocks_and_wrappers_are_seen() -> None:
    kimi = CONFIGS["kimi-linear-48b-a3b"]
    inside = {**kimi, "linear_attn_config": {**kimi["linear_attn_config"], "gate_rank": 64}}
    with pytest.raises(UnsupportedError, match=r"linear_attn_config\.gate_rank = 64"):
        import_config(inside, "x")
    text = {k: v for k, v in CONFIGS["llama3-8b"].items() if k != "architectures"}
    wrapped = {"model_type": "llava", "text_config": text, "image_token_id": 5, "vision_config": {"hidden_size": 1024}}
    assert resident_params(import_config(wrapped, "x").model) == resident_params(load_model("llama3-8b"))
    with pytest.raises(UnsupportedError, match="second_embedding_rows"):
        import_config({**wrapped, "second_embedding_rows": 7}, "x")
    with pytest.raises(UnsupportedError, match="second_embedding_rows"):
        import_config({**wrapped, "text_config": {**text, "second_embedding_rows": 7}}, "x")


def test_an_assumed_type_passes_the_same_guard() -> None:
    config = {**CONFIGS["llama3-8b"], "model_type": "new_llama", "side_network_size": 512}
    with pytest.raises(UnsupportedError, match="side_network_size = 512"):
        import_config(config, "x", assume="llama")


def test_assumptions_survive_in_the_spec_and_are_shown(tmp_path: Path) -> None:
    config = {**CONFIGS["llama3-8b"], "side_network_size": 512}
    found = import_config(config, "x", allow_unread=True)
    path = tmp_path / "llama.yaml"
    path.write_text(dump_model_yaml(ModelFile(model=found.model)))
    with pytest.warns(ModelNote, match="side_network_size"):
        assert load_model(path) == found.model


def test_a_spec_states_its_totals() -> None:
    text = dump_model_yaml(ModelFile(model=load_model("llama3-8b")))
    assert "totals: {parameters: 8030261248, bytes: 16060522496}" in text
    with pytest.raises(InputError, match=r"totals.parameters.*states 8,030,261,248, the layers add up to 8,0"):
        model_from_text(text.replace("width: 14336", "width: 14337"), "x.yaml")


def test_layers_that_disagree_with_their_lists_are_refused() -> None:
    mla = CONFIGS["deepseek-v3"]
    with pytest.raises(InputError, match="qk_head_dim"):
        import_config({**mla, "qk_head_dim": 100}, "x")


def test_import_takes_a_shipped_name_and_a_spec(tmp_path: Path) -> None:
    found, summary = import_source("llama3-8b")
    assert (found.model, summary) == (load_model("llama3-8b"), None)
    path = tmp_path / "mine.yaml"
    path.write_text(dump_model_yaml(ModelFile(model=found.model)))
    assert import_source(str(path))[0].model == found.model
