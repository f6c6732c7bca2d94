"""How serving engines size their key-value pools: vLLM and SGLang, by version.

- `vllm_kv`: vLLM's planner, from cache layers and free bytes to blocks, tokens, concurrency and its messages
"""
