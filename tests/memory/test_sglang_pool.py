"""SGLang's pool: the fraction of free memory, cells, the draft's reserve by layers, its own words."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import InputError, UnsupportedError
from specplan.memory.sglang import SglangFlags, cells, default_mem_fraction, predict_sglang
from specplan.memory.speculative import sglang_speculation
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.units import GIB

H100 = load_accelerator("h100-sxm")


@pytest.mark.parametrize(("tp", "fraction"), [(1, 0.83), (4, 0.819)])
def test_default_fraction_on_an_h100(tp: int, fraction: float) -> None:
    assert default_mem_fraction(load_model("llama3-70b"), H100, SglangFlags(tp=tp)) == fraction


# (spec, tp, fraction, free before load, free after load, printed tokens): public logs.
LOGS = [("qwen2.5-32b", 4, 0.85, 21.63, 6.09, 46611), ("qwen2.5-7b", 1, 0.88, 22.76, 8.37, 105531)]


@pytest.mark.parametrize(("name", "tp", "fraction", "before", "after", "tokens"), LOGS)
def test_tokens_from_free_memory(name: str, tp: int, fraction: float, before: float, after: float, tokens: int) -> None:
    flags = SglangFlags(
        tp=tp, mem_fraction_static=fraction, free_before_load=before * GIB, weights=(before - after) * GIB
    )  # fmt: skip
    found = predict_sglang(load_model(name), H100, flags)
    assert found.tokens is not None
    # Both free figures are printed with two decimals.
    assert found.tokens.best == pytest.approx(tokens, rel=0.01 / (after - before * (1 - fraction)))


def test_a_standalone_draft_is_reserved_by_layers_not_by_its_heads() -> None:
    # 70B + 1B at four ranks: 81,920 B per token, a reserve of 81,920 x 16 / 80, though the draft stores 8,192.
    flags = SglangFlags(tp=4, mem_fraction_static=0.85, free_before_load=78 * GIB, weights=34 * GIB)
    target, draft = load_model("llama3-70b"), load_model("llama3.2-1b")
    alone = predict_sglang(target, H100, flags)
    both = predict_sglang(target, H100, flags, sglang_speculation("STANDALONE", "x"), draft)
    assert alone.bytes_per_token == 81920
    assert both.bytes_per_token == 81920 + 16384
    assert cells(draft, draft.layers, "auto", 4).full == 8192
    assert alone.tokens is not None
    assert both.tokens is not None
    assert 1 - both.tokens.best / alone.tokens.best == pytest.approx(1 / 6, abs=1e-4)


def test_a_block_diffusion_draft_is_reserved_exactly() -> None:
    flags = SglangFlags(tp=4, mem_fraction_static=0.85)
    target, draft = load_model("llama3-70b"), load_model("llama3.2-1b")
    found = predict_sglang(target, H100, flags, sglang_speculation("DFLASH", "x"), draft)
    assert found.bytes_per_token == 81920 + 8192


def test_ngram_drafts_take_nothing() -> None:
    flags = SglangFlags(tp=4)
    model = load_model("llama3-70b")
    plain, ngram = predict_sglang(model, H100, flags), predict_sglang(model, H100, flags, sglang_speculation("NGRAM"))
    assert plain.tokens == ngram.tokens


def test_draft_weights_come_off_the_pool_byte_for_byte() -> None:
    flags = SglangFlags(tp=4)
    target, draft = load_model("llama3-70b"), load_model("llama3.2-1b")
    alone = predict_sglang(target, H100, flags)
    both = predict_sglang(target, H100, flags, sglang_speculation("STANDALONE", "x"), draft)
    lost = alone.rank.available.best - both.rank.available.best
    assert lost == pytest.approx(sum(both.rank.draft_weights.values()), rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(free=st.floats(40, 80), page=st.sampled_from([1, 16, 64]), tp=st.sampled_from([4, 8]))
def test_printed_sizes_satisfy_the_logs_identity(free: float, page: int, tp: int) -> None:
    flags = SglangFlags(tp=tp, mem_fraction_static=0.8, free_before_load=free * GIB, weights=20 * GIB, page_size=page)
    found = predict_sglang(load_model("llama3-70b"), H100, flags)
    line = next(line for line in found.log_lines if "KV Cache is allocated" in line)
    tokens, key, value = (
        float(x) for x in re.findall(r"#tokens: (\d+), K size: ([\d.]+) GB, V size: ([\d.]+)", line)[0]
    )
    assert tokens % page == 0
    assert (tokens + page) * found.bytes_per_token == pytest.approx((key + value) * GIB, abs=0.011 * GIB)


def test_windows_get_a_pool_of_their_own() -> None:
    found = predict_sglang(load_model("mimo-v2-flash"), H100, SglangFlags(tp=8, mem_fraction_static=0.9, page_size=64))
    assert found.log_lines[0].startswith("Use sliding window memory pool. full_layer_tokens=")
    full, windowed = (int(x) for x in re.findall(r"tokens=(\d+)", found.log_lines[0]))
    assert windowed == int(full * 0.8) // 64 * 64
    assert f"Full KV Cache is allocated. dtype: torch.bfloat16, #tokens: {full}, " in found.log_lines[1]
    assert f"SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: {windowed}, " in found.log_lines[2]


@pytest.mark.parametrize(
    ("flags", "algorithm", "running"),
    [
        (SglangFlags(), None, 2048),
        (SglangFlags(context_length=8192), None, 4096),
        (SglangFlags(max_running_requests=300), None, 300),
        (SglangFlags(max_total_tokens=400, max_running_requests=300), None, 200),
        (SglangFlags(), "NGRAM", 48),
        (SglangFlags(max_running_requests=64), "NGRAM", 64),
    ],
)
def test_running_requests_as_the_log_states_them(flags: SglangFlags, algorithm: str | None, running: int) -> None:
    speculation = None if algorithm is None else sglang_speculation(algorithm)
    line = predict_sglang(load_model("llama3.1-8b"), H100, flags, speculation).log_lines[-1]
    assert f"max_running_requests={running}, " in line
    assert "chunked_prefill_size=8192, max_prefill_tokens=16384, " in line


def test_recurrent_states_cap_the_running_requests() -> None:
    found = predict_sglang(load_model("qwen3.6-27b"), H100, SglangFlags(mem_fraction_static=0.9, context_length=8192))
    slots = int(found.extra["state_slots"])
    assert f"max_running_requests={slots // 3}, " in found.log_lines[-1]


def test_recurrent_states_come_first_and_a_draft_multiplies_them() -> None:
    model = load_model("qwen3.6-27b")
    flags = SglangFlags(tp=1, mem_fraction_static=0.9, context_length=32768)
    plain = predict_sglang(model, H100, flags)
    drafting = predict_sglang(model, H100, flags, sglang_speculation("NGRAM", num_draft_tokens=8))
    each = cells(model, model.layers, "auto", 1).state
    assert plain.extra["state_bytes"] == (plain.extra["state_slots"] + 1) * each
    assert drafting.extra["state_slots"] < plain.extra["state_slots"]
    share = plain.extra["state_bytes"] / plain.rank.available.best
    assert share == pytest.approx(0.9 / 1.9, abs=0.01)


def test_drafted_states_are_kept_for_the_running_requests_alone() -> None:
    """Speculation runs 48 requests unless told otherwise, and only those keep states of their drafted positions."""
    model, spec = load_model("nemotron-3-nano"), sglang_speculation("NGRAM", num_draft_tokens=4)
    each = cells(model, model.layers, "auto", 1).state
    for flags, running in ((SglangFlags(), 48), (SglangFlags(max_running_requests=20), 20)):
        found = predict_sglang(model, load_accelerator("b300"), flags, spec)
        slots = found.extra["state_slots"]
        assert slots // 3 > running
        assert found.extra["state_bytes"] == pytest.approx(each * (slots + 1 + 4 * (running + 1)))


@pytest.mark.parametrize("name", ["nemotron-3-super", "qwen3.8-27b", "llama3.1-8b"])
@pytest.mark.parametrize("algorithm", [None, "NGRAM"])
def test_the_best_guess_lies_between_its_bounds(name: str, algorithm: str | None) -> None:
    spec = None if algorithm is None else sglang_speculation(algorithm)
    for fraction in (0.7, 0.75, 0.8, 0.85, 0.9):
        found = predict_sglang(
            load_model(name), load_accelerator("b300"), SglangFlags(mem_fraction_static=fraction), spec
        )
        if found.tokens is not None:
            assert found.tokens.low <= found.tokens.best <= found.tokens.high


def test_a_card_whose_driver_was_not_read_takes_torchs_memory() -> None:
    found = predict_sglang(load_model("llama3.1-8b"), load_accelerator("mi300x"), SglangFlags())
    assert found.tokens is not None
    assert found.total.source.startswith("assumed")


def test_weights_that_fill_the_fraction_are_refused() -> None:
    found = predict_sglang(load_model("llama3-70b"), H100, SglangFlags(tp=1))
    assert found.tokens is None
    assert found.refusal is not None
    assert "leave no GPU memory for the KV cache" in found.refusal


def test_other_series_and_fractions_are_named() -> None:
    with pytest.raises(UnsupportedError, match=r"0\.5\.23"):
        predict_sglang(load_model("llama3-8b"), H100, SglangFlags(version="1.0"))
    with pytest.raises(InputError, match="mem-fraction-static"):
        predict_sglang(load_model("llama3-8b"), H100, SglangFlags(mem_fraction_static=1.2))
