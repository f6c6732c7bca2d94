"""Prices of draft and verify passes from models and a card: as `cost` has them, with the ridge, and with physics."""

from dataclasses import replace

import pytest
from drawn import drawn
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specplan.decide.cost import cost
from specplan.decide.pricing import Pair, Prices, Setting, priced, prices
from specplan.errors import InputError
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator

H100 = load_accelerator("h100-sxm")
BIG, SMALL, DRAFT = load_model("llama3-70b"), load_model("llama3-8b"), load_model("llama3.2-1b")


@pytest.mark.parametrize(("target", "tp", "c"), [(SMALL, 1, 0.164664), (BIG, 4, 0.017780)])
def test_c_is_that_of_cost_below_the_ridge(target: object, tp: int, c: float) -> None:
    pair = Pair(target=target, draft=DRAFT, accelerator=H100, tp=tp)  # type: ignore[arg-type]
    found = prices(pair, positions=4)
    assert found.c == pytest.approx(c, abs=5e-7)
    assert found.c == cost(target, H100, draft=DRAFT, tp=tp, max_model_len=8192).c  # type: ignore[arg-type]
    assert found.verify == 1.0


def test_400_verified_positions_are_past_the_ridge_of_295() -> None:
    pair = Pair(target=BIG, accelerator=H100, tp=4)
    assert prices(pair, positions=25, batch=11).verify == 1.0
    past = prices(pair, positions=25, batch=16)
    assert past.ridge == pytest.approx(295.2, abs=0.1)
    assert past.verify == pytest.approx(400 / past.ridge, rel=1e-12)
    assert past.c is None


@settings(max_examples=40, deadline=None)
@example(510, 2, 0)  # three positions each once cost 3.0000000000000004 of one
@given(st.integers(1, 512), st.integers(1, 32), st.sampled_from([0, 512, 8192, 65536]))
def test_a_wider_pass_never_costs_less_and_never_more_than_in_proportion(batch: int, kappa: int, context: int) -> None:
    pair = Pair(target=SMALL, draft=DRAFT, accelerator=H100)
    narrow = prices(pair, positions=kappa, batch=batch, context_len=context)
    wide = prices(pair, positions=kappa + 1, batch=batch, context_len=context)
    assert 1.0 <= narrow.verify <= wide.verify <= kappa + 1
    assert narrow.c == wide.c


@settings(max_examples=20, deadline=None)
@given(st.floats(0.25, 4), st.integers(1, 64), st.sampled_from([0, 4096]))
def test_a_card_faster_in_everything_has_the_same_prices(factor: float, batch: int, context: int) -> None:
    faster = replace(
        H100, bandwidth=H100.bandwidth * factor, flops={name: rate * factor for name, rate in H100.flops.items()}
    )
    a, b = (
        prices(Pair(target=SMALL, draft=DRAFT, accelerator=card), positions=5, batch=batch, context_len=context)
        for card in (H100, faster)
    )
    assert (b.c, b.verify) == pytest.approx((a.c, a.verify), rel=1e-12)
    assert b.plain_s == pytest.approx(a.plain_s / factor, rel=1e-12)


def test_experts_make_a_wide_pass_read_more() -> None:
    moe = load_model("mixtral-8x7b")
    assert prices(Pair(target=moe, accelerator=H100, tp=2), positions=5).verify > 1.5
    assert prices(Pair(target=moe, accelerator=H100, tp=2), positions=1).verify == 1.0


def test_the_modelled_layer_adds_what_a_small_draft_cannot_hide() -> None:
    bound, modelled = (
        prices(Pair(target=BIG, draft=DRAFT, accelerator=H100, tp=4, layer=layer), positions=4)
        for layer in ("roofline", "modelled")
    )
    assert modelled.plain_s > bound.plain_s
    assert modelled.c is not None
    assert bound.c is not None
    assert modelled.c > 2 * bound.c


def test_a_ridge_alone_prices_the_verification_and_leaves_c() -> None:
    source = drawn(name="x", kappa=24, c=0.03)
    assert priced(source, Setting(ridge=295.0), batch=16) == pytest.approx((0.03, 400 / 295))
    assert priced(replace(source, verify=1.7), Setting(), batch=16) == (0.03, 1.7)
    padded = drawn(name="x", kappa=3, c=0.03, nodes=8)
    assert priced(padded, Setting(ridge=295.0), batch=64)[1] == pytest.approx(64 * 8 / 295)


def test_an_unknown_layer_is_named() -> None:
    with pytest.raises(InputError, match="unknown layer 'guess'; one of roofline, modelled"):
        prices(Pair(target=SMALL, accelerator=H100, layer="guess"), positions=4)
    assert isinstance(prices(Pair(target=SMALL, accelerator=H100), positions=1), Prices)
