"""SGLang's rules in the loop of flat arrays equal a twin of lists and objects, step by step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_steps import Request, Server

from specplan import simulate
from specplan.errors import InputError
from specplan.queueing import state as at
from specplan.queueing.engine import EngineRules
from specplan.queueing.load import Drafting, Lists, Requests
from specplan.queueing.stream import UNIT_STEPS, serve


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    pool=st.integers(400, 3000),
    seqs=st.sampled_from([2, 5, 64]),
    chunk=st.sampled_from([32, 100, 8192]),
    kappa=st.sampled_from([0, 3]),
)
def test_the_loop_equals_a_twin_of_lists(seed: int, pool: int, seqs: int, chunk: int, kappa: int) -> None:
    rng = np.random.default_rng(seed)
    n = 30
    arrival = np.sort(rng.integers(0, 200, n)).astype(float)
    prompt, output = rng.integers(1, 180, n), rng.integers(1, 150, n)
    drafts = [rng.integers(0, kappa + 1, 7).tolist() for _ in range(n)]
    accepts = [rng.integers(0, kappa + 1, 5).tolist() for _ in range(n)]
    twins = [Request(i, int(arrival[i]), int(prompt[i]), int(output[i]), drafts[i], accepts[i]) for i in range(n)]
    expected = Server(pool, seqs, chunk, kappa, twins).run()
    rules = EngineRules(
        num_blocks=pool, block_size=1, max_num_seqs=seqs, max_num_batched_tokens=chunk, prefix_caching=False,
        method="eagle" if kappa else "none", kappa=kappa, engine="sglang",
    )  # fmt: skip
    load = Requests(arrival=arrival, prompt=prompt, output=output, shared=Lists.of([[]] * n), shared_tokens=1)
    served = serve(load, rules, UNIT_STEPS, Drafting.of(drafts, accepts) if kappa else None, log=True)
    steps: dict[int, tuple[dict[int, int], list[int], dict[int, int]]] = {}
    for step, kind, request, value in served.events.tolist():
        given_, free, emitted = steps.setdefault(step, ({}, [], {}))
        if kind == at.SCHEDULED:
            given_[request] = value
        elif kind == at.LEFT:
            free.append(value)
        elif kind == at.EMIT:
            emitted[request] = value
    ours = [(step, tokens, free[0], emitted) for step, (tokens, free, emitted) in steps.items()]
    assert ours == expected


def test_prompts_go_first_and_alone() -> None:
    asked = {"rate": 12, "input_len": 1500, "output_len": 200, "requests": 300, "keep": "steps"}
    prompts, decodes = at.STEP_COLUMNS.index("prefills"), at.STEP_COLUMNS.index("decodes")
    mixed = []
    for engine in ("sglang", "vllm"):
        ((_, served),) = simulate("llama3.1-8b", engine=engine, **asked).runs
        mixed.append(((served.steps[:, prompts] > 0) & (served.steps[:, decodes] > 0)).any())
    assert mixed == [False, True]


def test_what_is_expected_of_requests_rises_when_they_must_be_put_back() -> None:
    n = 40
    load = Requests(
        arrival=np.arange(n) * 30.0,
        prompt=np.full(n, 50),
        output=np.full(n, 1500),
        shared=Lists.of([[]] * n),
        shared_tokens=1,
    )
    rules = EngineRules(num_blocks=16000, block_size=1, prefix_caching=False, engine="sglang")
    served = serve(load, rules, UNIT_STEPS, None, log=True)
    kinds = served.events[:, 1]
    back, again = (kinds == at.PREEMPT).sum(), (kinds == at.RESUME).sum()
    assert back == again > 0
    # The first to go back is one of those that came last, and no request starves.
    first = served.events[kinds == at.PREEMPT][0]
    admitted = served.events[(kinds == at.ADMIT) & (served.events[:, 0] < first[0])]
    assert first[2] == admitted[-1, 2]
    assert (served.events[kinds == at.EMIT][:, 3].sum()) == n * 1500


def test_a_request_that_is_never_admitted_is_named() -> None:
    with pytest.raises(InputError, match="are not admitted to a pool of 1000 tokens"):
        EngineRules(num_blocks=1000, block_size=1, engine="sglang").refuse(600, 400, "request 1")
    EngineRules(num_blocks=1002, block_size=1, engine="sglang").refuse(600, 400, "request 1")


def test_speculating_sglang_runs_48_at_most_unless_told() -> None:
    asked = {"rate": 40, "input_len": 200, "output_len": 400, "requests": 400, "sources": "eagle3:alpha=.7,k=3"}
    seqs = [
        simulate("llama3.1-8b", engine="sglang", **asked, **more).answers[0].served.rules.max_num_seqs
        for more in ({}, {"max_num_seqs": 200})
    ]
    assert seqs == [48, 200]
