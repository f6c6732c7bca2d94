"""Curves over draft length, batch, coverage and context; who is best where; what a wrong draft length loses."""

import numpy as np
import pytest
from drawn import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.decide.pricing import Pair, Setting
from specplan.decide.source import Placed, source_speedup
from specplan.decide.sweep import PLAIN, default_axis, sweep
from specplan.decide.tune import tune_source, tune_table
from specplan.errors import InputError
from specplan.formulas.speedup import speedup
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator

NOWHERE = Setting()
DENSE = drawn(name="1b", kappa=3, c=0.164664, alpha=0.7)
SPARSE = drawn(name="ngram", kappa=5, c=0.0, alpha=0.8, coverage=0.3)
PADDED = drawn(name="sglang-ngram", kappa=4, c=0.0, alpha=0.6, coverage=0.6, nodes=8)


def placed(*sources: Placed, setting: Setting = NOWHERE) -> list[tuple[Placed, Setting]]:
    return [(s, setting) for s in sources]


def test_over_coverage_only_matchers_move_and_the_edge_is_the_coverage_tie() -> None:
    found = sweep("coverage", placed(DENSE, SPARSE), xs=default_axis("coverage"))
    dense, sparse = found.curves
    assert dense.is_flat
    assert not sparse.is_flat
    np.testing.assert_allclose(sparse.speedup, source_speedup(SPARSE, coverage=found.x), rtol=1e-15)
    assert [r.winner for r in found.regions] == [0, 1]
    edge = found.regions[0].high
    at_edge = float(source_speedup(SPARSE, coverage=edge))
    assert at_edge == pytest.approx(float(source_speedup(DENSE)), rel=1e-6)


def test_over_kappa_whole_numbers_split_midway() -> None:
    short = drawn(name="short", kappa=1, c=0.1, alpha=0.6)
    free = drawn(name="free", kappa=1, c=0.0, hit=0.3, continuation=0.95)
    found = sweep("kappa", placed(short, free), xs=default_axis("kappa", 8))
    assert found.regions[0].winner == 0
    assert found.regions[-1].winner == 1
    assert found.regions[0].high % 1 == 0.5
    for i, curve in enumerate(found.curves):
        assert curve.best_speedup == np.nanmax(curve.speedup)
        wins = found.winner == i
        assert np.all(curve.speedup[wins] >= found.curves[1 - i].speedup[wins])


def test_a_padded_tree_keeps_its_budget_and_ends_with_it() -> None:
    found = sweep("kappa", placed(PADDED, setting=Setting(ridge=295.0)), xs=range(1, 11), batch=64)
    curve = found.curves[0]
    assert np.isnan(curve.speedup).tolist() == [False] * 7 + [True] * 3
    np.testing.assert_allclose(curve.verify[:7], 64 * 8 / 295)


def test_where_nothing_pays_plain_decoding_is_best() -> None:
    loser = drawn(name="loser", kappa=3, c=0.9, alpha=0.2)
    found = sweep("kappa", placed(loser), xs=[1, 2, 3])
    assert found.winner.tolist() == [PLAIN] * 3
    assert [r.winner for r in found.regions] == [PLAIN]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.5)), min_size=1, max_size=5), st.floats(20, 400))
def test_regions_tile_the_axis_and_name_the_winners(pairs: list[tuple[float, float]], ridge: float) -> None:
    sources = [drawn(name=str(i), kappa=3 + i, c=c, alpha=a) for i, (a, c) in enumerate(pairs)]
    found = sweep("batch", placed(*sources, setting=Setting(ridge=ridge)), xs=default_axis("batch", 128))
    assert found.regions[0].low == found.x[0]
    assert found.regions[-1].high == found.x[-1]
    for left, right in zip(found.regions, found.regions[1:], strict=False):
        assert left.high == right.low
        assert left.winner != right.winner
    best = np.max([c.speedup for c in found.curves], axis=0)
    assert np.all((best > 1 + 1e-12) == (found.winner != PLAIN))


def test_batch_moves_c_and_verification_and_the_ridge_is_where_they_turn() -> None:
    card = load_accelerator("h100-sxm")
    setting = Setting(pair=Pair(target=load_model("llama3-70b"), accelerator=card, tp=4), ridge=295.22)
    wide = drawn(name="suffix", kappa=24, c=0.0, alpha=0.9)
    found = sweep("batch", placed(wide, setting=setting), xs=[1, 4, 8, 11, 12, 16, 32])
    curve = found.curves[0]
    assert found.ridge is not None
    assert found.ridge.x == pytest.approx(295.22 / 25)
    assert np.all(curve.verify[:4] == 1.0)
    assert curve.verify[5] == pytest.approx(400 / 295.22, rel=1e-4)  # 16 x 25 positions
    assert np.all(np.diff(curve.speedup[3:]) < 0)


def test_a_long_context_makes_a_draft_model_dearer() -> None:
    card = load_accelerator("h100-sxm")
    pair = Pair(target=load_model("llama3-8b"), draft=load_model("llama3.2-1b"), accelerator=card)
    found = sweep("context", placed(DENSE, setting=Setting(pair=pair)), xs=default_axis("context", 65536), batch=16)
    curve = found.curves[0]
    assert curve.runs_to is not None
    assert curve.plain_runs_to is not None
    assert 0 < curve.runs_to < curve.plain_runs_to < 65536  # the draft's cache shortens what all 16 can hold
    whole = curve.c[found.x <= curve.runs_to]
    assert np.all(np.diff(whole) > 0)  # its cache is 32 KiB per token against 128: more than 0.165
    assert whole[-1] == pytest.approx(0.25, abs=0.05)


def test_over_context_as_over_batch_each_runs_what_fits_and_the_axis_ends_with_the_cache() -> None:
    card = load_accelerator("h100-sxm")
    pair = Pair(target=load_model("llama3-70b"), accelerator=card, tp=2)
    setting = Setting(pair=pair)
    free = placed(drawn(name="free", kappa=3, c=0.0, alpha=0.7), setting=setting)
    over_context = sweep("context", free, xs=[256, 2048, 16384, 1 << 20], batch=64)
    assert over_context.x.tolist() == [256, 2048, 16384]
    for i, context in enumerate((256, 2048, 16384)):
        over_batch = sweep("batch", free, xs=[1, 64], context_len=context)
        assert over_context.curves[0].speedup[i] == pytest.approx(over_batch.curves[0].speedup[1], rel=1e-12)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: sweep("kappa", [], xs=[1, 2]), "needs sources"),
        (lambda: sweep("kappa", placed(DENSE), xs=[1]), "at least two rising values"),
        (lambda: sweep("kappa", placed(DENSE), xs=[2, 1]), "at least two rising values"),
        (lambda: sweep("kappa", placed(drawn(name="x", kappa=3, c=0.1)), xs=[1, 2]), "'x' has no acceptance"),
        (
            lambda: sweep("kappa", placed(drawn(name="x", kappa=3, c=0.1, emitted=2.0)), xs=[1, 2]),
            "only E at its own draft length is known",
        ),
        (lambda: default_axis("batch", 1), "must reach at least 2"),
    ],
)
def test_bad_sweeps_are_named(call: object, says: str) -> None:
    with pytest.raises(InputError) as caught:
        call()  # type: ignore[operator]
    assert says in str(caught.value)


def test_table_reproduces_the_published_optima_and_their_losses() -> None:
    table = tune_table([0.5, 0.6, 0.7, 0.8, 0.9], [0.01, 0.02, 0.05, 0.1, 0.165])
    assert table.best.T.tolist() == [
        [5, 7, 9, 14, 24],
        [4, 6, 8, 11, 19],
        [3, 4, 6, 8, 13],
        [2, 3, 4, 6, 10],
        [2, 2, 3, 4, 7],
    ]
    for i, a in enumerate(table.alpha):
        for j, c in enumerate(table.c):
            best = float(speedup(a, int(table.best[i, j]), c))
            assert table.speedup[i, j] == pytest.approx(best, rel=1e-14)
            for n, k in enumerate(table.compared):
                assert table.loss[i, j, n] == pytest.approx(1 - float(speedup(a, k, c)) / best, abs=1e-14)


def test_curve_of_a_named_source_agrees_with_the_table() -> None:
    found = tune_source(DENSE, kappa_max=16)
    assert (found.best, found.last_paying, found.is_capped) == (3, 3, False)
    assert float(found.speedup[0]) == 1.0
    assert found.tolerance == (3, 4)
    assert np.all(found.loss[found.tolerance[0] : found.tolerance[1] + 1] <= 0.02)


def test_a_free_draft_stops_at_the_ridge_not_before() -> None:
    found = tune_source(drawn(name="suffix", kappa=1, c=0.0, alpha=0.9), Setting(ridge=295.0), batch=16)
    assert found.best == int(295 / 16) - 1
    assert tune_source(drawn(name="suffix", kappa=1, c=0.0, alpha=0.9), kappa_max=32).is_capped


def test_a_hazard_is_tuned_within_its_known_positions() -> None:
    found = tune_source(drawn(name="mtp", kappa=1, c=0.05, hazard=(0.92, 0.68, 0.38)))
    assert found.kappa.tolist() == [0, 1, 2, 3]
    assert found.best == 3


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: tune_table([], [0.1]), "at least one alpha and one c"),
        (lambda: tune_table([0.5], [0.1], kappa_max=4), "must lie in 0 to 4"),
        (lambda: tune_source(DENSE, kappa_max=0), "at least 1 and at most 1024, got 0"),
        (lambda: tune_source(DENSE, kappa_max=10**30), "at most 1024"),
        (lambda: default_axis("kappa", 10**12), "ends at 1024"),
    ],
)
def test_bad_tuning_is_named(call: object, says: str) -> None:
    with pytest.raises(InputError) as caught:
        call()  # type: ignore[operator]
    assert says in str(caught.value)
