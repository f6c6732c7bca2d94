"""Models behind HTTP addresses on loopback: configs whole, GGUF files by their headers' byte ranges."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from given_checkpoints import TINY

from specplan.errors import InputError, UnsupportedError
from specplan.files.ranges import Ranges
from specplan.formulas.parameters import resident_bytes, resident_params
from specplan.specs.catalog import load_model
from specplan.specs.huggingface.hub import hub_id_of
from specplan.specs.importing import import_source
from tests.specs.test_gguf_models import decoder, write


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str, list[int]]]:
    """A folder, the address under which it is served, and the sizes of what was sent; ``whole/`` ignores ranges."""
    root, sent = tmp_path / "site", []
    root.mkdir()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/moved/"):
                self.send_response(302)
                self.send_header("Location", self.path.removeprefix("/moved"))
                self.end_headers()
                return
            path = root / self.path.removeprefix("/whole").lstrip("/")
            if not path.is_file():
                self.send_error(404)
                return
            data, asked = path.read_bytes(), re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if asked and not self.path.startswith("/whole"):
                part = data[int(asked[1]) : int(asked[2]) + 1]
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {asked[1]}-{int(asked[1]) + len(part) - 1}/{len(data)}")
            else:
                part = data
                self.send_response(200)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            sent.append(len(part))
            self.wfile.write(part)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    yield root, f"http://127.0.0.1:{server.server_port}", sent
    server.shutdown()


def big(path: Path) -> int:
    metadata, tensors = decoder("llama")
    return write(path, metadata, tensors | {"token_embd.weight": ("Q6_K", (256, 2**15))})


def test_a_gguf_file_is_counted_by_its_header_alone(site: tuple[Path, str, list[int]]) -> None:
    root, address, sent = site
    n_bytes = big(root / "m.Q4_K_M.gguf")
    found, _ = import_source(f"{address}/m.Q4_K_M.gguf")
    assert sum(sent) < n_bytes / 4
    assert resident_bytes(found.model) == pytest.approx(n_bytes)
    assert found.model.evidence == "headers of 20 tensors"
    local = import_source(str(root / "m.Q4_K_M.gguf"))[0].model
    # Names of types are kept: nothing is a mean of them.
    assert {form.name for _, form in (*local.formats, *local.layers[0].formats)} >= {"gguf-q6_k"}
    assert load_model(f"{address}/moved/m.Q4_K_M.gguf").layers == local.layers
    with pytest.raises(InputError, match="no byte ranges"):
        load_model(f"{address}/whole/m.Q4_K_M.gguf")
    with pytest.raises(InputError, match="404"):
        load_model(f"{address}/other.gguf")


def test_a_split_gguf_file_is_one_model(site: tuple[Path, str, list[int]]) -> None:
    root, address, _ = site
    metadata, tensors = decoder("llama")
    split = {"split.count": 2}
    names = list(tensors)
    total = 0
    for i, part in enumerate((names[:9], names[9:]), 1):
        # As llama.cpp writes them: all metadata in the first part.
        of = metadata | split if i == 1 else split
        total += write(root / f"m-{i:05}-of-00002.gguf", of, {name: tensors[name] for name in part})
    for place in (str(root / "m-00001-of-00002.gguf"), f"{address}/m-00001-of-00002.gguf"):
        model = import_source(place)[0].model
        assert (model.name, resident_bytes(model)) == ("m", pytest.approx(total))
    (root / "m-00001-of-00002.gguf").rename(root / "n.gguf")
    with pytest.raises(InputError, match="part of 2 files"):
        import_source(str(root / "n.gguf"))


def test_a_config_at_an_address(site: tuple[Path, str, list[int]]) -> None:
    root, address, _ = site
    (root / "tiny").mkdir()
    (root / "tiny" / "config.json").write_text(json.dumps(TINY))
    model = load_model(f"{address}/tiny/config.json")
    assert model.name == "tiny"
    assert resident_params(model) == resident_params(load_model(root / "tiny"))
    (root / "tiny" / "odd.json").write_text(json.dumps({**TINY, "branch_layers": 3}))
    with pytest.raises(UnsupportedError, match="branch_layers"):
        import_source(f"{address}/tiny/odd.json")
    with pytest.raises(InputError, match="the address of no model"):
        load_model(f"{address}/tiny/weights.bin")


def test_nobody_is_asked_offline(site: tuple[Path, str, list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    root, address, sent = site
    (root / "config.json").write_text(json.dumps(TINY))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="forbids"):
        load_model(f"{address}/config.json")
    assert sent == []


def test_a_range_is_what_was_asked_for(site: tuple[Path, str, list[int]]) -> None:
    root, address, sent = site
    data = bytes(range(256)) * 3 * 2**12
    (root / "x").write_bytes(data)
    found = Ranges(f"{address}/x")
    for begin, end in ((0, 4), (2**20 - 3, 2**20 + 3), (len(data) - 5, len(data) + 9), (7, 7)):
        assert found[begin:end] == data[begin:end]
    assert found.fetched == sum(sent) == len(data)


def test_pages_of_the_hub_are_ids() -> None:
    for page in ("", "/", "/tree/main", "/blob/main/config.json", "/resolve/main/config.json", "/raw/main/config.json"):
        assert hub_id_of(f"https://huggingface.co/Qwen/Qwen3-8B{page}") == "Qwen/Qwen3-8B"
    assert load_model("https://huggingface.co/Qwen/Qwen3-8B").name == "qwen3-8b"
    # A shipped model is shown beside what its publisher states.
    assert import_source("https://huggingface.co/Qwen/Qwen3-32B")[0].model.published_params == 32_762_123_264
