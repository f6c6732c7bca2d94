"""A measured source on named hardware: its speedup is its tokens over its cost, and what is drawn is worth the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.decide.measured import MeasuredSource, summarise
from specplan.decide.measured_point import Place, as_draft_source, length_weights, place_measured
from specplan.decide.pricing import Pair, prices
from specplan.decide.source import source_speedup
from specplan.errors import InputError
from specplan.records import StepRecord, Tally
from specplan.records.means import Means
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator

TARGET, DRAFT, CARD = load_model("llama3-8b"), load_model("llama3.2-1b"), load_accelerator("h100-sxm")
ALONE = Pair(target=TARGET, accelerator=CARD)
WITH_DRAFT = Pair(target=TARGET, accelerator=CARD, draft=DRAFT)

steps = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda t: (min(t), max(t))), min_size=1, max_size=40
)


def measured(pairs: list[tuple[int, int]]) -> MeasuredSource:
    rows = [
        StepRecord(request=str(i % 3), step=i, source="s", context_len=1, drafted=d, accepted=a, emitted=a + 1)
        for i, (a, d) in enumerate(pairs)
    ]
    return summarise(Tally.of_steps(rows), source="s")


@given(steps, st.sampled_from([1, 32, 128]))
@settings(max_examples=60, deadline=None)
def test_cost_is_the_mean_over_steps_of_what_each_verifies(pairs: list, batch: int) -> None:
    point = place_measured(measured(pairs), Place(pair=ALONE, batch=batch))
    cost = [prices(ALONE, positions=d + 1, batch=batch).verify if d else 1.0 for _, d in pairs]
    assert point.step_cost == pytest.approx(sum(cost) / len(cost))
    tokens = sum(a + 1 for a, _ in pairs) / len(pairs)
    assert point.speedup == pytest.approx(tokens / point.step_cost)
    assert point.tokens_per_s == pytest.approx(tokens / point.expected_step_s)
    if point.best_speedup is not None:
        assert point.best_speedup >= max(point.speedup, 1.0) - 1e-12


@given(steps, st.sampled_from([1, 64]), st.sampled_from([ALONE, WITH_DRAFT]), st.sampled_from([None, 7]))
@settings(max_examples=60, deadline=None)
def test_what_is_drawn_is_worth_the_same(pairs: list, batch: int, pair: Pair, width: int | None) -> None:
    m = measured(pairs)
    point = place_measured(m, Place(pair=pair, batch=batch, width=width))
    if m.tokens_per_drafted_step is not None:
        assert float(source_speedup(as_draft_source(point))) == pytest.approx(point.speedup)


def test_an_accepted_alpha_at_break_even_neither_wins_nor_loses() -> None:
    """Drafts of three tokens, 100 steps: at the break-even alpha the expected yield equals the cost."""
    m = measured([(1, 3)] * 100)
    point = place_measured(m, Place(pair=WITH_DRAFT))
    alpha = point.alpha_break_even
    assert alpha is not None
    assert 1 + alpha + alpha**2 + alpha**3 == pytest.approx(point.step_cost)
    assert point.c == pytest.approx(0.1646, abs=1e-3)
    assert point.c_origin == "derived"


def test_a_padding_engine_pays_for_steps_without_a_draft() -> None:
    m = measured([(0, 0)] * 50 + [(3, 3)] * 50)
    lean = place_measured(m, Place(pair=ALONE, batch=128))
    padded = place_measured(m, Place(pair=ALONE, batch=128, width=7))
    assert padded.step_cost == pytest.approx(prices(ALONE, positions=8, batch=128).verify)
    assert padded.speedup < lean.speedup
    assert padded.best_kappa is None  # of a tree no shorter chain can be told


def test_a_shorter_draft_is_named_where_it_is_better() -> None:
    """At batch 256 ten verified positions cost ten times the compute: all but the first token are a loss."""
    m = measured([(1, 10)] * 90 + [(10, 10)] * 10)
    point = place_measured(m, Place(pair=ALONE, batch=256))
    assert not point.pays
    assert point.best_kappa == 1
    assert point.best_speedup is not None
    assert point.best_speedup > 1
    assert "does not pay" in point.sentence
    assert "drafts cut to 1" in point.sentence


def test_a_given_cost_replaces_the_derived_one() -> None:
    m = measured([(2, 3)] * 10)
    point = place_measured(m, Place(pair=WITH_DRAFT, c=0.5))
    assert (point.c, point.c_origin) == (0.5, "assumed")
    assert point.step_cost == pytest.approx(2.5, rel=1e-2)
    with pytest.raises(InputError, match="--c -1"):
        place_measured(m, Place(pair=WITH_DRAFT, c=-1.0))


def test_what_cannot_be_placed_says_why() -> None:
    counters = Tally.of_counters(drafts=7, drafted_tokens=21, accepted_tokens=13, accepted_at=[5, 4, 4])
    with pytest.raises(InputError, match="tokens per step over all steps are not known"):
        place_measured(summarise(counters, source="s"), Place(pair=ALONE))
    with pytest.raises(InputError, match="draft length is not known"):
        length_weights(summarise(None, source="s", means=Means(tokens_per_step=2.0)))


def test_means_alone_can_be_placed() -> None:
    means = Means(tokens_per_step=2.5, tokens_per_drafted_step=2.5, draft_len=3, chain_len=3)
    point = place_measured(summarise(None, source="s", means=means), Place(pair=WITH_DRAFT))
    assert point.kappa == 3
    assert point.speedup == pytest.approx(2.5 / point.step_cost)
    assert point.expected_emitted == pytest.approx(2.5)


def test_unequal_lengths_known_by_their_mean_alone() -> None:
    counters = Tally.of_counters(drafts=10, drafted_tokens=25, accepted_tokens=9, steps=40, emitted_tokens=49)
    weights = length_weights(summarise(counters, source="s"))
    assert weights.tolist() == pytest.approx([0.75, 0, 0.125, 0.125])
