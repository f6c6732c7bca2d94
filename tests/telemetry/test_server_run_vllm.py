"""Two real servers, by hand: what is measured is what they counted, and their pages say the same to ingest."""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specplan.errors import InputError
from specplan.records.prompts import prompt_file, read_prompts
from specplan.telemetry.fetch import fetch_text
from specplan.telemetry.read import read_origin
from specplan.telemetry.server_run import ServerJob, run_server

pytestmark = [pytest.mark.engine, pytest.mark.model, pytest.mark.slow]
VLLM = shutil.which("vllm")
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """SmolLM2 with and without n-gram drafts."""
    if VLLM is None:
        pytest.skip("needs vllm on the PATH")
    from specplan.harness.prompts import tokenizer_of
    from specplan.harness.vllm_runner import checkpoint_folder

    folder = tmp_path_factory.mktemp("served")
    model = checkpoint_folder("smollm2-135m", folder / "smollm2")
    tokenizer_of("smollm2-135m").save_pretrained(str(model))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
                    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}  # fmt: skip
    running, roots = [], []
    for config in (["--speculative-config", json.dumps(NGRAM)], []):
        port = free_port()
        command = [VLLM, "serve", str(model), "--served-model-name", "smollm2", "--port", str(port)]
        command += ["--max-model-len", "1024", "--max-num-seqs", "16", "--enforce-eager", "--no-enable-prefix-caching"]
        command += config
        log = (folder / f"{port}.log").open("w")
        running.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder))
        roots.append(f"http://127.0.0.1:{port}")
    try:
        for root, server in zip(roots, running, strict=True):
            for _ in range(240):
                assert server.poll() is None, (folder / f"{root.rpartition(':')[2]}.log").read_text()[-2000:]
                try:
                    fetch_text(f"{root}/v1/models")
                    break
                except InputError:
                    time.sleep(1)
        yield roots[0], roots[1]
    finally:
        for server in running:
            server.terminate()
            server.wait(60)


def test_a_real_servers_counts_are_measured_and_ingest_reads_the_same(servers: tuple[str, str], tmp_path: Path) -> None:
    prompts = tuple(p for name in ("copy", "open") for p in read_prompts(prompt_file(name), limit=3))
    job = ServerJob(server=servers[0], plain=servers[1], prompts=prompts, concurrency=(1, 4), max_tokens=24)
    run = run_server(job)
    assert not any("other requests" in note for note in run.notes)
    whole = [s for s in run.speeds if not s.measured.tag]
    tallies = [s.measured.tally for s in whole]
    paths = [tmp_path / f"{when}.prom" for when in ("before", "after")]
    for path in paths:
        path.write_text(run.pages[f"drafted-{path.stem}"])
    (seen,) = read_origin(str(paths[1]), before=str(paths[0]))
    assert seen.tally is not None
    for name in ("steps", "drafts", "drafted_tokens", "accepted_tokens"):
        assert sum(getattr(t, name) for t in tallies) == getattr(seen.tally, name), name
    assert sum(row["tokens"] - 1 for row in run.rows if row["side"] == "drafted") <= seen.tally.emitted_tokens
    for s in whole:
        assert s.plain_batch == pytest.approx(s.concurrency, rel=0.25)
        assert s.step_s is not None
        assert s.plain_step_s is not None
    copying, open_ended = (next(s for s in run.speeds if s.measured.tag == tag) for tag in ("copy", "open"))
    assert copying.measured.coverage > open_ended.measured.coverage
