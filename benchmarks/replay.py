"""Replay end to end: a trace of token ids in JSON lines, read, replayed, counted; its speed, its parts, its memory.

Prints one table and a last line of JSON. Every column is measured in this run, on one core::

    python benchmarks/replay.py                      # 4 million tokens
    python benchmarks/replay.py --tokens 100000000   # memory over a long stream (a file of 600 MB)

With ``--arctic`` the suffix replay is compared with Arctic Inference's cache driven from Python (needs the package
arctic-inference); totals must be equal before a speed counts. Matchers are compared with vLLM's in the benchmark that
`peer_columns.py` is for.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from specplan.propose.ngram import vllm_v1
from specplan.propose.ngram_replay import scan_every_position
from specplan.propose.spelling import parse_source
from specplan.propose.steps import join
from specplan.propose.suffix_replay import replay as replay_suffix
from specplan.traces.read import TraceReader
from specplan.traces.run import ReplayPlan, run

PROMPT, RESPONSE = 1024, 1024
VOCABULARY = 32_000


def requests(n, seed=0):
    """Prompts of a Zipf-like source; responses that copy runs of the prompt, with fresh tokens in between."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        prompt = (rng.pareto(0.9, PROMPT) * 20 % VOCABULARY).astype(np.int32)
        parts, size = [], 0
        while size < RESPONSE:
            start, run_len = rng.integers(0, PROMPT - 40), int(rng.integers(4, 40))
            fresh = rng.integers(0, VOCABULARY, int(rng.integers(1, 12))).astype(np.int32)
            parts += [prompt[start : start + run_len], fresh]
            size += run_len + fresh.size
        yield prompt, np.concatenate(parts)[:RESPONSE]


def line(pair):
    """A request as a line of JSON."""
    prompt, response = pair
    row = {"prompt_token_ids": prompt.tolist(), "output_token_ids": response.tolist()}
    return json.dumps(row, separators=(",", ":")) + "\n"


def timed(f, times=3):
    """Best CPU time of several calls, and the last answer; all columns run on one core and do not wait."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        answer = f()
        best = min(best, time.process_time() - start)
    return best, answer


def peak_mib():
    """Largest resident size so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def arctic_driver(depth):
    """Arctic's cache, driven from Python as its simulator does, without the simulator's overhead."""
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    def drive(pairs):
        cache = SuffixDecodingCache(max_tree_depth=depth, max_cached_requests=100_000)
        steps = drafted = accepted = 0
        for name, (prompt, response) in enumerate(pairs):
            text, at, end = np.concatenate([prompt, response]), prompt.size, prompt.size + response.size
            cache.start_request(name, prompt)
            while at < end:
                found = cache.speculate(name, text[max(0, at - depth) : at], max_spec_tokens=32, min_token_prob=0.1)
                draft = found.token_ids
                n = 0
                while n < len(draft) and at + n < end and draft[n] == text[at + n]:
                    n += 1
                steps, drafted, accepted = steps + 1, drafted + len(draft), accepted + n
                stop = min(at + n + 1, end)
                cache.add_active_response(name, text[at:stop])
                at = stop
            cache.stop_request(name)
        return steps, drafted, accepted

    return drive


def long_trace(n):
    """A file with the lines of n requests: 200 different ones, again and again."""
    path = Path(tempfile.mkdtemp()) / "trace.jsonl"
    block = [line(pair) for pair in requests(200)]
    with path.open("w") as out:
        for i in range(n):
            out.write(block[i % len(block)])
    return path


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4_000_000)
    parser.add_argument("--arctic", action="store_true")
    args = parser.parse_args()
    rows, n = [], max(1, args.tokens // (PROMPT + RESPONSE))

    def note(what, tokens, seconds, **more):
        rows.append({"what": what, "tokens": tokens, "s": seconds, "tokens_per_s": tokens / seconds, **more})
        extra = "  ".join(f"{k} {v}" for k, v in more.items())
        print(f"{what:<58}{tokens / seconds / 1e6:>9.2f} M tokens/CPU s  {extra}", flush=True)

    source = parse_source("ngram:min=2,max=5,k=3")
    if n > 20_000:
        run(ReplayPlan(paths=(long_trace(2000),), sources=(source,)), TraceReader())
        path, before = long_trace(n), peak_mib()
        start = time.process_time()
        result = run(ReplayPlan(paths=(path,), sources=(source,)), TraceReader())
        path.unlink()
        note(
            "n-gram, JSON lines to counts, one stream",
            result.tokens,
            time.process_time() - start,
            peak_mib_before=round(before),
            peak_mib_after=round(peak_mib()),
        )
    else:
        pairs = list(requests(n))
        stream, starts, prompts = join([p for p, _ in pairs], [r for _, r in pairs])
        path = Path(tempfile.mkdtemp()) / "trace.jsonl"
        path.write_text("".join(map(line, pairs)))
        run(ReplayPlan(paths=(path,), sources=(source,)), TraceReader())  # compiled, and the file is in memory
        seconds, result = timed(lambda: run(ReplayPlan(paths=(path,), sources=(source,)), TraceReader()))
        note(
            "n-gram, JSON lines to counts, one core",
            stream.size,
            seconds,
            accepted=result.sources[0].total.accepted_tokens,
        )
        seconds, _ = timed(lambda: sum(1 for _ in TraceReader().read([path])))
        note("of that: reading and parsing", stream.size, seconds)
        scan_every_position(stream[:4096], np.array([0, 2048]), vllm_v1(2, 5), 3)
        seconds, ours = timed(lambda: scan_every_position(stream, starts, vllm_v1(2, 5), 3))
        note("n-gram, every position", stream.size, seconds, totals=ours)
        for depth in (24, 64):
            options = {"max_tree_depth": depth, "max_cached_requests": 100_000, "prefill_emits": 0}
            replay_suffix(stream[: starts[1]], starts[:2], prompts[:1], 32, **options)
            seconds, steps = timed(lambda o=options: replay_suffix(stream, starts, prompts, 32, **o), times=1)
            totals = (len(steps), int(steps.drafted.sum()), int(steps.accepted.sum()))
            note(f"suffix, depth {depth}, whole trace", stream.size, seconds, totals=totals)
            if args.arctic:
                other, theirs = timed(lambda d=depth: arctic_driver(d)(pairs), times=1)
                factor = round(other / seconds, 1)
                note(f"Arctic's cache from Python, depth {depth}", stream.size, other, totals=theirs, factor=factor)
                assert totals == theirs, (totals, theirs)  # noqa: S101 - a speed counts only for equal answers
    print(json.dumps({"benchmark": "replay", "rows": rows, "loadavg": os.getloadavg(), "python": sys.version}))


if __name__ == "__main__":
    main()
