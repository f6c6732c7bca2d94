"""Draft sources in a step: spelling, what they emit, what they make the target verify, what drafting takes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.decide.source import emitted
from specplan.decide.step_source import (
    eagle_head,
    loads,
    mtp_head,
    on_engine,
    step_time,
    verified_positions,
)
from specplan.errors import InputError, UnsupportedError
from specplan.formulas.parameters import resident_params, streamed_params
from specplan.formulas.step import pass_shape
from specplan.propose.spelling import read_source
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.timing.draft_time import host_ngram_s, model_draft_s, suffix_s, trie_s
from specplan.timing.step_time import machine, pass_time
from specplan.values.source import NO_SOURCE

TARGET = load_model("llama3.1-8b")
DRAFT = load_model("llama3.2-1b")
H100 = load_accelerator("h100-sxm")
VLLM, SGLANG = machine(H100), machine(H100, "sglang")
DRAFT_SHAPE = pass_shape(DRAFT)

BAD = {
    "ngram": "its acceptance is not given",
    "ngram:alpha=.5,hit=.2,cont=.3": "given twice, as alpha and as hit",
    "ngram:hit=.2": "hit and cont go together",
    "ngram:alpha=1.1": "must be finite and lie in [0, 1]",
    "ngram:alpha=-.1": "must be finite and lie in [0, 1]",
    "ngram:alpha=nan": "must be finite and lie in [0, 1]",
    "ngram:alpha=high": "is not a number",
    "ngram:alpha=.8..0.6": "low..high",
    "ngram:alpha=.1..0.2..0.3..0.4": "low..high",
    "ngram:alpha=.5,coverage=2": "coverage 2 must be finite and lie in [0, 1]",
    "ngram:alpha=.5,k=0": "whole number of at least 1",
    "ngram:alpha=.5,k=2.5": "whole number of at least 1",
    "ngram:alpha=.5,k=-1": "whole number of at least 1",
    "ngram:beta=.5": "unknown key 'beta'",
    "ngram:alpha=.5,alpha=.6": "given twice",
    "ngram:alpha=": "is not key=value",
    "ngram:alpha=.5,k": "is not key=value",
    ":alpha=.5": "has no name",
    "eagle:alpha=.8/.7,k=3": "needs as many acceptances",
    "eagle:alpha=.8,nodes=16": "give it as k=",
    "eagle:alpha=.8,nodes=4,k=5": "cannot hold a root and a path",
    "eagle:emitted=2.3": "give it as k=",
    "eagle:emitted=5,k=3": "more than the 4 tokens",
    "eagle:emitted=0.9,k=3": "must be finite and be at least 1",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_source_is_one_line_that_names_it(text: str):
    with pytest.raises(InputError) as caught:
        on_engine(read_source(text), TARGET, "vllm")
    assert BAD[text] in str(caught.value)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_with_a_colon_is_a_draft_model():
    source = read_source("./models/a:b/config.json:alpha=.7")
    assert (source.kind, source.name) == ("model", "./models/a:b/config.json")


def test_ranges_have_a_middle_or_name_their_best():
    middle = read_source("ngram:alpha=.6..0.8").alpha
    named = read_source("ngram:alpha=.6..0.75..0.8").alpha
    assert middle is not None
    assert named is not None
    assert (middle.low, round(middle.best, 12), middle.high) == (0.6, 0.7, 0.8)
    assert named.best == 0.75


@pytest.mark.parametrize(
    ("text", "kappa", "by_hand"),
    [
        ("a:alpha=.7", 3, 1 + 0.7 + 0.49 + 0.343),
        ("a:alpha=.8/.5/.25", 3, 1 + 0.8 + 0.4 + 0.1),
        ("a:alpha=.8/.5/.25", 2, 1 + 0.8 + 0.4),
        ("ngram:hit=.2,cont=.8,coverage=.5", 3, 1 + 0.5 * 0.2 * (1 + 0.8 + 0.64)),
        ("ngram:coverage=.4,alpha=.8", 2, 1 + 0.4 * (0.8 + 0.64)),
        ("suffix:alpha=.6,drafted=1.5,coverage=.5", 4, 1 + 0.5 * (0.6 + 0.5 * 0.36)),
        ("suffix:alpha=.6,drafted=9", 2, 1 + 0.6 + 0.36),
        ("eagle:emitted=2.4,k=3", 3, 2.4),
    ],
)
def test_tokens_per_step_by_hand(text: str, kappa: int, by_hand: float):
    assert float(emitted(read_source(text), kappa)) == pytest.approx(by_hand)


def test_what_is_verified_depends_on_source_and_engine():
    ngram = read_source("ngram:coverage=.4,alpha=.8")
    host = read_source("ngram-host:coverage=.4,alpha=.8")
    suffix = read_source("suffix:coverage=.5,alpha=.8,drafted=2.5")
    assert float(verified_positions(VLLM, ngram, 5)) == 6  # filled whether or not something matched
    assert float(verified_positions(VLLM, host, 5)) == 1 + 0.4 * 5
    assert float(verified_positions(VLLM, suffix, 5)) == 1 + 0.5 * 2.5
    assert float(verified_positions(SGLANG, on_engine(ngram, TARGET, "sglang"), 5)) == 12  # the full node budget
    tree = read_source("eagle:alpha=.8,k=5,nodes=60,topk=8")
    assert float(verified_positions(SGLANG, tree, 5)) == 60
    assert float(verified_positions(VLLM, NO_SOURCE, 0)) == 1


@given(st.integers(1, 256), st.integers(0, 32768), st.integers(1, 16))
@settings(max_examples=60, deadline=None)
def test_vllm_makes_k_passes_the_first_over_k_plus_2_positions(batch: int, context: int, k: int):
    first = float(pass_time(VLLM, DRAFT_SHAPE, batch, k + 2, context, scored=1, draft=True).total_s)
    later = float(pass_time(VLLM, DRAFT_SHAPE, batch, 1, context, draft=True).total_s)
    outside = VLLM.engine.draft_pass_s
    assert float(model_draft_s(VLLM, DRAFT_SHAPE, batch, k, context)) == pytest.approx(
        first + (k - 1) * later + k * outside
    )


def test_sglang_makes_s_minus_1_passes_and_an_extension_over_the_verified_width():
    extension = float(pass_time(SGLANG, DRAFT_SHAPE, 8, 5, 1000, scored=1, draft=True).total_s)
    decode = float(pass_time(SGLANG, DRAFT_SHAPE, 8, 1, 1000, draft=True).total_s)
    outside = SGLANG.engine.draft_pass_s
    assert float(model_draft_s(SGLANG, DRAFT_SHAPE, 8, 4, 1000)) == pytest.approx(extension + 3 * decode + 4 * outside)


def test_a_trained_head_is_run_as_its_method_and_a_parallel_one_in_a_single_pass():
    head = replace(eagle_head(TARGET), draft_method="eagle3")
    placed = on_engine(replace(read_source("./head:alpha=.7"), model=head), TARGET, "vllm")
    assert (placed.kind, placed.own_head) == ("eagle3", False)
    block = replace(head, draft_method="dflash")
    placed = on_engine(replace(read_source("./head:alpha=.7"), model=block), TARGET, "vllm")
    of = loads(TARGET, placed, 1)
    assert of.draft is not None
    # Each of the seven mask tokens is a drafted one: all are scored.
    one_pass = float(pass_time(VLLM, of.draft, 4, 8, 1000, scored=7, draft=True).total_s)
    found = float(step_time(VLLM, placed, of, 4, 1000, 7).draft_s)
    assert found == pytest.approx(one_pass + VLLM.engine.draft_pass_s)
    unknown = replace(head, draft_method="mlp_speculator")
    with pytest.raises(UnsupportedError, match="mlp_speculator are not modelled"):
        on_engine(replace(read_source("./head:alpha=.7"), model=unknown), TARGET, "vllm")


def test_nothing_drafted_takes_no_time():
    assert float(model_draft_s(VLLM, DRAFT_SHAPE, 8, 0, 1000)) == 0


def test_the_host_matcher_is_linear_in_context_and_requests_in_series():
    # Measured on one core: 64 requests take 0.55 ms at 8k and 7.6 ms at 128k.
    assert float(host_ngram_s(64, 8192)) == pytest.approx(0.55e-3, rel=0.15)
    assert float(host_ngram_s(64, 131072)) == pytest.approx(7.6e-3, rel=0.15)
    one, two, four = (float(host_ngram_s(b, 32768)) for b in (1, 2, 4))
    assert four - two == pytest.approx(2 * (two - one))


def test_suffix_decoding_does_not_depend_on_the_context_and_trie_insertions_hide_behind_the_pass():
    assert float(suffix_s(64)) - float(suffix_s(0)) == pytest.approx(64 * 13.7e-6)
    hidden, shown = (float(trie_s(48, pass_s)) for pass_s in (10e-3, 0.0))
    assert shown - hidden == pytest.approx(48 * 35e-6)


@pytest.mark.parametrize("text", ["ngram:alpha=0", "suffix:alpha=0,drafted=0", "ngram-host:alpha=0,coverage=0"])
@given(st.integers(1, 512), st.integers(0, 65536))
@settings(max_examples=20, deadline=None)
def test_a_free_source_at_width_1_costs_a_plain_step(text: str, batch: int, context: int):
    source, of = read_source(text), loads(TARGET, NO_SOURCE, 1)
    plain = step_time(VLLM, NO_SOURCE, of, batch, context, 0)
    free = step_time(VLLM, source, of, batch, context, 0)
    assert float(free.step_s) == float(plain.step_s)
    assert float(free.emitted) == 1
    unmatched = step_time(VLLM, source, of, batch, context, 3)
    if source.kind != "ngram":  # the default runner pads; the others verify nothing when nothing is offered
        assert float(unmatched.verify_s) == float(plain.verify_s)


@given(
    st.sampled_from(["ngram:coverage=.4,alpha=.8", "m:alpha=.7", "eagle:alpha=.7", "suffix:alpha=.5,drafted=2"]),
    st.integers(1, 256),
    st.integers(0, 32768),
    st.integers(1, 12),
)
@settings(max_examples=80, deadline=None)
def test_a_step_is_its_parts_and_never_falls_with_batch_context_or_width(text: str, batch: int, context: int, k: int):
    source = replace(read_source(text), model={"m": DRAFT, "e": eagle_head(TARGET)}.get(text[0]))
    of = loads(TARGET, source, 1)

    def at(b: int, t: int, kappa: int) -> float:
        return float(step_time(VLLM, source, of, b, t, kappa).step_s)

    one = step_time(VLLM, source, of, batch, context, k)
    assert float(one.step_s) == float(one.draft_s + one.verify_s + one.host_s)
    assert float(one.verify_s) >= float(one.lower_s)
    slack = 1 - 1e-12
    assert at(batch + 1, context, k) >= at(batch, context, k) * slack
    assert at(batch, context + 500, k) >= at(batch, context, k) * slack
    assert at(batch, context, k + 1) >= at(batch, context, k) * slack


def test_an_eagle_head_streams_one_layer_its_projection_and_the_targets_output_head():
    head = eagle_head(TARGET)
    layer = (streamed_params(TARGET) - 128256 * 4096) / 32
    assert resident_params(head) - head.final_norm_vectors * 4096 - 2 * 4096 == layer + 2 * 4096**2
    shape = pass_shape(head, head_of=TARGET)
    assert shape.layers == 1
    assert shape.head_params == 128256 * 4096


def test_a_target_without_multi_token_prediction_cannot_draft_with_it():
    with pytest.raises(UnsupportedError, match="carries no multi-token prediction layer"):
        mtp_head(TARGET)
    made = replace(TARGET, mtp_layers=TARGET.layers[:2])
    assert len(mtp_head(made).layers) == 1


def test_an_engine_refuses_sources_that_it_does_not_have():
    with pytest.raises(InputError, match="sglang has no suffix"):
        on_engine(read_source("suffix:alpha=.5"), TARGET, "sglang")


def test_arrays_of_batch_context_and_kappa_equal_single_calls():
    source = replace(read_source("m:alpha=.7"), model=DRAFT)
    of = loads(TARGET, source, 1)
    b, t, k = np.array([1, 8])[:, None, None], np.array([0, 4096])[None, :, None], np.array([1, 5])[None, None, :]
    grid = step_time(VLLM, source, of, b, t, k).step_s
    for i, j, m in np.ndindex(grid.shape):
        single = step_time(VLLM, source, of, int(b.flat[i]), int(t.flat[j]), int(k.flat[m])).step_s
        assert float(grid[i, j, m]) == float(single)
