"""Guess tokens: one file per real proposer and per engine's rule. Token ids in, a draft out.

- `protocol`: the one protocol that all proposers answer, and the draft that they hand over
- `ngram`, `ngram_replay`: n-gram drafting by the rules of vLLM (both runners) and transformers
- `suffix`, `suffix_replay`: suffix decoding as Arctic Inference does it
- `vllm_suffix`: how vLLM drives suffix decoding
- `sglang_*`, `automaton*`: SGLang's online trie and its automaton for external corpora
- `spelling`, `build`: sources as they are written on the command line, and a running proposer of each
- `stores`: shared stores by tenant, model and tokenizer
- `vocab_mapping`: what a draft model and a target with different tokenizers can both say
- `steps`: what a compiled replay hands back; `compiled`: numba, imported only when used
"""
