"""Engines' own draft sources, for comparison where they can be found."""

import importlib.util
import os
import sys
import types
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def _standing_in(**modules):
    """Modules that are importable for the time being."""
    saved = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, before in saved.items():
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before


def vllm_ngram():
    """Module of vLLM's V1 n-gram proposer, read from the folder with an unpacked ``vllm/`` that PEER_VLLM names.

    None where it names none. Only the one file is loaded; what it imports of vLLM serves its annotations alone.
    """
    root = os.environ.get("PEER_VLLM")
    if root is None:
        return None
    config = types.ModuleType("vllm.config")
    config.VllmConfig = object
    path = Path(root) / "vllm/v1/spec_decode/ngram_proposer.py"
    spec = importlib.util.spec_from_file_location("peer_vllm_ngram", path)
    module = importlib.util.module_from_spec(spec)
    with _standing_in(**{"vllm": types.ModuleType("vllm"), "vllm.config": config}):
        spec.loader.exec_module(module)
    return module


def vllm_proposer(module, min_n, max_n, k, max_model_len, max_num_seqs):
    """f(tokens[B, L], lens[B]) -> B lists: one call of vLLM's proposer."""
    space = types.SimpleNamespace
    proposer = module.NgramProposer(
        space(
            speculative_config=space(prompt_lookup_min=min_n, prompt_lookup_max=max_n, num_speculative_tokens=k),
            model_config=space(max_model_len=max_model_len),
            scheduler_config=space(max_num_seqs=max_num_seqs),
            parallel_config=space(tensor_parallel_size=1),
        )
    )
    return lambda tokens, lens: proposer.propose(k, [[0]] * len(lens), lens, tokens)


def arctic_cache():
    """Arctic Inference's class of the suffix cache, or None where it is not installed."""
    if importlib.util.find_spec("arctic_inference") is None:
        return None
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    return SuffixDecodingCache
