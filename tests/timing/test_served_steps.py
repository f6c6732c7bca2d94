"""A server's latencies at one or several loads, as the measured layer's tables."""

import math
from dataclasses import replace

import pytest

from specplan.decide.step_source import loads, step_time
from specplan.errors import InputError
from specplan.formulas.step import pass_shape
from specplan.propose.spelling import read_source
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.timing.measured_steps import whole_steps_table
from specplan.timing.served_steps import ServedPoint, served_rows, tokens_per_step
from specplan.timing.step_time import machine, pass_time

POINT = ServedPoint(batch=8, plain_s=8.9e-3, drafted_s=12.1e-3, kappa=3)


def test_steps_of_a_server_come_back_as_they_were_measured():
    points = [POINT, replace(POINT, batch=64, plain_s=13e-3, drafted_s=20e-3)]
    target = whole_steps_table(served_rows(points), "metrics")
    on = machine(load_accelerator("h100-sxm"), layer="measured")
    target_model, small = load_model("llama3.1-8b"), load_model("llama3.2-1b")
    shape = pass_shape(target_model)
    source = replace(read_source("llama3.2-1b:alpha=.6"), model=small)
    of = loads(target_model, source, 1)
    for p in points:
        plain, wide = (float(pass_time(on, shape, p.batch, w, table=target).total_s) for w in (1, p.kappa + 1))
        assert plain == pytest.approx(p.plain_s)
        assert wide == pytest.approx(p.drafted_s)
        # A drafted step is measured whole: drafting adds nothing to it.
        step = step_time(on, source, of, p.batch, 0, p.kappa, target_table=target)
        assert float(step.draft_s) == 0
        assert float(step.step_s) == pytest.approx(p.drafted_s)


def test_one_load_and_one_kind_of_step_are_enough():
    target = whole_steps_table(served_rows([replace(POINT, drafted_s=None)]), "bench")
    assert float(target.time_s(8, 1, 0)) == pytest.approx(8.9e-3)
    only_drafted = whole_steps_table(served_rows([replace(POINT, plain_s=None)]), "bench")
    assert float(only_drafted.time_s(8, 4, 0)) == pytest.approx(12.1e-3)


def test_latencies_give_the_tokens_per_step():
    assert tokens_per_step(9.18e-3, 4.37e-3) == pytest.approx(2.1, abs=1e-3)
    assert tokens_per_step(7.0e-3, 7.07e-3) == 1.0
    with pytest.raises(InputError, match="are swapped"):
        tokens_per_step(4.37e-3, 9.18e-3)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"batch": 0}, "its batch is 0"),
        ({"plain_s": math.nan}, "its plain step is nan"),
        ({"drafted_s": -1.0}, "its drafted step is -1.0"),
        ({"kappa": 0}, "a drafted step needs its draft length"),
        ({"plain_s": None, "drafted_s": None}, "neither a plain nor a drafted step time"),
    ],
)
def test_points_that_make_no_sense_are_one_line(wrong: dict, expected: str):
    with pytest.raises(InputError, match=expected):
        served_rows([replace(POINT, **wrong)])
