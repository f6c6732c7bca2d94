"""Speed and memory of SGLang's n-gram drafting as specplan runs it: match, insert, corpus build, replay.

::

    python benchmarks/sglang_proposers.py [--corpus-tokens 200000 1000000] [--stream tokens.npy] [--seconds 1]

Two texts. `branching`: after each token one of four fixed ones, as a trie sees at its widest. `sources`: the standard
library's sources in words, blanks and signs, or the tokens of --stream. Times are medians over calls and include the
Python call. Set OMP_NUM_THREADS=1. One table, and a last line of JSON.
"""

import argparse
import itertools
import json
import re
import statistics
import sysconfig
import time
from pathlib import Path

import numpy as np

from specplan.propose.automaton import SuffixAutomaton
from specplan.propose.sglang_ngram import SglangNgram
from specplan.propose.sglang_replay import replay
from specplan.propose.sglang_rule import QUIRKS, SglangRule

BATCH = 48
DEPTH = 18


def branching(n, vocabulary=4096, seed=0):
    """Tokens of a walk: four successors per token, chosen at random."""
    rng = np.random.default_rng(seed)
    successors = rng.integers(0, vocabulary, (vocabulary, 4))
    turns = rng.integers(0, 4, n).tolist()
    token, text = 0, []
    for turn in turns:
        token = successors[token, turn]
        text.append(token)
    return np.array(text, np.int32)


def sources(n):
    """Ids of words, blanks and signs in the order they are first met."""
    ids, counter = {}, itertools.count()
    text = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" not in path.parts:
            pieces = re.findall(r"\w+|\s+|[^\w\s]", path.read_text(encoding="utf-8", errors="ignore"))
            text.extend(ids[p] if p in ids else ids.setdefault(p, next(counter)) for p in pieces)
        if len(text) >= n:
            break
    return np.array(text[:n], np.int32)


def us_per(function, items, seconds):
    """Median microseconds per item of repeated calls, the first one left out."""
    function()
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times) / items * 1e6


def trie_rows(text, seconds):
    """Match and insert of a batch whose requests move through the text, as the engine's worker does."""
    for match_type, width in (("BFS", 12), ("PROB", 12), ("BFS", 32)):
        ngram = SglangNgram(SglangRule(draft_token_num=width, match_type=match_type, quirks=QUIRKS))
        windows = len(text) // DEPTH
        start = time.perf_counter()
        ngram.put([text[w * DEPTH : (w + 1) * DEPTH] for w in range(min(windows, 14_400))])
        ngram.synchronize()
        filled = time.perf_counter() - start
        rng = np.random.default_rng(1)
        at = rng.integers(DEPTH, len(text) - 5000, BATCH)
        requests = list(range(BATCH))
        match_s, insert_s, drafted = [], [], 0
        end = time.perf_counter() + seconds
        while len(match_s) < 20 or time.perf_counter() < end:
            tails = [text[i - DEPTH : i] for i in at]
            start = time.perf_counter()
            trees = ngram.match(requests, tails, at.tolist())
            middle = time.perf_counter()
            ngram.put(tails)
            ngram.synchronize()
            insert_s.append(time.perf_counter() - middle)
            match_s.append(middle - start)
            drafted += int(trees.sizes.sum()) - BATCH
            at += 2
            at[at >= len(text)] -= len(text) - DEPTH
        yield f"trie match {match_type} N={width}", "us/request", statistics.median(match_s[1:]) / BATCH * 1e6
        yield f"trie insert {match_type} N={width}", "us/window", statistics.median(insert_s[1:]) / BATCH * 1e6
        yield f"trie nodes drafted {match_type} N={width}", "per request", drafted / len(match_s) / BATCH
        yield f"trie fill {match_type} N={width}", "us/window", filled / min(windows, 14_400) * 1e6
        yield f"trie memory {match_type} N={width}", "B/node", ngram.trie.memory_bytes / ngram.trie.n_nodes


def corpus_rows(text, seconds):
    """Build of a frozen automaton, and drafts from it alone."""
    n = len(text)
    label = f"corpus {n:,}"
    automaton = SuffixAutomaton()
    start = time.perf_counter()
    automaton.append(text)
    grown = time.perf_counter()
    building = automaton.memory_bytes
    automaton.freeze()
    frozen = time.perf_counter()
    yield f"{label} build", "us/token", (frozen - start) / n * 1e6
    yield f"{label} of it freeze", "us/token", (frozen - grown) / n * 1e6
    yield f"{label} memory", "B/token", automaton.memory_bytes / n
    yield f"{label} memory while growing", "B/token", building / n
    del automaton
    rng = np.random.default_rng(2)
    for match_type in ("BFS", "PROB"):
        rule = SglangRule(
            match_type=match_type, external_sam_budget=11, external_corpus_max_tokens=n, quirks=QUIRKS, capacity=100
        )
        ngram = SglangNgram(rule)
        ngram.corpora.add("c", [text])
        tails = [text[i - DEPTH : i] for i in rng.integers(DEPTH, n, BATCH)]

        def match(ngram=ngram, tails=tails):
            ngram.match(range(BATCH), tails)

        yield f"{label} match {match_type} N=12", "us/request", us_per(match, BATCH, seconds)


def replay_rows(text, seconds):
    """Whole requests through trie and verification, in one call."""
    size = 2048
    starts = np.arange(0, min(len(text), 1_000_000) + 1, size)
    prompts = np.full(len(starts) - 1, size // 2)
    for quirks in (QUIRKS, None):
        for match_type in ("BFS", "PROB"):
            rule = SglangRule(match_type=match_type, quirks=quirks)
            replay(text[: 2 * size], starts[:3], prompts[:2], SglangNgram(rule))
            ngram = SglangNgram(rule)
            start = time.perf_counter()
            steps = replay(text[: starts[-1]], starts, prompts, ngram)
            took = time.perf_counter() - start
            label = f"replay {match_type} {quirks or 'sane'}"
            yield label, "us/step", took / len(steps) * 1e6
            yield f"{label} speed", "response tokens/s", (starts[-1] - prompts.sum()) / took
            yield f"{label} emitted", "tokens/step", float(steps.emitted.mean())
            yield f"{label} nodes held", "nodes", ngram.trie.n_nodes
    del seconds


def main():
    """Print one table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus-tokens", type=int, nargs="*", default=[200_000, 1_000_000])
    parser.add_argument("--stream", type=Path, help="tokens (.npy) to use in place of the sources")
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    most = max([1_000_000, *args.corpus_tokens])
    text = np.load(args.stream)[:most].astype(np.int32) if args.stream else sources(most)
    SuffixAutomaton().append(text[:100])
    rows = [("branching", *row) for row in trie_rows(branching(400_000), args.seconds)]
    rows += [("sources", *row) for row in trie_rows(text, args.seconds)]
    for n in args.corpus_tokens:
        rows += [("sources", *row) for row in corpus_rows(text[:n], args.seconds)]
    rows += [("sources", *row) for row in replay_rows(text, args.seconds)]
    for name, what, unit, value in rows:
        print(f"{name:10} {what:38} {value:14,.3f} {unit}")
    document = [{"text": t, "what": w, "unit": u, "value": float(v)} for t, w, u, v in rows]
    print(json.dumps({"benchmark": "sglang_proposers", "batch": BATCH, "depth": DEPTH, "rows": document}))


if __name__ == "__main__":
    main()
