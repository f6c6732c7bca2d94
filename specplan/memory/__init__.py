"""How serving engines size their key-value pools: vLLM and SGLang, by version.

- `vllm`: what vLLM will print: budget, terms, pages and the planner put together
- `vllm_kv`: its planner, from cache layers and free bytes to blocks, tokens, concurrency and its messages
- `vllm_pages`: from a model to the cache layers of one rank
- `vllm_memory`, `vllm_fits`: activation peak, non-torch memory and graphs; the constants fitted to logs
- `sglang`: SGLang's fraction, cells, draft reserve and words
- `rank_weights`: weights that one rank holds, as engines load them
- `speculative`: the engines' speculative flags, validated
- `prediction`: what both answer
- `blocks`: a pool without and with a draft, and what the draft costs
- `startup_check`: a start-up log beside its prediction
"""
