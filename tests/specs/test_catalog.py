"""A model is found by name, alias or path; nothing answers silently for another."""

import json
from pathlib import Path

import pytest

from specplan.errors import InputError, NotFoundError, UnsupportedError
from specplan.formulas.parameters import resident_params, streamed_params
from specplan.specs.catalog import REFUSED, list_models, load_model, model_folder

DATA = Path(__file__).parents[1] / "data"
ROWS = json.loads((DATA / "published_configs.json").read_text())["models"]
WANTED = [
    *("llama3-8b", "llama3-70b", "llama3.1-8b", "llama3.1-70b", "llama3.1-405b", "llama3.2-1b", "llama3.2-3b"),
    *("llama3.3-70b", "qwen2.5-0.5b", "qwen2.5-72b", "qwen3-0.6b", "qwen3-32b", "mistral-7b", "mistral-small-24b"),
    *("phi-4", "gemma2-9b", "gemma3-27b", "smollm2-135m", "smollm2-360m", "smollm2-1.7b", "granite3.1-8b"),
    *("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "gpt-oss-120b", "deepseek-v2-lite", "deepseek-v3", "qwen3.6-27b"),
    *("qwen3.8-27b", "gemma4-31b", "glm-5", "deepseek-v4-pro", "deepseek-v4-flash", "kimi-k2", "nemotron-3-nano"),
]


def test_the_models_people_ask_for_are_shipped() -> None:
    shipped = {entry.name for entry in list_models()}
    assert set(WANTED) <= shipped


def test_every_shipped_total_is_the_published_one() -> None:
    stated = [entry.model for entry in list_models() if entry.model.published_params is not None]
    assert len(stated) >= 60
    assert {
        m.name: resident_params(m) - (m.published_params or 0)
        for m in stated
        if resident_params(m) != m.published_params
    } == {}


def test_chapter_models() -> None:
    assert streamed_params(load_model("llama3-70b")) == 69_501_714_432
    assert streamed_params(load_model("llama3.2-1b")) == 1_235_746_816
    assert streamed_params(load_model("llama3-8b")) == 7_504_658_432


def test_aliases_in_any_case() -> None:
    assert (
        load_model("meta-llama/llama-3.2-1b")
        == load_model("LLAMA3.2-1B")
        == load_model(model_folder() / "llama3.2-1b.yaml")
    )
    assert len({a.lower() for e in list_models() for a in e.aliases}) == sum(len(e.aliases) for e in list_models())


@pytest.mark.parametrize(
    ("name", "hint"),
    [("llama3-71b", "llama3-70b"), ("qwen3-33b", "qwen3-32b"), ("gpt-oss", "gpt-oss-20b"), ("phi-44", "phi-4")],
)
def test_unknown_names_list_near_misses(name: str, hint: str) -> None:
    with pytest.raises(NotFoundError, match="did you mean") as caught:
        load_model(name)
    assert hint in str(caught.value)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_models_that_cannot_be_counted_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        load_model(name)


def test_config_json_and_its_folder_are_models(tmp_path: Path) -> None:
    config = ROWS["qwen3-8b"]["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert resident_params(load_model(str(tmp_path))) == resident_params(load_model("qwen3-8b"))
    assert load_model(tmp_path / "config.json").layers == load_model("qwen3-8b").layers


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"[1, 2]", "expected a JSON object"),
        (b'{"a": 1, "a": 2}', "'a' appears twice"),
        (b"{" * 100000, "not JSON"),
        (b'{"x":' + b"[" * 100000 + b"]" * 100000 + b"}", "nested too deeply"),
        (b"\x89PNG\r\n\x1a\n\x00", "a binary file"),
        (b"{}", "field 'model_type' is missing"),
        (b'{"model_type": "llama"}', "field 'num_hidden_layers' is missing"),
        (b'{"model_type": 7}', "field 'model_type' is missing"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "a number of 5000 digits"),
    ],
)
def test_broken_configs(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


LLAMA = ROWS["llama3-8b"]["config"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hidden_size", -4096, "'hidden_size' must be from 1"),
        ("hidden_size", 0, "'hidden_size' must be from 1"),
        ("hidden_size", "4096", "'hidden_size' must be a whole number"),
        ("hidden_size", 4096.5, "'hidden_size' must be a whole number"),
        ("hidden_size", True, "'hidden_size' must be a whole number"),
        ("hidden_size", None, "'hidden_size' is null"),
        ("hidden_size", [4096], "'hidden_size' must be a whole number"),
        ("num_hidden_layers", 10**9, "'num_hidden_layers' must be at most 10000"),
        ("num_attention_heads", 30, "30 attention heads are not a multiple of 8"),
        ("vocab_size", float("nan"), "'vocab_size' must be a whole number"),
        ("vocab_size", float("inf"), "'vocab_size' must be a whole number"),
        ("vocab_size", 10**30, "'vocab_size' must be from 1 to"),
        ("tie_word_embeddings", "no", "'tie_word_embeddings' must be true or false"),
        ("torch_dtype", "float12", "'dtype': unknown number format"),
        ("quantization_config", {"quant_method": "magic"}, "quant_method 'magic' cannot be counted"),
        ("quantization_config", {"quant_method": "awq", "bits": 99}, "quantization_config.bits must be from 2 to 8"),
        ("text_config", {"model_type": "llama", "hidden_size": -1}, "must be from 1"),
    ],
)
def test_wrong_fields_are_named(field: str, value: object, message: str, tmp_path: Path) -> None:
    config = {**LLAMA, field: value}
    if field == "text_config":
        config = {"model_type": "llava", "text_config": value}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises((InputError, UnsupportedError)) as caught:
        load_model(str(path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p, "without config.json"),
        (lambda p: p / "no.yaml", "no such file"),
        (lambda p: p / "no.json", "no such file"),
        (lambda p: p / "x.bin", "not a model"),
        (lambda _p: "", "an empty model name"),
        (lambda _p: "a" * 5000, "unknown model"),
        (lambda _p: "nul\x00byte", "an empty model name"),
    ],
)
def test_paths_that_are_no_model(make: object, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\x00" * 10)
    with pytest.raises(InputError) as caught:
        load_model(str(make(tmp_path)))  # type: ignore[operator] # a lambda of the table
    assert message in str(caught.value)
