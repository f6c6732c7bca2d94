"""The page is one file that asks the network for nothing."""

import base64
import json
import re
import threading
import urllib.request
import zlib
from pathlib import Path

import pytest

pytest.importorskip("plotly")

from specplan.cli.app import main
from specplan.formulas.kv_cache import kv_bytes_read, kv_bytes_stored
from specplan.page.build import MODULES
from specplan.page.data import page_data
from specplan.page.serving import show
from specplan.specs.catalog import list_models, load_model
from specplan.specs.hardware import list_accelerators
from specplan.timing.timed_engine import ENGINES


@pytest.fixture(scope="module")
def text(page_file: Path) -> str:
    return page_file.read_text("utf-8")


def test_the_page_is_whole_and_small(text: str) -> None:
    assert len(text.encode()) < 6e6
    assert not re.search(r"<(?:script|link|img|iframe)[^>]*\b(?:src|href)=\"(?!data:)", text.split("<script>")[0])
    assert not re.search(r"\{\{[A-Z_]+\}\}", text)
    modules = json.loads(re.search(r'<script type="importmap">(.*?)</script>', text)[1])["imports"]
    assert list(modules) == list(MODULES)
    for address in modules.values():
        own = base64.b64decode(address.partition(",")[2]).decode()
        assert "http" not in own
        assert all(name in MODULES for name in re.findall(r'^import .* from "(\w+)";$', own, re.MULTILINE))


def test_every_shipped_model_card_and_engine_is_offered(text: str) -> None:
    packed = re.search(r'id="data">(.*?)</script>', text)[1]
    found = json.loads(zlib.decompress(base64.b64decode(packed)))
    assert set(found["cards"]) == {card.name for card in list_accelerators()}
    assert set(found["models"]) == {entry.model.name for entry in list_models()}
    assert set(found["engines"]) == set(ENGINES)
    assert found == page_data()


@pytest.mark.parametrize("name", ["llama3-70b", "gemma2-27b", "deepseek-v3", "deepseek-v4-flash", "qwen3.8-27b"])
def test_spans_hold_the_bytes_of_the_cache(name: str) -> None:
    ranked, model = page_data()["models"][name]["ranks"]["1"], load_model(name)
    for length in (1, 700, 5000, 100_000):
        for key, bytes_of in (("stored", kv_bytes_stored), ("read", kv_bytes_read)):
            total = ranked["recurrent_bytes"]
            for size, limit, rate in ranked[key]:
                total += size * min(length if rate == 1 else length // rate, float("inf") if limit is None else limit)
            assert total == pytest.approx(float(bytes_of(model, length)), rel=1e-12)


def test_it_is_shown_on_this_machine() -> None:
    told: list[str] = []
    ready = threading.Event()
    threading.Thread(target=show, args=("<p>α", 0, lambda a: (told.append(a), ready.set())), daemon=True).start()
    assert ready.wait(10)
    assert told[0].startswith("http://127.0.0.1:")
    with urllib.request.urlopen(told[0], timeout=10) as answer:  # noqa: S310 - our own
        assert answer.read().decode() == "<p>α"


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["page", "-o", str(tmp_path / "a.html")])
    assert not stop.value.code
    assert (tmp_path / "a.html").stat().st_size > 1e6
    with pytest.raises(SystemExit) as stop:
        main(["page", "-o", str(tmp_path / "a.txt")])
    assert stop.value.code == 2
    assert "must end in .html" in capsys.readouterr().err
