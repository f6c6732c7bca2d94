"""Every law of counts is kept by what real steps record, and a change that breaks it is refused by name."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.decide.measured import summarise
from specplan.errors import InputError
from specplan.records.columns import StepColumns
from specplan.records.files import decode_step
from specplan.records.laws import agreement_law, demand, rate_laws, step_laws, tally_laws
from specplan.records.means import Means
from specplan.records.step import StepRecord
from specplan.records.tally import Tally


@st.composite
def lawful_rows(draw: st.DrawFn) -> list[StepRecord]:
    rows = []
    for i in range(draw(st.integers(2, 12))):
        drafted = draw(st.integers(0, 5)) if i else 3  # the first step drafts, so that there is something to break
        accepted = draw(st.integers(0, drafted)) if i else 2
        tested = accepted + (accepted < drafted)
        rows.append(
            StepRecord(
                request=draw(st.sampled_from("ab")),
                step=i,
                source="s",
                context_len=i,
                drafted=drafted,
                accepted=accepted,
                emitted=draw(st.integers(1, accepted + 1)),
                draft_s=0.1,
                verify_s=0.1,
                host_s=0.1,
                tested=tested,
                verified=drafted + draw(st.integers(0, 2)),
            )
        )
    return rows


def _bumped(counts: tuple[int, ...] | None, at: int, by: int) -> tuple[int, ...]:
    assert counts is not None
    return tuple(n + by * (i == at) for i, n in enumerate(counts))


BREAKS: dict[str, Callable[[Tally], Tally]] = {
    "accepted <= drafted": lambda t: replace(t, drafted_tokens=(t.accepted_tokens or 0) - 1),
    "drafted <= verified": lambda t: replace(t, verified_tokens=(t.drafted_tokens or 0) - 1),
    "tested <= drafted": lambda t: replace(t, tested_histogram=(0,) * 90 + (t.drafts or 0,)),
    "drafts <= drafted": lambda t: replace(t, drafts=(t.drafted_tokens or 0) + 1),
    "drafts <= steps": lambda t: replace(t, steps=(t.drafts or 0) - 1),
    "steps <= emitted": lambda t: replace(t, emitted_tokens=(t.steps or 0) - 1),
    "emitted <= steps + accepted": lambda t: replace(t, emitted_tokens=(t.steps or 0) + (t.accepted_tokens or 0) + 1),
    "0 <= requests": lambda t: replace(t, requests=-1),
    "no entry of the accepted histogram below 0": lambda t: replace(
        t, accepted_histogram=(-1, *(t.accepted_histogram or ())[1:])
    ),
    "drafts in the accepted histogram = drafts": lambda t: replace(
        t, accepted_histogram=_bumped(t.accepted_histogram, 0, 1)
    ),
    "tokens in the accepted histogram = accepted": lambda t: replace(
        t, accepted_histogram=_bumped(_bumped(t.accepted_histogram, 2, -1), 1, 1)
    ),
    "drafts by length = drafts": lambda t: replace(t, length_drafts=_bumped(t.length_drafts, 1, 1)),
    "tokens by length = drafted": lambda t: replace(t, length_drafts=_bumped(_bumped(t.length_drafts, 3, -1), 1, 1)),
    "accepted by length = accepted": lambda t: replace(t, length_accepted=_bumped(t.length_accepted, 3, 1)),
    "tested by length = tested": lambda t: replace(t, length_tested=_bumped(t.length_tested, 3, 1)),
    "draft_s finite and at least 0": lambda t: replace(t, draft_s=-1.0),
    "host_s finite and at least 0": lambda t: replace(t, host_s=float("nan")),
    "requests with tested positions <= requests": lambda t: replace(t, requests=0),
}


@pytest.mark.parametrize("law", BREAKS)
@given(rows=lawful_rows())
@settings(max_examples=15)
def test_each_law_is_kept_by_steps_and_its_breach_refused_by_name(law: str, rows: list[StepRecord]) -> None:
    lawful = Tally.of_steps(rows)
    demand(tally_laws(lawful), "counts")
    broken = BREAKS[law](lawful)
    assert law in [name for name, holds, _ in tally_laws(broken) if not holds]
    with pytest.raises(InputError, match="contradict one another"):
        summarise(broken, source="s")


def test_a_position_is_reached_only_behind_an_accepted_one() -> None:
    lawful = Tally.of_counters(drafts=4, drafted_tokens=12, accepted_tokens=3, accepted_at=[2, 1, 0])
    assert lawful.tested_histogram == (0, 2, 1, 1)
    # One draft that was rejected at its first token is said to have been tested at the second.
    broken = replace(lawful, tested_histogram=(0, 1, 2, 1), length_tested=(0, 0, 0, 8))
    laws = [law for law, holds, _ in tally_laws(broken) if not holds]
    assert laws == ["tested at position 2 <= accepted at 1"]


STEP = {"request": "a", "step": 0, "source": "s", "context_len": 9, "drafted": 3, "accepted": 1, "emitted": 2}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"accepted": 4}, "accepted <= drafted does not hold .accepted 4, drafted 3"),
        ({"tested": 0}, "accepted <= tested does not hold .accepted 1, tested 0"),
        ({"tested": 3}, "tested <= accepted . 1 does not hold .tested 3, accepted 1"),
        ({"tested": 4, "accepted": 3}, "tested <= drafted"),
        ({"verified": 2}, "drafted <= verified"),
        ({"emitted": 0}, "1 <= emitted"),
        ({"emitted": 3}, "emitted 3, accepted 1"),
        ({"emitted": 500}, "emitted <= accepted"),
        ({"overlap": [1.5]}, "overlap"),
        ({"draft_s": float("inf")}, "draft_s"),
        ({"drafted": 2**60}, "drafted"),
    ],
)
def test_a_step_that_cannot_be_is_refused(change: dict[str, object], says: str) -> None:
    assert decode_step(STEP).emitted == 2
    with pytest.raises(InputError, match=says):
        decode_step({**STEP, **change})


def test_columns_refuse_what_single_steps_refuse() -> None:
    row = decode_step(STEP)
    StepColumns.of([row, replace(row, step=1)]).check_integrity()
    for broken in (
        replace(row, accepted=4),
        replace(row, tested=3),
        replace(row, verified=2),
        replace(row, emitted=0),
        replace(row, emitted=3),
        replace(row, tested=4, accepted=3),
    ):
        assert any(not holds for _, holds, _ in step_laws(broken))
        with pytest.raises(InputError, match="row 1 of the step records breaks"):
            StepColumns.of([replace(row, step=7), broken]).check_integrity()
    with pytest.raises(InputError, match="step 0 of request 'a' twice"):
        StepColumns.of([row, replace(row, step=1), row]).check_integrity()
    StepColumns.of([row, replace(row, source="other")]).check_integrity()


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ({"tokens_per_step": 500.0, "draft_len": 3}, "draft length 3"),
        ({"tokens_per_drafted_step": 0.5}, "at least 1"),
        ({"tokens_per_drafted_step": float("nan")}, "at least 1"),
        ({"accepted_per_drafted": 3.0}, "accepted per drafted in"),
        ({"position_rates": (0.5, 0.6)}, "rate 0.5 at position 1, 0.6 at 2"),
        ({"position_rates": (1.2,)}, "in .0, 1."),
        ({"position_rates": (0.5, 0.4), "tokens_per_drafted_step": 2.5}, "printed 2.5, counts 1.9"),
        ({"tokens_per_step": 2.0, "tokens_per_drafted_step": 1.5}, "per step 2, per drafted step 1.5"),
        ({"chain_len": 5, "draft_len": 3}, "longest chain 5, positions per step 3"),
    ],
)
def test_means_that_cannot_be_are_refused(figures: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Means(**figures)  # type: ignore[arg-type]


@given(st.floats(1, 9), st.integers(0, 4))
def test_a_figure_agrees_within_its_print_and_not_beyond(value: float, digits: int) -> None:
    half = 0.5 * 10.0**-digits
    demand(agreement_law("E", round(value, digits), value, half), "figures")
    with pytest.raises(InputError, match="E as its counts give it"):
        demand(agreement_law("E", round(value, digits) + 2.1 * half, value, half), "figures")


def test_equal_rates_and_rates_of_one_are_lawful() -> None:
    demand(rate_laws((1.0, 1.0, 0.0)), "rates")
