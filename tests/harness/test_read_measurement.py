"""A finished run is put together again from its records alone, plain or gzipped."""

import dataclasses
import gzip
import shutil
from pathlib import Path

import pytest
import torch

from specplan.errors import InputError
from specplan.harness.llama import Llama, LlamaShape
from specplan.harness.loop import Request
from specplan.harness.measure import Settings, measure, read_measurement
from specplan.harness.sources import read_source

torch.set_num_threads(1)


def test_what_was_measured_is_read_back(tmp_path: Path) -> None:
    torch.manual_seed(5)
    shape = LlamaShape(
        vocab_size=12, hidden_size=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn_size=48, tied=False
    )
    model = Llama(shape).eval()
    requests = [Request(id=str(i), prompt=(1, 2, 3, i) * 3, tag="copy") for i in range(3)]
    sources = [read_source("ngram:min=1,max=3,k=2"), read_source("draft:drop=1,k=2")]
    run = measure(model, sources, requests, tmp_path / "run", settings=Settings(max_tokens=8))
    again = read_measurement(tmp_path / "run")
    assert again == run
    assert again.passes == dict(zip(run.pass_widths, run.pass_s, strict=True))

    packed = tmp_path / "packed"
    packed.mkdir()
    shutil.copy(tmp_path / "run" / "passes.jsonl", packed)
    (packed / "steps.jsonl.gz").write_bytes(gzip.compress((tmp_path / "run" / "steps.jsonl").read_bytes()))
    assert dataclasses.replace(read_measurement(packed), folder=run.folder) == run


def test_a_folder_without_a_finished_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected steps.jsonl and passes.jsonl of a finished"):
        read_measurement(tmp_path)
