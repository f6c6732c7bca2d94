"""SGLang's own n-gram corpus, built from the sources of its wheel and driven from Python.

PEER_SGLANG names the folder into which a wheel of sglang 0.5.23 was unpacked (the one that holds ``sglang/``); g++ with
C++20 compiles it once into a temporary folder.
"""

import ctypes
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

SEPARATOR = -(2**31)
FOLDER = "sglang/kernels/jit/csrc/ngram_corpus"


@cache
def library():
    """The engine's code behind plain C calls; RuntimeError says what is missing."""
    root = os.environ.get("PEER_SGLANG")
    if not root or not (Path(root) / FOLDER / "ngram.h").exists():
        raise RuntimeError(f"PEER_SGLANG does not name a folder that holds {FOLDER}")
    engine = Path(root) / FOLDER
    built = Path(tempfile.mkdtemp()) / "peer.so"
    sources = [engine / f"{name}.cpp" for name in ("ngram", "trie", "suffix_automaton", "result")]
    command = ["g++", "-O2", "-std=c++20", "-shared", "-fPIC", "-pthread", f"-I{engine}"]
    subprocess.run([*command, *sources, Path(__file__).with_suffix(".cpp"), "-o", built], check=True)
    lib = ctypes.CDLL(str(built))
    lib.peer_new.restype = ctypes.c_void_p
    lib.peer_error.restype = ctypes.c_char_p
    return lib


def pointer(array):
    """Address of an array's first item."""
    return array.ctypes.data_as(ctypes.c_void_p)


def joined(sequences):
    """Sequences end to end, and their borders."""
    offsets = np.zeros(len(sequences) + 1, np.int64)
    np.cumsum([len(sequence) for sequence in sequences], out=offsets[1:])
    return np.concatenate([np.asarray(sequence, np.int32) for sequence in sequences]), offsets


class SglangPeer:
    """The engine's corpus with the calls of `specplan.propose.sglang_ngram.SglangNgram`."""

    def __init__(self, rule):
        numbers = [rule.capacity, rule.max_trie_depth, rule.min_bfs_breadth, rule.max_bfs_breadth]
        numbers += [rule.draft_token_num, rule.external_sam_budget, rule.external_corpus_max_tokens]
        self.width = rule.draft_token_num
        self.lib = library()
        self.peer = ctypes.c_void_p(self.lib.peer_new(pointer(np.array(numbers, np.int64)), rule.match_type.encode()))
        if not self.peer:
            raise RuntimeError(self.lib.peer_error().decode())

    def close(self):
        """Free it."""
        self.lib.peer_delete(self.peer)

    def check(self, failed):
        """RuntimeError with the engine's words after a call that failed."""
        if failed:
            raise RuntimeError(self.lib.peer_error().decode())

    def put(self, sequences):
        """Insert and wait."""
        tokens, offsets = joined(sequences)
        self.check(self.lib.peer_put(self.peer, pointer(tokens), pointer(offsets), ctypes.c_int64(len(sequences))))

    def match(self, states, contexts, totals):
        """Tokens (B, N) and masks (B, N, N)."""
        n = len(contexts)
        tokens, offsets = joined(contexts)
        states, totals = np.array(states, np.int64), np.array(totals, np.int64)
        drafted, masks = np.empty((n, self.width), np.int32), np.empty((n, self.width, self.width), np.uint8)
        self.check(
            self.lib.peer_match(
                self.peer,
                pointer(states),
                pointer(tokens),
                pointer(offsets),
                pointer(totals),
                ctypes.c_int64(n),
                pointer(drafted),
                pointer(masks),
            )
        )
        return drafted, masks

    def erase(self, states):
        """Drop match states."""
        array = np.array(states, np.int64)
        self.check(self.lib.peer_erase(self.peer, pointer(array), ctypes.c_int64(len(array))))

    def reset(self):
        """Empty the trie."""
        self.check(self.lib.peer_reset(self.peer))

    def add_corpus(self, name, documents, chunk=4096):
        """Build an external corpus, streamed in chunks."""
        tokens = []
        for i, document in enumerate(documents):
            tokens += [np.array([SEPARATOR], np.int32)] * (i > 0) + [np.asarray(document, np.int32)]
        array = np.concatenate(tokens)
        self.check(
            self.lib.peer_add_corpus(
                self.peer, name.encode(), pointer(array), ctypes.c_int64(len(array)), ctypes.c_int64(chunk)
            )
        )

    def remove_corpus(self, name):
        """Drop an external corpus."""
        self.check(self.lib.peer_remove_corpus(self.peer, name.encode()))


def paths_of(tokens, mask):
    """Root-to-node paths of one tree, padding included, sorted."""
    return sorted(tuple(tokens[j] for j in np.flatnonzero(row) if j) for row in mask[1:])
