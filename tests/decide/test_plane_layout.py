"""The plane: every line drawn is where the speedup formula says it is, and every source stands on its own speedup."""

import numpy as np
import pytest
from drawn import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.decide.plane import LEVELS, MOST_LEVELS, Scene, plane, planes_of
from specplan.decide.pricing import Setting
from specplan.decide.source import Placed, source_speedup
from specplan.errors import InputError
from specplan.formulas.speedup import ridge_batch, speedup

C_70B, C_8B = 0.017780091125795844, 0.16466396534860978


def source(name: str = "draft", **given: object) -> Placed:
    return drawn(**({"name": name, "kappa": 3, "c": 0.1} | given))  # type: ignore[arg-type]


@settings(max_examples=40)
@given(st.integers(1, 12), st.floats(1, 3), st.floats(0.02, 1), st.sampled_from(["linear", "log"]))
def test_every_point_of_a_contour_has_its_speedup(kappa: int, verify: float, c_max: float, scale: str) -> None:
    drawn = plane([], kappa=kappa, verify=verify, c_max=c_max, scale=scale, cells=11)  # type: ignore[arg-type]
    assert any(c.speedup == 1.0 for c in drawn.contours)
    assert len(drawn.contours) <= MOST_LEVELS + 1
    for contour in drawn.contours:
        inside = ~np.isnan(contour.c)
        got = speedup(contour.alpha[inside], kappa, contour.c[inside], verify)
        np.testing.assert_allclose(got, contour.speedup, rtol=1e-11)
    np.testing.assert_allclose(drawn.grid, speedup(drawn.alpha[None, :], kappa, drawn.c[:, None], verify), rtol=1e-15)


def test_chapter_figure_two_targets() -> None:
    drawn = plane([source(c=C_8B, alpha=0.7, target="8b"), source(c=C_70B, alpha=0.7, target="70b")], kappa=3)
    ties = {p.source.target: p.alpha_dagger for p in drawn.points}
    assert ties["8b"] == pytest.approx(0.43, abs=5e-4)  # "right 43% of the time"
    assert ties["70b"] == pytest.approx(0.67, abs=5e-3)  # "the bar rises to 67%"
    assert [p.best_kappa for p in drawn.points] == [3, 8]
    for point in drawn.points:
        assert point.is_exact
        assert point.curve is not None
        assert point.curve.alpha[0] == point.alpha_dagger
        assert point.curve.c[0] == pytest.approx(0.0, abs=1e-12)
        assert (point.curve.alpha[-1], point.curve.c[-1]) == pytest.approx((0.7, point.source.c), abs=1e-12)
        np.testing.assert_allclose(speedup(point.curve.alpha, 3, point.curve.c), point.speedup, rtol=1e-9)


def test_a_free_acceptance_is_a_line_that_says_what_alpha_must_reach() -> None:
    (line,) = plane([source(c=C_8B)], kappa=3, levels=[1.5, 2.0]).lines
    assert float(speedup(line.break_even, 3, C_8B)) == pytest.approx(1.0, rel=1e-12)
    for s, alpha in line.reaches:
        assert float(speedup(alpha, 3, C_8B)) == pytest.approx(s, rel=1e-12)
    assert [s for s, _ in line.reaches] == [1.0, 1.5, 2.0]
    (lost,) = plane([source(c=1.2)], kappa=3).lines
    assert np.isnan(lost.break_even)


@settings(max_examples=60)
@given(
    st.floats(0.05, 0.95),
    st.floats(0.05, 1),
    st.integers(1, 12),
    st.floats(1, 1.5),
    st.floats(0, 0.1),
    st.floats(0, 0.2),
    st.floats(1, 1.5),
)
def test_a_source_of_another_kind_stands_where_it_is_worth_the_same(
    alpha: float, coverage: float, kappa: int, verify: float, overhead: float, c: float, plane_verify: float
) -> None:
    s = source(alpha=alpha, coverage=coverage, kappa=kappa, verify=verify, overhead=overhead, c=c)
    (point,) = plane([s], kappa=3, verify=plane_verify).points
    assert point.speedup == pytest.approx(float(source_speedup(s)), rel=1e-12)
    if not np.isnan(point.alpha):
        assert float(speedup(point.alpha, 3, c, plane_verify)) == pytest.approx(point.speedup, rel=1e-11)
    if not np.isnan(point.alpha_dagger):
        assert float(speedup(point.alpha_dagger, 3, 0.0, plane_verify)) == pytest.approx(point.speedup, rel=1e-11)


def test_a_matcher_in_a_third_of_the_steps_is_worth_far_less_than_its_acceptance() -> None:
    (point,) = plane([source("ngram", c=0.0, alpha=0.8, coverage=0.35)], kappa=3).points
    assert not point.is_exact
    assert point.alpha < 0.45 < point.source.alpha  # type: ignore[operator]


def test_a_source_that_loses_has_no_tie() -> None:
    (point,) = plane([source(c=0.9, alpha=0.1)], kappa=3).points
    assert point.speedup < 1
    assert np.isnan(point.alpha_dagger)
    assert point.curve is None


@given(st.floats(1.01, 4), st.integers(1, 8))
def test_dearer_verification_moves_every_contour_down_and_to_the_right(verify: float, kappa: int) -> None:
    plain = plane([], kappa=kappa, levels=[1.0])
    moved = plane([], kappa=kappa, levels=[1.0], verify=verify)
    at = {c.speedup: c for c in plain.contours}[1.0]
    new = np.interp(at.alpha, moved.contours[0].alpha, np.nan_to_num(moved.contours[0].c, nan=-1.0))
    assert np.all(new <= np.nan_to_num(at.c, nan=-1.0) + 1e-9)


def test_the_axis_holds_every_source_and_a_log_axis_keeps_zero() -> None:
    drawn = plane([source(c=0.02), source(c=0.3)], kappa=3, scale="log")
    assert drawn.c[0] == 0.0
    assert 0 < drawn.c[1] < 0.02
    assert drawn.c[-1] >= 0.3
    assert np.all(np.diff(drawn.c) > 0)


def test_automatic_levels_are_few_ordered_and_hold_break_even() -> None:
    for kappa in (1, 3, 8, 31, 128):
        for c_max in (0.02, 0.2, 1.0, 5.0):
            levels = [c.speedup for c in plane([], kappa=kappa, c_max=c_max).contours]
            assert levels == sorted(levels)
            assert 1.0 in levels
            assert len(levels) <= MOST_LEVELS + 1
            assert set(levels) <= set(LEVELS)


def test_scenes_share_a_plane_exactly_where_their_contours_agree() -> None:
    def scene(title: str, verify: float) -> Scene:
        s = source(c=0.1, alpha=0.7, target=title, verify=verify)
        return Scene(title=title, verify=verify, ridge=295.0, placed=((s, Setting()),))

    together = planes_of([scene("a", 1.0), scene("b", 1.0)], kappa=3)
    assert len(together) == 1
    assert len(together[0].points) == 2
    assert together[0].title == ""
    apart = planes_of([scene("a", 1.0), scene("b", 1.4)], kappa=3)
    assert [p.title for p in apart] == ["a", "b"]
    assert apart[0].ridge_batch == pytest.approx(float(ridge_batch(3, 295.0)))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: plane([], kappa=0), "draft length of at least 1"),
        (lambda: plane([], kappa=3, cells=1), "at least 2 cells"),
        (lambda: plane([], kappa=3, c_max=0.0), "c-max 0 must be finite and above 0"),
        (lambda: plane([source(c=0.3)], kappa=3, c_max=0.2), "would cut off a source at c 0.3"),
        (lambda: plane([], kappa=3, levels=[0.0]), "contour 0"),
        (lambda: plane([source(alpha=1.5)], kappa=3), "source 'draft': alpha 1.5 must be finite and lie in [0, 1]"),
        (lambda: plane([source(alpha=0.5, hit=0.5, continuation=0.5)], kappa=3), "acceptance is given twice"),
        (lambda: plane([source(hit=0.5)], kappa=3), "hit and cont go together"),
        (lambda: plane([source(hazard=(0.5, 0.4))], kappa=3), "k=3 needs as many acceptances, alpha gives 2"),
        (lambda: plane([source(nodes=3)], kappa=3), "cannot hold a root and a path of k=3"),
        (lambda: plane([source(c=np.inf)], kappa=3), "c inf must be finite"),
        (lambda: plane([source(verify=0.0)], kappa=3), "verify 0: a verify pass takes time"),
        (lambda: plane([source(emitted=0.5)], kappa=3), "must be finite and be at least 1"),
        (lambda: plane([source(kappa=0)], kappa=3), "k 0 must be"),
    ],
)
def test_bad_planes_are_named(call: object, says: str) -> None:
    with pytest.raises(InputError) as caught:
        call()  # type: ignore[operator]
    assert says in str(caught.value)
