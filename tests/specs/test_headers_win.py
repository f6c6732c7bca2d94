"""Headers of a checkpoint decide in which format its weights are counted, from a folder or by ranges of the Hub."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from given_checkpoints import TINY, tiny_tensors, write

from specplan.cli.app import main
from specplan.formulas.parameters import format_of, resident_bytes, streamed_bytes, weights
from specplan.specs.catalog import load_model
from specplan.specs.importing import import_source

FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}}


def fp8_tensors(plain: str = "down_proj", kind: str = "F8_E4M3") -> dict[str, tuple[str, tuple[int, ...]]]:
    """The tiny checkpoint in blocks of FP8, but for the matrices called `plain`."""
    found = {}
    for name, (dtype, shape) in tiny_tensors().items():
        if "proj" in name and plain not in name:
            found[name] = (kind, shape)
            found[name + "_scale_inv"] = ("F32", (-(-shape[0] // 32), -(-shape[1] // 32)))
        else:
            found[name] = (dtype, shape)
    return found


def stored(tensors: dict[str, tuple[str, tuple[int, ...]]], part: str = "") -> int:
    size = {"BF16": 2, "F8_E4M3": 1, "F32": 4}
    total = 0
    for name, (dtype, shape) in tensors.items():
        n = size[dtype]
        for side in shape:
            n *= side
        total += n if part in name else 0
    return total


def checkpoint(folder: Path, config: dict, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write(folder / "model.safetensors", tensors)
    return folder


def test_a_matrix_that_the_config_forgets_is_counted_as_stored(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    tensors = fp8_tensors()
    folder = checkpoint(tmp_path / "tiny", TINY | FP8, tensors)
    model = load_model(folder)
    # The down projections lie in 16 bits, which the config does not say.
    mlp = sum(w.size * n * format_of(w, model).bytes for w, n in weights(model) if w.component == "mlp")
    assert mlp == stored(tensors, "mlp.")
    assert resident_bytes(model) == stored(tensors)
    assert streamed_bytes(model) == stored(tensors) - stored(tensors, "embed") - stored(tensors, "norm")
    assert "mlp in" in model.evidence
    with pytest.raises(SystemExit):
        main(["import", str(folder), "-o", str(tmp_path / "spec.yaml")])
    assert "headers are used" in " ".join(capsys.readouterr().out.split())
    again = load_model(tmp_path / "spec.yaml")
    assert again.evidence == model.evidence
    assert resident_bytes(again) == resident_bytes(model)
    with pytest.raises(SystemExit):
        main(["cost", str(folder), "--gpu", "h100-sxm"])
    captured = capsys.readouterr()
    assert "the headers are used" in " ".join((captured.out + captured.err).split())


@pytest.mark.parametrize(("config", "tensors"), [(TINY, tiny_tensors()), (TINY | FP8, fp8_tensors(plain="none"))])
def test_headers_that_agree_change_nothing_and_are_the_evidence(tmp_path: Path, config: dict, tensors: dict) -> None:
    folder = checkpoint(tmp_path / "tiny", config, tensors)
    (tmp_path / "config.json").write_text(json.dumps(config))
    alone, checked = load_model(tmp_path / "config.json"), load_model(folder)
    assert checked.evidence == f"headers of {len(tensors)} tensors"
    assert (alone.evidence, checked.formats, checked.layers) == ("", alone.formats, alone.layers)
    assert resident_bytes(checked) == stored(tensors)


def test_headers_with_other_numbers_are_named_and_not_taken(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "tiny", TINY, tiny_tensors(layers=1))
    model = load_model(folder)
    assert "decoder parameters, the config implies" in model.evidence
    assert model.evidence.endswith("the config is counted")
    assert len(model.layers) == 2


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, list[int]]]:
    """A folder that a server on loopback shows as the Hub does, and the bytes that it sent of weights' files."""
    root, sent = tmp_path / "hub", []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            match = re.fullmatch(r"/([\w-]+/[\w-]+)/resolve/main/([\w.-]+)", self.path)
            path = root / match[1] / match[2] if match else None
            if path is None or not path.is_file():
                self.send_response(404)
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            data = path.read_bytes()
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            part = data[int(asked[1]) : int(asked[2]) + 1] if asked else data
            self.send_response(206 if asked else 200)
            for name, value in (("ETag", '"1"'), ("X-Repo-Commit", "0" * 40), ("Content-Length", str(len(part)))):
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                if path.suffix == ".safetensors":
                    sent.append(len(part))
                self.wfile.write(part)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    from huggingface_hub import constants

    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield root, sent
    server.shutdown()


def test_headers_of_the_hub_are_read_by_ranges_and_win(hub: tuple[Path, list[int]]) -> None:
    root, sent = hub
    tensors = fp8_tensors()
    folder = checkpoint(root / "owner" / "tiny", TINY | FP8, tensors)
    with (folder / "model.safetensors").open("ab") as file:
        file.truncate(file.tell())
    found, summary = import_source("owner/tiny")
    assert found.model.name == load_model("owner/tiny").name == "tiny"
    assert summary is not None
    assert summary.total_bytes == stored(tensors)
    assert resident_bytes(found.model) == stored(tensors) == resident_bytes(load_model("owner/tiny"))
    assert max(sent) <= 100_001 < (folder / "model.safetensors").stat().st_size
