"""Speed and memory of SGLang's n-gram drafting as specplan runs it: match, insert, corpus build, replay.

::

    python benchmarks/sglang_proposers.py [--corpus-tokens 200000 1000000] [--stream tokens.npy] [--rounds 200]

With PEER_SGLANG (see sglang_peer.py) the engine's own code does the same work in turn, call by call, in the same run.
Two texts. `branching`: after each token one of four fixed ones, as a trie sees at its widest. `sources`: the standard
library's sources in words, blanks and signs, or the tokens of --stream. Times are medians of CPU time over all threads
of the process (other processes do not count) and include the calls from Python; bytes of the peer are the growth of the
resident set. Set OMP_NUM_THREADS=1. One table, and a last line of JSON.
"""

import argparse
import ctypes
import itertools
import json
import os
import re
import statistics
import sysconfig
import time
from pathlib import Path

import numpy as np
from sglang_peer import SglangPeer, paths_of

from specplan.propose.automaton import SuffixAutomaton
from specplan.propose.sglang_ngram import SglangNgram
from specplan.propose.sglang_replay import replay
from specplan.propose.sglang_rule import QUIRKS, SglangRule

BATCH = 48
DEPTH = 18
WINDOWS = 14_400


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


def resident():
    """Bytes of the process in memory, freed ones given back."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def timed(call, *arguments):
    """A call's answer and its CPU seconds."""
    start = time.process_time()
    answer = call(*arguments)
    return answer, time.process_time() - start


def insert(ngram, sequences):
    """Queue and insert."""
    ngram.put(sequences)
    ngram.synchronize()


def trie_rows(text, rounds, has_peer):
    """Match and insert of a batch whose requests move through the text, as the engine's worker does."""
    for match_type, width in (("BFS", 12), ("PROB", 12), ("BFS", 32)):
        rule = SglangRule(draft_token_num=width, match_type=match_type, quirks=QUIRKS, capacity=4_000_000)
        ngram, peer = SglangNgram(rule), SglangPeer(rule) if has_peer else None
        first = [text[w * DEPTH : (w + 1) * DEPTH] for w in range(WINDOWS)]
        insert(ngram, first)
        if peer:
            before = resident()
            peer.put(first)
            peer_bytes = (resident() - before) / ngram.trie.n_nodes
        nodes_bytes = ngram.trie.memory_bytes / ngram.trie.n_nodes
        at = np.random.default_rng(1).integers(DEPTH, len(text) - 5000, BATCH)
        requests = list(range(BATCH))
        times, drafted = {}, 0
        for _ in range(rounds):
            tails, totals = [text[i - DEPTH : i] for i in at], at.tolist()
            trees, taken = timed(ngram.match, requests, tails, totals)
            times.setdefault("match", []).append(taken)
            times.setdefault("insert", []).append(timed(insert, ngram, tails)[1])
            if peer:
                theirs, taken = timed(peer.match, requests, tails, totals)
                times.setdefault("peer match", []).append(taken)
                times.setdefault("peer insert", []).append(timed(peer.put, tails)[1])
                masks = trees.links(totals).masks
                if any(paths_of(trees.tokens[b], masks[b]) != paths_of(theirs[0][b], theirs[1][b]) for b in (0, 9)):
                    raise SystemExit("the engine's trees differ from specplan's")
            drafted += int(trees.sizes.sum()) - BATCH
            at += 2
            at[at >= len(text)] -= len(text) - DEPTH
        us = {name: statistics.median(taken) / BATCH * 1e6 for name, taken in times.items()}
        label = f"{match_type} N={width}"
        yield f"trie match {label}", "us/request", us["match"], us.get("peer match")
        yield f"trie insert {label}", "us/window", us["insert"], us.get("peer insert")
        yield f"trie memory {label}", "B/node in use", nodes_bytes, peer_bytes if peer else None
        yield f"trie drafts {label}", "nodes/request", drafted / rounds / BATCH, None
        if peer:
            peer.close()


def corpus_rows(text, rounds, has_peer):
    """Build of a frozen automaton, and drafts from it alone."""
    n = len(text)
    label = f"corpus {n:,}"
    automaton = SuffixAutomaton()
    _, grown = timed(automaton.append, text)
    building = automaton.memory_bytes
    _, frozen = timed(automaton.freeze)
    memory = automaton.memory_bytes
    del automaton
    tails = [text[i - DEPTH : i] for i in np.random.default_rng(2).integers(DEPTH, n, BATCH)]
    rows = []
    for match_type in ("BFS", "PROB"):
        rule = SglangRule(
            match_type=match_type, external_sam_budget=11, external_corpus_max_tokens=n, quirks=QUIRKS, capacity=100
        )
        ngram, peer = SglangNgram(rule), None
        ngram.corpora.add("c", [text])
        if has_peer:
            peer, before = SglangPeer(rule), resident()
            _, peer_built = timed(peer.add_corpus, "c", [text])
            peer_memory = resident() - before
        requests, totals = list(range(BATCH)), [DEPTH] * BATCH
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(timed(ngram.match, requests, tails, totals)[1])
            if peer:
                theirs.append(timed(peer.match, requests, tails, totals)[1])
        rows.append((match_type, statistics.median(ours), statistics.median(theirs) if peer else None))
        if peer:
            peer.close()
    yield f"{label} build", "us/token", (grown + frozen) / n * 1e6, peer_built / n * 1e6 if has_peer else None
    yield f"{label} of it freeze", "us/token", frozen / n * 1e6, None
    yield f"{label} memory", "B/token", memory / n, peer_memory / n if has_peer else None
    yield f"{label} memory while growing", "B/token", building / n, None
    for match_type, ours, theirs in rows:
        yield f"{label} match {match_type} N=12", "us/request", ours / BATCH * 1e6, theirs and theirs / BATCH * 1e6


def replay_rows(text):
    """Whole requests through trie and verification, in one call."""
    size = 2048
    starts = np.arange(0, min(len(text), 1_000_000) + 1, size)
    prompts = np.full(len(starts) - 1, size // 2)
    for quirks in (QUIRKS, None):
        for match_type in ("BFS", "PROB"):
            rule = SglangRule(match_type=match_type, quirks=quirks)
            replay(text[: 2 * size], starts[:3], prompts[:2], SglangNgram(rule))
            ngram = SglangNgram(rule)
            steps, taken = timed(replay, text[: starts[-1]], starts, prompts, ngram)
            label = f"replay {match_type} {quirks or 'sane'}"
            yield label, "us/step", taken / len(steps) * 1e6, None
            yield f"{label} speed", "response tokens/s", (starts[-1] - prompts.sum()) / taken, None
            yield f"{label} emitted", "tokens/step", float(steps.emitted.mean()), None
            yield f"{label} trie", "nodes", ngram.trie.n_nodes, None


def main():
    """Print one table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus-tokens", type=int, nargs="*", default=[200_000, 1_000_000])
    parser.add_argument("--stream", type=Path, help="tokens (.npy) to use in place of the sources")
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    has_peer = "PEER_SGLANG" in os.environ
    most = max([1_000_000, *args.corpus_tokens])
    text = np.load(args.stream)[:most].astype(np.int32) if args.stream else sources(most)
    warm = SuffixAutomaton()
    warm.append(text[:100])
    warm.freeze()
    rows = [("branching", *row) for row in trie_rows(branching(400_000), args.rounds, has_peer)]
    rows += [("sources", *row) for row in trie_rows(text, args.rounds, has_peer)]
    for n in args.corpus_tokens:
        rows += [("sources", *row) for row in corpus_rows(text[:n], args.rounds, has_peer)]
    rows += [("sources", *row) for row in replay_rows(text)]
    print(f"{'text':10} {'what':38} {'specplan':>14} {'sglang':>10} {'ratio':>7}")
    for name, what, unit, value, peer in rows:
        theirs = f"{peer:10,.2f} {value / peer:7.2f}" if peer else " " * 18
        print(f"{name:10} {what:38} {value:14,.2f} {theirs} {unit}")
    keys = ("text", "what", "unit", "specplan", "sglang")
    document = [dict(zip(keys, (*row[:3], float(row[3]), row[4] and float(row[4])), strict=True)) for row in rows]
    print(json.dumps({"benchmark": "sglang_proposers", "batch": BATCH, "depth": DEPTH, "rows": document}))


if __name__ == "__main__":
    main()
