"""Machines: what is measured, borrowed and assumed, the three layers, and tables that a user brings."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.errors import InputError
from specplan.formulas.step import pass_shape
from specplan.specs.catalog import load_model
from specplan.specs.hardware import list_accelerators, load_accelerator
from specplan.timing.measured_steps import load_measured_table, measured_table
from specplan.timing.step_time import (
    ASSUMED,
    arithmetic_flops,
    host_time,
    machine,
    other_bound,
    pass_rates,
    pass_time,
)
from specplan.timing.timed_engine import ENGINES
from specplan.values.formats import lookup
from specplan.values.model import Attention, DenseMLP, Layer

LLAMA = load_model("llama3.1-8b")
BIG = load_model("llama3-70b")
H100 = load_accelerator("h100-sxm")


@pytest.mark.parametrize("card", list_accelerators(), ids=lambda card: card.name)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_shipped_card_times_a_step_above_its_roofline(card, engine: str):
    on = machine(card, engine)
    found = pass_time(on, pass_shape(LLAMA), [1, 16], 1, 2048)
    assert np.all(found.total_s >= found.lower_s)
    assert np.all(np.diff(found.total_s) > 0)
    own = {measured.card for measured in (card.calibration, on.laws) if measured is not None}
    assert on.notes or card.name in own


def test_what_is_borrowed_or_assumed_is_said():
    assert machine(H100).notes == machine(H100, tp=4).notes == ()
    assert machine(load_accelerator("h200")).laws.card == "h200"
    assert "borrowed from h100-sxm" in machine(load_accelerator("h20")).notes[0]
    assert "assumed: collective_latency_s" in machine(H100, "gpt-fast", tp=4).notes[0]
    notes = machine(load_accelerator("mi355x")).notes
    assert notes[0].startswith("mi355x and its family (cdna4) have no calibration")
    assert machine(load_accelerator("mi355x")).calibration == ASSUMED


def test_a_card_with_a_calibration_of_its_own_is_not_timed_by_anothers_kernels():
    assert machine(load_accelerator("mi300x")).laws is None
    mine = replace(H100.calibration, card="mine", bandwidth_fraction=0.5)
    half = replace(H100, name="mine", calibration=mine, kernels={})
    slow, fast = (float(pass_time(machine(c), pass_shape(LLAMA), 1).total_s) for c in (half, H100))
    assert slow > 1.3 * fast


def test_cards_without_links_say_that_ranks_exchange_over_pcie():
    assert any("PCIe" in note for note in machine(load_accelerator("l40s"), tp=2).notes)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"engine": "tgi"}, "unknown engine 'tgi'; one of vllm, sglang"),
        ({"tp": 0}, "must be at least 1"),
        ({"layer": "exact"}, "unknown layer 'exact'; one of roofline, modelled, measured"),
    ],
)
def test_unknown_engines_layers_and_ranks_are_refused(wrong: dict, expected: str):
    with pytest.raises(InputError, match=expected):
        machine(H100, **wrong)


def test_a_shape_of_other_ranks_is_refused():
    with pytest.raises(InputError, match="counted for 2 ranks, the machine has 4"):
        pass_time(machine(H100, tp=4), pass_shape(BIG, 2), 1)


def test_the_bound_is_the_roofline_and_has_no_host():
    on = machine(H100, layer="roofline")
    found = pass_time(on, pass_shape(BIG), 1)
    # Bytes of weights, hidden states and logits at the peak: the floor, and nothing else.
    assert float(found.total_s) == float(found.lower_s)
    assert float(found.total_s) == pytest.approx(2 * 69_501_714_432 / 3350e9, rel=2e-3)
    assert float(pass_time(other_bound(on), pass_shape(BIG), 1).total_s) == float(found.upper_s) > float(found.lower_s)
    assert float(host_time(on, 64)) == 0


def test_fp8_weights_use_the_cards_fp8_rate_and_weight_only_ones_the_16_bit_rate():
    fp8 = replace(LLAMA, quantization=lookup("fp8"))
    awq = replace(LLAMA, quantization=lookup("awq"))
    assert arithmetic_flops(fp8, H100) == (1978e12, "fp8")
    assert arithmetic_flops(awq, H100) == (989e12, "bfloat16")
    assert arithmetic_flops(fp8, load_accelerator("a100")) == (312e12, "bfloat16")
    assert pass_rates(machine(H100), fp8).width_fraction[-1][0] < 8
    with pytest.raises(InputError, match="no matmul rate"):
        arithmetic_flops(LLAMA, replace(H100, flops={"int8": 1.0}))


@pytest.mark.parametrize("card", ["h100-sxm", "h20", "mi300x"])
def test_depth_costs_a_small_draft_what_bytes_do_not(card: str):
    # Two drafts of the same bytes, one four times as deep and half as wide: the deep one is slower.
    on = machine(load_accelerator(card))
    mixer = Attention(heads=16, kv_heads=16, head_dim=64)
    wide = replace(
        LLAMA, hidden_size=1024, vocab_size=1000, layers=(Layer(mixer=mixer, feed_forward=DenseMLP(width=8192)),) * 4
    )
    thin = replace(wide, layers=(Layer(mixer=mixer, feed_forward=DenseMLP(width=1024)),) * 16)
    shallow_s, deep_s = (float(pass_time(on, pass_shape(m), 1).total_s) for m in (wide, thin))
    assert deep_s > 1.5 * shallow_s


def test_an_eager_pass_is_never_shorter_than_its_launching():
    eager = ENGINES["transformers"].eager_layer_s
    on = machine(H100, "transformers")
    assert float(pass_time(on, pass_shape(LLAMA), 1).total_s) == 32 * eager
    assert float(pass_time(on, pass_shape(LLAMA), 4096, 1, 4096).total_s) > 32 * eager


def test_own_all_reduce_beats_the_vendors_library_on_the_same_card():
    a100 = load_accelerator("a100")
    own, ring = (
        float(pass_time(machine(a100, e, 8), pass_shape(LLAMA, 8), 1).terms.collectives_s) for e in ("vllm", "magicdec")
    )
    assert own < ring


@given(
    st.floats(1e-4, 1e-2),
    st.floats(1e-7, 1e-4),
    st.floats(1e-9, 1e-7),
    st.integers(2, 40),
    st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_a_table_made_by_the_law_is_recovered(fixed: float, per_token: float, per_cached: float, n: int, rng):
    rows = [(b, w, t) for b in (1, 3, 17) for w in (1, 4) for t in (0, 500 * n)]
    rng.shuffle(rows)
    timed = [(b, w, t, fixed + per_token * b * w + per_cached * b * t) for b, w, t in rows]
    table = measured_table(timed, "made")
    assert table.worst_residual < 1e-6
    assert float(table.time_s(8, 2, 1000)) == pytest.approx(fixed + per_token * 16 + per_cached * 8000, rel=1e-6)


def test_a_measured_table_smooths_a_cpus_steps_within_its_own_residual():
    measured = {1: 0.0236, 2: 0.0257, 3: 0.0272, 4: 0.0272, 8: 0.0328, 13: 0.0395}
    table = measured_table([(1, w, 0, s) for w, s in measured.items()], "vLLM on one core")
    worst = max(abs(float(table.time_s(1, w, 0)) / s - 1) for w, s in measured.items())
    assert worst == pytest.approx(table.worst_residual)
    assert worst < 0.06


def test_the_measured_layer_reads_the_table_and_nothing_else():
    table = measured_table([(1, 1, 0, 0.010), (8, 1, 0, 0.024)], "made")
    on = machine(H100, layer="measured")
    assert float(pass_time(on, pass_shape(LLAMA), 8, table=table).total_s) == pytest.approx(0.024)
    with pytest.raises(InputError, match="needs a table of step times of llama3"):
        pass_time(on, pass_shape(LLAMA), 1)


BAD_TABLES = {
    "not JSON": ("{", "not JSON"),
    "no rows": ('{"rows": []}', "at least one row"),
    "no batch": ('{"rows": [{"seconds": 1}]}', "expected"),
    "no time": ('{"rows": [{"batch": 1}]}', "expected"),
    "time of 0": ('{"rows": [{"batch": 1, "seconds": 0}]}', "a time above 0"),
    "time is NaN": ('{"rows": [{"batch": 1, "seconds": NaN}]}', "NaN is no number"),
    "text": ('{"rows": [{"batch": "many", "seconds": 1}]}', "expected"),
    "a number": ("3", "expected"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_table_is_one_line(case: str, tmp_path: Path):
    text, expected = BAD_TABLES[case]
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(InputError, match=expected) as caught:
        load_measured_table(path)
    assert "\n" not in str(caught.value)


def test_a_table_is_read_with_defaults(tmp_path: Path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"rows": [{"batch": 1, "seconds": 0.01}, {"batch": 1, "width": 5, "step_s": 0.014}]}))
    assert float(load_measured_table(path).time_s(1, 3, 0)) == pytest.approx(0.012)
    with pytest.raises(InputError, match="no such file, expected a table of step times"):
        load_measured_table(tmp_path / "none.json")
