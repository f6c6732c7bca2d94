import importlib
import inspect
import json
import pkgutil
import re

import pytest

import specplan.formulas
from specplan.report.explain import SYMBOLS, explain_symbol
from specplan.specs.catalog import list_models
from specplan.specs.hardware import list_accelerators


def formula_functions() -> dict[str, list[str]]:
    found = {}
    for module in pkgutil.iter_modules(specplan.formulas.__path__):
        loaded = importlib.import_module(f"specplan.formulas.{module.name}")
        found[module.name] = [
            name
            for name, member in inspect.getmembers(
                loaded, lambda m: inspect.isfunction(inspect.unwrap(m) if callable(m) else m)
            )
            if member.__module__ == loaded.__name__ and not name.startswith(("_", "checked_"))
        ]
    return found


def test_the_index_of_formulas_names_every_public_function_and_nothing_else() -> None:
    entries = re.findall(r"^(\w+)\.py\n((?:    .+\n?)+)", specplan.formulas.__doc__ or "", re.MULTILINE)
    listed = {module: re.findall(r"`(\w+)`", text) for module, text in entries}
    assert {m: sorted(n) for m, n in listed.items()} == {m: sorted(n) for m, n in formula_functions().items()}


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_each_symbol_has_a_summary_a_source_and_an_example(symbol: str) -> None:
    e = explain_symbol(symbol)
    assert e.summary
    assert e.source, f"{e.function} names no source"
    assert e.example, f"{e.function} has no example"


def test_explain_prints_formula_file_and_example(specplan) -> None:
    out = specplan("explain", "alpha-dagger").out
    assert "specplan/formulas/indifference.py" in out
    assert "0.6659" in out


def test_models_and_hardware_list_what_is_shipped(specplan) -> None:
    models = json.loads(specplan("models", "--json").out)["models"]
    assert len(models) == len(list_models()) >= 40
    assert {m["name"] for m in models} >= {"llama3-70b", "qwen3-0.6b", "deepseek-v3", "gpt-oss-120b"}
    cards = json.loads(specplan("hardware", "--json").out)["hardware"]
    assert len(cards) == len(list_accelerators()) >= 25
    assert all(card["sources"]["bandwidth"] for card in cards)


def test_each_shipped_total_equals_the_published_one(specplan) -> None:
    models = json.loads(specplan("models", "--json").out)["models"]
    stated = [m for m in models if m["published_params"] is not None]
    assert len(stated) >= 25
    assert not [m["name"] for m in stated if m["published_params"] != m["resident_params"]]


def test_counts_close_for_every_shipped_model(specplan) -> None:
    for m in json.loads(specplan("models", "--json").out)["models"]:
        assert sum(m["components"].values()) == m["resident_params"]
        if not m["mixture_of_experts"]:
            parts = m["streamed_params"] + m["gathered_params"] + m["elementwise_params"]
            assert parts <= m["resident_params"]


def test_one_model_and_one_card_are_shown(specplan) -> None:
    assert "8,030,261,248" in specplan("models", "llama3-8b").out
    assert "79.19 GiB" in specplan("hardware", "h100").out


def test_check_chapter_passes(specplan) -> None:
    outcome = specplan("check-chapter")
    assert outcome.code == 0
    assert ", 0 fail" in outcome.out or " 0 fail" in outcome.out
