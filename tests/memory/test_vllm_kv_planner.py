"""vLLM's own planner is the oracle: recorded plans, chosen and random, then laws over random layers."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import InfeasibleError, UnsupportedError
from specplan.memory.vllm_kv import (
    CacheKind,
    CacheLayer,
    CacheSettings,
    StateCache,
    group_layers,
    pages_per_request,
    plan_cache,
)

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "vllm_kv_cases.json").read_text())["cases"]
RANDOM_CASES = json.loads((DATA / "vllm_kv_random_cases.json").read_text())["cases"]
KINDS = {
    "FullAttentionSpec": CacheKind.FULL,
    "MLAAttentionSpec": CacheKind.LATENT,
    "SlidingWindowSpec": CacheKind.SLIDING,
    "ChunkedLocalAttentionSpec": CacheKind.CHUNKED,
    "MambaSpec": CacheKind.RECURRENT,
    "CrossAttentionSpec": CacheKind.CROSS,
}


def _layers(specs: list[dict[str, Any]]) -> list[CacheLayer]:
    return [
        CacheLayer(
            kind=KINDS[s["kind"]],
            block_size=s["block_size"],
            page_bytes=s["page_bytes"],
            # two states of one page but different contents are different layers
            shape=(s.get("num_kv_heads", 0), s.get("head_size", 0), s.get("head_size_v", 0), s.get("unpadded", 0)),
            window=s.get("sliding_window"),
            chunk=s.get("attention_chunk_size"),
            state_blocks=s.get("num_speculative_blocks", 0),
            encoder_tokens=1500 if s["kind"] == "CrossAttentionSpec" else 0,
            context_sharded=s.get("sharded", True),
        )
        for s in specs
        for _ in range(s["count"])
    ]


def _settings(case: dict[str, Any]) -> CacheSettings:
    options = case["options"]
    return CacheSettings(
        max_model_len=case["max_model_len"],
        in_flight_tokens=case["max_in_flight_tokens"],
        hybrid=not options.get("hyb_off", False),
        state_cache=StateCache(options.get("mamba", "none")),
        context_parallel=options.get("dcp", 1),
        blocks_override=options.get("override"),
        lookahead=max(0, options.get("look", 0) - 1),
        fit=options.get("orig") == -1,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_plans_equal_vllms(case: dict[str, Any]) -> None:
    stages = [_layers(stage) for stage in case["layers"]]
    if "error" in case:
        with pytest.raises(InfeasibleError) as caught:
            plan_cache(stages, case["available_bytes"], _settings(case))
        assert f"ValueError: {caught.value}" == case["error"]
        return
    plan = plan_cache(stages, case["available_bytes"], _settings(case))
    want = case["expected"]
    assert plan.num_blocks == want["num_blocks"]
    assert plan.tokens == want["tokens"]
    assert plan.max_concurrency == want["max_concurrency"]
    assert plan.log_lines == (want["log"],)
    assert plan.max_model_len == want["final_max_model_len"]
    assert list(plan.bytes_per_block) == want["bytes_per_block"]
    first_stage = [
        (sum(s == 0 for s in g.stages), g.layers[0].block_size, g.layers[0].page_bytes, g.layers[0].kind)
        for g in plan.groups
    ]
    assert first_stage == [
        (g["layers"], g["block_size"], g["page_bytes_of_rep"], KINDS[g["kind"]]) for g in want["groups"]
    ]


@pytest.mark.parametrize("case", RANDOM_CASES, ids=lambda case: case["name"])
def test_random_plans_and_refusals_equal_vllms(case: dict[str, Any]) -> None:
    stages = [_layers(stage) for stage in case["layers"]]
    if "error" in case:
        with pytest.raises((InfeasibleError, UnsupportedError)) as caught:
            plan_cache(stages, case["available_bytes"], _settings(case))
        assert f"ValueError: {caught.value}" == case["error"]
        return
    plan = plan_cache(stages, case["available_bytes"], _settings(case))
    assert {
        "num_blocks": plan.num_blocks,
        "tokens": plan.tokens,
        "max_concurrency": plan.max_concurrency,
        "final_max_model_len": plan.max_model_len,
    } == case["expected"]


def _layer(kind: CacheKind, page: int, **more: Any) -> CacheLayer:
    return CacheLayer(kind=kind, block_size=16, page_bytes=page, **more)


def test_the_older_print_divides_blocks_among_groups() -> None:
    # gemma-4-26B with an EAGLE-3 layer on vLLM 0.19: 127,303 blocks in 31 groups printed as 65,696 tokens, 3.54x.
    sliding = _layer(CacheKind.SLIDING, 32768, shape=(8, 256, 256), window=1024)
    full = CacheLayer(kind=CacheKind.FULL, block_size=32, page_bytes=32768, shape=(2, 512, 512))
    draft = _layer(CacheKind.FULL, 32768, shape=(8, 128, 128))
    options = CacheSettings(max_model_len=98304, in_flight_tokens=8192, tokens_by_concurrency=False)
    plan = plan_cache([[sliding] * 25 + [full] * 5 + [draft]], [127303 * 65536 // 2], options)
    assert (len(plan.groups), plan.num_blocks, plan.tokens) == (31, 127303, 65696)
    assert plan.log_lines[0] == "GPU KV cache size: 65,696 tokens"
    assert plan.log_lines[1].startswith("Maximum concurrency for 98,304 tokens per request: 3.")


def test_a_latent_page_that_does_not_divide_is_refused() -> None:
    latent = _layer(CacheKind.LATENT, 18432)
    state = _layer(CacheKind.RECURRENT, 65536)
    with pytest.raises(UnsupportedError, match="18432"):
        group_layers([(latent, 0), (state, 0)], CacheSettings(max_model_len=64, in_flight_tokens=64))


def test_windows_beside_an_indivisible_latent_page_are_kept_in_full() -> None:
    latent = _layer(CacheKind.LATENT, 18432)
    window = _layer(CacheKind.SLIDING, 32768, window=128)
    groups = group_layers([(latent, 0), (window, 0)], CacheSettings(max_model_len=64, in_flight_tokens=64))
    assert [group.bytes_per_block(0) for group in groups] == [18432 + 32768]


def test_without_the_hybrid_manager_windows_alone_stay_windows() -> None:
    window = _layer(CacheKind.SLIDING, 32768, window=128)
    options = CacheSettings(max_model_len=131072, in_flight_tokens=1024, hybrid=False)
    (group,) = group_layers([(window, 0)] * 4, options)
    assert group.blocks_per_request(131072, options) == -(-(128 - 1 + 1024) // 16) + 1
    chunk = _layer(CacheKind.CHUNKED, 32768, chunk=128)
    with pytest.raises(UnsupportedError, match="Failed to promote"):
        group_layers([(window, 0), (chunk, 0)], options)


def test_cross_attention_reserves_the_encoders_tokens_and_windows_refuse_context_parallel_ranks() -> None:
    cross = _layer(CacheKind.CROSS, 32768, encoder_tokens=1500)
    options = CacheSettings(max_model_len=448, in_flight_tokens=448, context_parallel=2)
    assert pages_per_request(cross, 448, options) == 94
    with pytest.raises(UnsupportedError, match="context parallel"):
        pages_per_request(_layer(CacheKind.SLIDING, 32768, window=64), 448, options)


attention = st.builds(
    lambda kind, heads: _layer(
        kind, heads * 8192, shape=(heads, 128), window=512 if kind is CacheKind.SLIDING else None
    ),
    st.sampled_from([CacheKind.FULL, CacheKind.SLIDING]),
    st.sampled_from([1, 2, 4, 8]),
)


@settings(max_examples=60, deadline=None)
@given(layers=st.lists(attention, min_size=1, max_size=40), blocks=st.integers(200, 5000), length=st.integers(16, 1000))
def test_laws_of_any_mixture(layers: list[CacheLayer], blocks: int, length: int) -> None:
    options = CacheSettings(max_model_len=length, in_flight_tokens=256)
    groups = group_layers([(layer, 0) for layer in layers], options)
    assert sum(len(group.layers) for group in groups) == len(layers)
    size = max(group.bytes_per_block(0) for group in groups)
    need = sum(group.blocks_per_request(length, options) for group in groups)
    try:
        plan = plan_cache([layers], [blocks * size + size // 2], options)
    except InfeasibleError:
        assert need > blocks - 1
        return
    assert need <= blocks - 1
    assert plan.num_blocks == blocks
    assert plan.tokens == int(blocks / need * length)
    # A request never holds less than its tokens: each full group covers the length.
    for group in groups:
        if group.layers[0].kind is CacheKind.FULL:
            assert group.blocks_per_request(length, options) * group.layers[0].block_size >= length


@settings(max_examples=40, deadline=None)
@given(layers=st.lists(attention, min_size=1, max_size=24), free=st.integers(2**28, 2**33))
def test_a_longer_limit_never_raises_the_number_of_requests(layers: list[CacheLayer], free: int) -> None:
    plans = [
        plan_cache([layers], [free], CacheSettings(max_model_len=n, in_flight_tokens=256, fit=True))
        for n in (64, 256, 1024)
    ]
    assert all(a.max_concurrency >= b.max_concurrency for a, b in itertools.pairwise(plans))
