"""A pass kernel by kernel: parts add up to the pass, none below its floor by much, and cards without kernels say so."""

import pytest

from specplan.decide.pass_detail import pass_detail
from specplan.errors import InputError
from specplan.formulas.step import pass_shape
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.timing.step_time import machine, pass_time


@pytest.mark.parametrize(("name", "tp"), [("llama3.1-8b", 1), ("qwen3-30b-a3b", 4), ("deepseek-v3", 8)])
def test_the_kernels_add_up_to_the_pass(name: str, tp: int):
    card, model = load_accelerator("h200"), load_model(name)
    rows = pass_detail(model, card, tp=tp, batch=16, context_len=2048)
    whole = float(pass_time(machine(card, tp=tp), pass_shape(model, tp), 16, 1, 2048).total_s)
    assert sum(r.seconds for r in rows) == pytest.approx(whole)
    assert [r.seconds for r in rows] == sorted((r.seconds for r in rows), reverse=True)
    assert ("reductions" in {r.name for r in rows}) == (tp > 1)


def test_a_card_without_measured_kernels_says_so():
    with pytest.raises(InputError, match="mi300x under vllm is timed by the additive law"):
        pass_detail(load_model("llama3.1-8b"), load_accelerator("mi300x"))
