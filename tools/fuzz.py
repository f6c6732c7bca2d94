"""Mutated files, options and spellings through every command, each in a process of its own, for a bounded time.

    python tools/fuzz.py --inputs 20000 --seconds 3000 --seed 1

An input fails when its exit code is none of 0, 1, 2, when it prints a traceback or a control character, or when it
takes more than 10 s of CPU or 2 GiB. The failures are printed as commands with their files kept; the last line counts.
"""

import argparse
import contextlib
import gc
import gzip
import http.server
import io
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
CPU_S, MEMORY_BYTES = 10, 2 * 2**30
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
    "max_position_embeddings": 512, "torch_dtype": "bfloat16", "layer_types": ["full_attention", "full_attention"],
}  # fmt: skip
STEP = {"request": "a", "step": 0, "source": "s", "context_len": 9, "drafted": 3, "accepted": 1, "emitted": 2}
BENCH = {
    "request_throughput": 1.0, "output_throughput": 9.0, "total_token_throughput": 10.0, "completed": 9,
    "total_output_tokens": 100, "spec_decode_acceptance_length": 2.0, "spec_decode_num_drafts": 10,
    "spec_decode_draft_tokens": 30, "spec_decode_accepted_tokens": 10, "spec_decode_acceptance_rate": 33.33,
    "spec_decode_per_position_acceptance_rates": [0.5, 0.3, 0.2],
}  # fmt: skip
POINT = {"source": "ngram", "alpha": 0.6, "coverage": 0.5, "steps": 10, "drafts": 5, "drafted_tokens": 15,
         "accepted_tokens": 6, "tested_tokens": 10, "emitted_tokens": 16, "tokens_per_step": 1.6}  # fmt: skip
METRICS = "\n".join(
    f'# TYPE vllm:spec_decode_num_{n} counter\nvllm:spec_decode_num_{n}_total{{engine="0",model_name="m"}} {v}.0'
    for n, v in (("drafts", 10), ("draft_tokens", 30), ("accepted_tokens", 10))
)
VLLM_LOG = (
    "INFO 01-02 03:04:05 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.86, Accepted throughput: 1.30 "
    "tokens/s, Drafted throughput: 2.10 tokens/s, Accepted: 13 tokens, Drafted: 21 tokens, Per-position acceptance "
    "rate: 0.714, 0.571, 0.571, Avg Draft acceptance rate: 61.9%\n"
)
START_LOG = (
    "(EngineCore_0 pid=7) INFO 01-02 03:04:05 [gpu_model_runner.py:99] Model loading took 14.99 GiB and 5.1 seconds\n"
    "(EngineCore_0 pid=7) INFO 01-02 03:04:06 [gpu_worker.py:298] Available KV cache memory: 58.11 GiB\n"
    "(EngineCore_0 pid=7) INFO 01-02 03:04:06 [kv_cache_utils.py:864] GPU KV cache size: 476,016 tokens\n"
)
SGLANG_LOG = (
    "Decode batch. #running-req: 3, #token: 99, accept len: 2.50, accept rate: 0.50, gen throughput (token/s): 9\n"
)
TRACE = {"id": "a", "prompt_token_ids": [1, 2, 3, 1, 2, 3], "output_token_ids": [1, 2, 3, 4, 1, 2]}
RESPONSE = {"id": "a", "meta_info": {"spec_verify_ct": 5, "spec_accept_length": 2.0, "completion_tokens": 10}}
TABLE = {"rows": [{"batch": 1, "width": 1, "context": 0, "seconds": 0.01}, {"batch": 8, "width": 4, "seconds": 0.02}]}
SPEC = (ROOT / "model_specs" / "llama3-8b.yaml").read_text()
CARD = (ROOT / "hardware_profiles" / "h100-sxm.yaml").read_text()


def dumped(value: object) -> Callable[[], bytes]:
    """A maker of one JSON document."""
    return lambda: json.dumps(value).encode()


def safetensors() -> bytes:
    """A file with one tensor."""
    head = json.dumps({"w": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}).encode()
    return len(head).to_bytes(8, "little") + head + bytes(12)


# kind: (file name, its bytes, the command that reads it)
KINDS: dict[str, tuple[str, Callable[[], bytes], tuple[str, ...]]] = {
    "config": ("config.json", dumped(CONFIG), ("import", "FILE")),
    "spec": ("m.yaml", SPEC.encode, ("cost", "FILE", "--alpha", ".7")),
    "card": ("c.yaml", CARD.encode, ("cost", "llama3-8b", "--gpu", "FILE")),
    "safetensors": ("model.safetensors", safetensors, ("import", "FOLDER")),
    "gguf": ("m.gguf", lambda: b"GGUF\x03\0\0\0" + bytes(16), ("import", "FILE")),
    "steps": ("s.jsonl", lambda: b"\n".join(json.dumps(STEP | {"step": i}).encode() for i in range(9)), ("ingest", "FILE")),
    "bench result": ("b.json", dumped(BENCH), ("ingest", "FILE", "--target", "llama3-8b")),
    "metrics": ("m.txt", METRICS.encode, ("ingest", "FILE")),
    "log": ("l.log", (VLLM_LOG * 4).encode, ("ingest", "FILE")),
    "sglang log": ("g.log", (SGLANG_LOG * 4).encode, ("ingest", "FILE")),
    "start-up log": ("u.log", START_LOG.encode, ("blocks", "llama3-8b", "--from-log", "FILE")),
    "response": ("r.json", dumped(RESPONSE), ("ingest", "FILE")),
    "points": ("p.json", dumped({"sources": [POINT]}), ("plane", "llama3-8b", "--points", "FILE")),
    "trace": ("t.jsonl", lambda: json.dumps(TRACE).encode(), ("replay", "FILE", "-s", "ngram:k=2")),
    "table": ("t.json", dumped(TABLE), ("compare", "llama3-8b", "-s", "ngram:alpha=.5", "--time", "measured", "--table", "FILE")),
}  # fmt: skip
LINES = (
    "cost llama3-8b --draft llama3.2-1b --alpha .7 -k 3 --batch 8 --context 4k",
    "compare llama3-8b -s ngram:alpha=.7,coverage=.4 --batch 1,8 --context 2k",
    "schedule llama3-8b -s ngram:alpha=.7,k=3 --engine vllm",
    "tune llama3-8b --draft llama3.2-1b --alpha .7 --max 16",
    "plane llama3-8b --draft llama3.2-1b --levels 1,1.5 --c-max 1",
    "plane llama3-8b --draft llama3.2-1b --kind batch --max 64 --alpha .7",
    "tie llama3-8b --draft llama3.2-1b --alpha .7",
    "blocks llama3-8b --gpu h100-sxm --max-model-len 8k --gpu-memory-utilization .9",
    "replay smollm2 -s ngram:min=2,max=5,k=3 --limit 2",
    "models mixtral-8x7b", "hardware h100-sxm", "explain alpha", "architectures",
)  # fmt: skip
WORDS = ("-1", "0", "nan", "inf", "1e999", "9" * 400, "1e-300", "", "a\x1b[31mb", "\u202e", "9,9", "1:2", "ngram:max=1e9",
         "--", "/dev/zero", "/", "x" * 5000, "suffix", "mine:c=-1,alpha=2", "eagle3", "0..1", ".7/.6", "1e9", "3000000000",
         "sglang-ngram:budget=99999999", "ngram:k=0", "http://127.0.0.1:9/x", "\ud800")  # fmt: skip
VALUES = (-1, 0, 3.5, 1e308, 2**63, -(2**63), None, True, "x", "\x1b[2J", [], {}, [[]], "9" * 50, 10**30)


def mutated(rng: random.Random, body: bytes) -> bytes:
    """One to four changes: a number, a value of the JSON, a byte, a cut, a line twice, nesting, or the wrapping."""
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(9)
        if kind <= 2 and (numbers := list(re.finditer(rb"-?\d+(?:\.\d+)?", body))):
            m = rng.choice(numbers)
            new = rng.choice(
                [b"-1", b"0", b"NaN", b"1e999", b"9" * 400, b"3000000000", b"0.5", b"1.5", b"99", b"1e-12"]
            )
            body = body[: m.start()] + new + body[m.end() :]
        elif kind == 3:
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(body)
                place = found[0] if isinstance(found, list) and found else found
                if isinstance(place, dict) and place:
                    place[rng.choice(list(place))] = rng.choice(VALUES)
                    body = json.dumps(found).encode()
        elif kind == 4 and body:
            at = rng.randrange(len(body))
            body = body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
        elif kind == 5:
            body = body[: rng.randrange(len(body) + 1)]
        elif kind == 6:
            lines = body.split(b"\n")
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            body = b"\n".join(lines)
        elif kind == 7:
            body = rng.choice([b"[" * 5000, b"\xff\xfe", b"\x1b]0;x\x07", b'{"a":' * 300, b"\0"]) + body
        elif rng.random() < 0.3:
            body = gzip.compress(body)[: rng.choice([None, -5, 20])]
    return body


def line_mutated(rng: random.Random, words: list[str]) -> list[str]:
    """A command line with one to three words changed, left out or doubled."""
    words = list(words)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(1, len(words)) if len(words) > 1 else 0
        match rng.randrange(4):
            case 0:
                words[at] = rng.choice(WORDS)
            case 1:
                words.insert(at + 1, rng.choice(WORDS))
            case 2 if len(words) > 1:
                del words[at]
            case _:
                text = words[at]
                cut = rng.randrange(len(text) + 1)
                words[at] = text[:cut] + rng.choice([",", ":", "=", "-", "9", "e", "\x1b", "", "%"]) + text[cut:]
    return [w.replace("\0", "") for w in words]


def run(argv: list[str], folder: Path) -> str:
    """What is wrong with one command, or nothing; it runs in a child of this process."""
    out = folder / "out"
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
            os.chdir(folder)
            handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), "utf-8", line_buffering=False, write_through=True)
            sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), "utf-8", errors="backslashreplace", write_through=True)
            from specplan.cli.app import main

            try:
                main(argv)
            except SystemExit as stop:
                os._exit(int(stop.code or 0))
            except BaseException:
                import traceback

                traceback.print_exc()
        os._exit(99)
    _, status, usage = os.wait4(pid, 0)
    text = out.read_text("utf-8", "replace") if out.exists() else ""
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1, 2):
        lines = text.strip().splitlines() or [""]
        return f"exit {code}: {lines[-1][:300]}"
    if "Traceback (most recent call last)" in text:
        return "a traceback"
    if found := CONTROL.search(text):
        return f"control character {found[0]!r}"
    if usage.ru_utime + usage.ru_stime > CPU_S:
        return f"{usage.ru_utime + usage.ru_stime:.1f} s of CPU"
    return f"{usage.ru_maxrss >> 10} MiB" if usage.ru_maxrss * 1024 > MEMORY_BYTES else ""


class _Page(http.server.BaseHTTPRequestHandler):
    body, length = b"", 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(type(self).length))
        self.end_headers()
        self.wfile.write(type(self).body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> int:
    """Run until the inputs or the seconds are used up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=None, help="folder for the files of failures")
    given = parser.parse_args()
    rng, begin, counts = random.Random(given.seed), time.monotonic(), Counter[str]()
    failures: Counter[str] = Counter()
    from specplan.cli.app import main as command

    server = http.server.HTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    done = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # Each command once in this process: its children have every module and no work before their own.
        for words in [line.split() for line in LINES] + [list(words) for _, _, words in KINDS.values()]:
            quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
            with contextlib.suppress(SystemExit), quiet[0], quiet[1]:
                command([w.replace("FILE", str(folder / "none")) for w in words])
        gc.freeze()
        begin = time.monotonic()
        while done < given.inputs and time.monotonic() - begin < given.seconds:
            done += 1
            kind = rng.choice([*KINDS, "line", "line", "line", "server"])
            name = ""
            if kind == "line":
                argv = line_mutated(rng, rng.choice(LINES).split())
            elif kind == "server":
                _Page.body = mutated(rng, METRICS.encode())
                _Page.length = len(_Page.body) + rng.choice([0, 0, 7])
                argv = ["ingest", f"http://u:pw@127.0.0.1:{server.server_port}/metrics", "--timeout", "5"]
            else:
                name, make, words = KINDS[kind]
                (folder / name).write_bytes(mutated(rng, make()))
                if kind == "safetensors":
                    (folder / "config.json").write_bytes(json.dumps(CONFIG).encode())
                argv = [w.replace("FILE", str(folder / name)).replace("FOLDER", str(folder)) for w in words]
            counts[kind] += 1
            problem = run(argv, folder)
            if problem:
                key = re.sub(r"0x[0-9a-f]+|\d{3,}", "N", problem)[:160]
                failures[key] += 1
                if failures[key] == 1:
                    print(f"{kind}: {problem}\n  specplan {' '.join(map(ascii, argv))[:300]}", flush=True)
                    if given.keep is not None and name:
                        given.keep.mkdir(parents=True, exist_ok=True)
                        shutil.copy(folder / name, given.keep / f"{done}-{name}")
    seconds = time.monotonic() - begin
    print(
        f"{done} inputs of {len(counts)} kinds in {seconds:.0f} s: {sum(failures.values())} failed in {len(failures)} ways"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
