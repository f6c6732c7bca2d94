"""The page is one file that asks the network for nothing."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("plotly")

from specplan.cli.app import main
from specplan.formulas.kv_cache import kv_bytes_read, kv_bytes_stored
from specplan.page.build import page
from specplan.page.data import page_data
from specplan.specs.catalog import list_models, load_model
from specplan.specs.hardware import list_accelerators


@pytest.fixture(scope="module")
def text() -> str:
    return page()


def test_the_page_is_whole_and_small(text: str) -> None:
    assert len(text.encode()) < 6e6
    assert not re.search(r"<(?:script|link|img|iframe)[^>]*\b(?:src|href)=", text.split("<script>")[0])
    assert "/*" + "DATA*/" not in text
    assert not re.search(r"^(?:import|export) ", text[text.index('<script type="module">') :], re.MULTILINE)


def test_every_model_that_stands_alone_and_every_card_is_offered(text: str) -> None:
    found = json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', text, re.DOTALL)[1])
    assert set(found["cards"]) == {card.name for card in list_accelerators()}
    alone = {entry.model.name for entry in list_models() if not entry.model.draft_method}
    assert set(found["models"]) == alone
    for card in found["cards"].values():
        assert all(name is None or name in found["laws"] for name in card["laws"].values())


@pytest.mark.parametrize("name", ["llama3-70b", "gemma2-27b", "deepseek-v3", "deepseek-v4-flash", "qwen3.8-27b"])
def test_spans_hold_the_bytes_of_the_cache(name: str) -> None:
    ranked, model = page_data()["models"][name]["ranks"]["1"], load_model(name)
    for length in (1, 700, 5000, 100_000):
        for key, bytes_of in (("stored", kv_bytes_stored), ("read", kv_bytes_read)):
            total = ranked["state"]
            for size, limit, rate in ranked[key]:
                total += size * min(length if rate == 1 else length // rate, float("inf") if limit is None else limit)
            assert total == pytest.approx(float(bytes_of(model, length)), rel=1e-12)


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["page", "-o", str(tmp_path / "a.html")])
    assert not stop.value.code
    assert (tmp_path / "a.html").stat().st_size > 1e6
    with pytest.raises(SystemExit) as stop:
        main(["page", "-o", str(tmp_path / "a.txt")])
    assert stop.value.code == 2
    assert "must end in .html" in capsys.readouterr().err
