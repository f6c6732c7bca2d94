"""Speed of n-gram and suffix drafting beside the engines' own, in one run.

``python benchmarks/proposers.py [--tokens stream.npy] [--quick]``. Peers are measured where they are found: Arctic
Inference where it is installed, vLLM's n-gram file where PEER_VLLM names the folder of an unpacked ``vllm/``. Medians
of wall time, columns interleaved; compare ratios, and only where the load is low. One table, a last line of JSON.
"""

import argparse
import json
import os
import re
import statistics
import sysconfig
import time
from pathlib import Path

import numpy as np
import peers
from peer_columns import NgramSequence, SuffixColumn, ngram, ngram_replay, suffix_replay

MIN_N, MAX_N, K = 2, 5, 3


def words_of_the_standard_library(n):
    """So many tokens: words, numbers and signs of the standard library's sources, numbered as they appear."""
    ids, stream = {}, []
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [p for p in sorted(root.rglob("*.py")) if "site-packages" not in p.parts]
    for at in np.random.default_rng(0).permutation(len(files)):
        text = files[at].read_text(encoding="utf-8", errors="ignore")
        stream += [ids.setdefault(w, len(ids)) for w in re.findall(r"\w+|\s+|[^\w\s]", text)]
        if len(stream) >= n:
            break
    return np.array(stream[:n], np.int32)


def medians_s(columns, seconds):
    """Median seconds of a call of each column, called in turn."""
    samples = {name: [] for name in columns}
    for call in columns.values():
        call()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds * len(columns) or len(next(iter(samples.values()))) < 5:
        for name, call in columns.items():
            before = time.perf_counter()
            call()
            samples[name].append(time.perf_counter() - before)
    return {name: statistics.median(values) for name, values in samples.items()}


class Table:
    """Rows as they come, ours beside a peer's."""

    def __init__(self):
        self.rows = []
        print(f"{'what':<50}{'specplan':>14}{'peer':>14}{'ours/peer':>11}  peer")

    def add(self, what, unit, values):
        """Add the columns of one case; the peer is the column that is not ours."""
        peer = next((name for name in values if name != "specplan"), None)
        row = {"what": what, "unit": unit, **values}
        ratio = None if peer is None else values["specplan"] / values[peer]
        self.rows.append(row | {"ratio": ratio})
        theirs = "-" if peer is None else f"{values[peer]:.4g}"
        print(
            f"{what + ', ' + unit:<50}{values['specplan']:>14.4g}{theirs:>14}"
            f"{'-' if ratio is None else format(ratio, '.3f'):>11}  {peer or '-'}",
            flush=True,
        )


def one_shot(table, stream, vllm, lens, batches, seconds):
    """One proposal for each row of a batch."""
    for size in lens:
        for batch in batches:
            if size * batch > 1 << 22:
                continue
            places = [(i * 9973) % max(1, stream.size - size) for i in range(batch)]
            tokens = np.stack([np.resize(stream[a : a + size], size) for a in places])
            rows = np.full(batch, size, np.int32)
            calls = {"specplan": ngram(MIN_N, MAX_N, K, size + 64)}
            if vllm is not None:
                calls["vllm propose()"] = peers.vllm_proposer(vllm, MIN_N, MAX_N, K, size + 64, batch)
                if calls["specplan"](tokens, rows) != calls["vllm propose()"](tokens, rows):
                    raise SystemExit("n-gram drafts differ from vLLM's")
            calls = {name: (lambda f=f: f(tokens, rows)) for name, f in calls.items()}  # noqa: B023 - called at once
            found = medians_s(calls, seconds)
            table.add(f"n-gram, one shot, T={size} B={batch}", "us", {n: s * 1e6 for n, s in found.items()})


def growing(table, stream, vllm, lens):
    """One request, one token a step: extend and propose."""
    steps = 200
    for size in lens:
        text = np.resize(stream, size + steps)
        column = NgramSequence(MIN_N, MAX_N, K, size + steps)
        column.start(text[:size])
        row, length = np.zeros((1, size + steps), np.int32), np.zeros(1, np.int32)
        row[0, :size] = text[:size]
        propose = None if vllm is None else peers.vllm_proposer(vllm, MIN_N, MAX_N, K, size + steps + 64, 1)
        ours, theirs, drafted = [], [], []
        for at in range(size, size + steps):
            before = time.perf_counter()
            column.extend(text[at : at + 1])
            drafted.append(column.propose())
            ours.append(time.perf_counter() - before)
        # Afterwards, so that a scan of the whole context does not stand between our steps in the processor's caches.
        for at in range(size, size + steps if propose is not None else size):
            before = time.perf_counter()
            row[0, at] = text[at]
            length[0] = at + 1
            draft = propose(row, length)[0]
            theirs.append(time.perf_counter() - before)
            if draft != drafted[at - size]:
                raise SystemExit("n-gram drafts differ from vLLM's")
        values = {"specplan": statistics.median(ours[2:]) * 1e6}
        if theirs:
            values["vllm propose()"] = statistics.median(theirs[2:]) * 1e6
        table.add(f"n-gram, growing request, T={size}", "us/step", values)


def every_position(table, stream, vllm):
    """A proposal at every position of a trace, in one compiled call."""
    starts = np.arange(0, stream.size + 1, 2048)
    columns = {"specplan": ngram_replay(MIN_N, MAX_N, K)}
    if vllm is not None:
        from numba import njit

        kernel = vllm._find_longest_matched_ngram_and_propose_tokens

        @njit
        def loop(stream, starts, lo, hi, k):
            positions = drafted = accepted = 0
            for r in range(len(starts) - 1):
                for t in range(starts[r] + 1, starts[r + 1]):
                    draft = kernel(stream[starts[r] : t], lo, hi, 1 << 30, k)
                    positions += 1
                    drafted += len(draft)
                    for j in range(len(draft)):
                        if t + j >= starts[r + 1] or draft[j] != stream[t + j]:
                            break
                        accepted += 1
            return positions, drafted, accepted

        columns["vllm's kernel, compiled loop"] = lambda s, at: loop(s, at, MIN_N, MAX_N, K)
    totals = {name: f(stream, starts) for name, f in columns.items()}
    if len(set(totals.values())) > 1:
        raise SystemExit(f"totals of the scan differ: {totals}")
    found = medians_s({name: (lambda f=f: f(stream, starts)) for name, f in columns.items()}, 1.0)
    per = {name: s * 1e9 / totals[name][0] for name, s in found.items()}
    table.add(f"n-gram, every position of {stream.size} tokens", "ns/position", per)


def suffix_calls(table, stream, arctic, depth, cached):
    """Calls from Python on a filled cache, and what it holds per token."""
    caches = {"specplan": SuffixColumn(depth)}
    if arctic is not None:
        caches["arctic"] = arctic(max_tree_depth=depth)
    for cache in caches.values():
        for r in range(cached // 2048):
            cache.start_request(("cached", r), stream[:1])
            cache.add_active_response(("cached", r), stream[r * 2048 : (r + 1) * 2048])
            cache.stop_request(("cached", r))
        cache.start_request("active", stream[-12288:-4096])
    seen, random = stream[-4096 - depth : -4096], np.arange(1 << 20, (1 << 20) + depth, dtype=np.int32)
    for what, pattern in ((f"seen pattern of {depth}", seen), ("seen pattern of 8", seen[-8:]), ("unseen", random)):
        drafts = {name: c.speculate("active", pattern, max_spec_tokens=32).token_ids for name, c in caches.items()}
        if len({tuple(d) for d in drafts.values()}) > 1:
            raise SystemExit(f"suffix drafts differ: {drafts}")
        calls = {
            name: (lambda c=c, p=pattern: c.speculate("active", p, max_spec_tokens=32)) for name, c in caches.items()
        }
        found = medians_s(calls, 0.2)
        table.add(f"suffix, speculate, {what}, D={depth}", "us", {n: s * 1e6 for n, s in found.items()})
    place = iter(range(10**9))
    calls = {
        name: (lambda c=c: c.add_active_response("active", stream[(a := next(place) % 4096) : a + 1]))
        for name, c in caches.items()
    }
    table.add(f"suffix, extend by 1, D={depth}", "us", {n: s * 1e6 for n, s in medians_s(calls, 0.2).items()})
    values = {"specplan": caches["specplan"].cache.shared_bytes / caches["specplan"].cache.cached_tokens}
    if arctic is not None:
        values["arctic's own estimate"] = caches["arctic"]._global_tree.estimate_memory() / (cached // 2048 * 2048)
    table.add(f"suffix, shared tree of {cached} tokens, D={depth}", "B/token", values)


def arctic_replay(arctic, depth, requests):
    """The replay of `suffix_replay` on Arctic's cache, driven from Python."""
    cache, totals = arctic(max_tree_depth=depth), np.zeros(3, np.int64)
    for r, (prompt, response) in enumerate(requests):
        cache.start_request(r, prompt)
        text, at, truth = np.concatenate([prompt, response]), len(prompt), response.tolist()
        while at < len(text):
            draft = cache.speculate(r, text[max(0, at - depth) : at], max_spec_tokens=32).token_ids
            rest = truth[at - len(prompt) :]
            good = next((i for i, (a, b) in enumerate(zip(draft, rest, strict=False)) if a != b), None)
            good = min(len(draft), len(rest)) if good is None else good
            new = min(good + 1, len(rest))
            cache.add_active_response(r, text[at : at + new])
            at += new
            totals += (1, len(draft), good)
        cache.stop_request(r)
    return tuple(totals.tolist())


def replays(table, stream, arctic, depth):
    """Whole replays: prompts of 1024 tokens, responses of 1024."""
    requests = [(stream[a : a + 1024], stream[a + 1024 : a + 2048]) for a in range(0, stream.size - 2047, 2048)]
    columns = {"specplan": suffix_replay(depth, 1.0, 0.1, 32)}
    columns["specplan"](requests[:2])
    if arctic is not None:
        columns["arctic's cache from Python"] = lambda rows: arctic_replay(arctic, depth, rows)
    seconds, totals = {}, {}
    for name, run in columns.items():
        before = time.perf_counter()
        totals[name] = run(requests)
        seconds[name] = time.perf_counter() - before
    if len(set(totals.values())) > 1:
        raise SystemExit(f"totals of the replay differ: {totals}")
    per = {name: s * 1e6 / (1024 * len(requests)) for name, s in seconds.items()}
    table.add(f"suffix, replay of {stream.size} tokens, D={depth}", "us/response token", per)


def main():
    """Measure all, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", help="a .npy file with token ids; else words of the standard library")
    parser.add_argument("--quick", action="store_true", help="small sizes, for a smoke run")
    args = parser.parse_args()
    n = 65_536 if args.quick else 2_000_896
    stream = np.load(args.tokens)[:n].astype(np.int32) if args.tokens else words_of_the_standard_library(n)
    stream = stream[: stream.size // 2048 * 2048]
    vllm, arctic = peers.vllm_ngram(), peers.arctic_cache()
    lens = [512, 2048] if args.quick else [512, 2048, 8192, 32768, 131072]
    table = Table()
    one_shot(table, stream, vllm, lens, [1, 8, 64], 0.02 if args.quick else 0.2)
    growing(table, stream, vllm, lens)
    every_position(table, stream, vllm)
    for depth in (24, 64):
        suffix_calls(table, stream, arctic, depth, min(stream.size // 2, 1 << 20))
        replays(table, stream, arctic, depth)
    print(json.dumps({"tokens": stream.size, "load": os.getloadavg(), "rows": table.rows}))


if __name__ == "__main__":
    main()
