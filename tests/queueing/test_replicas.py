"""Engines that share a load: each serves its part as if alone, and the least loaded one is found."""

from dataclasses import replace

import numpy as np
import pytest

from specplan.errors import InputError
from specplan.queueing.engine import EngineRules
from specplan.queueing.load import Requests
from specplan.queueing.outcome import outcome
from specplan.queueing.replicas import ROUTINGS, Routing, serve_replicas
from specplan.queueing.stream import UNIT_STEPS, serve

ONE_AT_A_TIME = EngineRules(num_blocks=64, max_num_seqs=1, prefix_caching=False)


def drawn(n: int, seed: int, mean_gap: float) -> Requests:
    """Whole arrivals, prompts of one step, outputs of 1 to 40 steps."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.geometric(1 / mean_gap, n)).astype(float)
    return Requests(arrival=arrival, prompt=np.full(n, 8), output=rng.integers(1, 41, n))


def shortest_queue(load: Requests, engines: int) -> np.ndarray:
    """When each request ends if it joins the first of the engines with the fewest unfinished ones: one by one."""
    ends: list[list[float]] = [[] for _ in range(engines)]
    found = []
    for arrival, steps in zip(load.arrival.tolist(), load.output.tolist(), strict=True):
        unfinished = [sum(end > arrival for end in own) for own in ends]
        own = ends[unfinished.index(min(unfinished))]
        own.append(max(arrival, own[-1] if own else 0.0) + steps)
        found.append(own[-1])
    return np.array(found)


@pytest.mark.parametrize("engines", [2, 3, 7])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_least_loaded_engine_is_the_one_that_a_count_finds(engines: int, seed: int) -> None:
    load = drawn(400, seed, mean_gap=20.0 / engines)
    routing = Routing(replicas=engines, by="least-loaded")
    found = serve_replicas(load, ONE_AT_A_TIME, UNIT_STEPS, routing=routing)
    np.testing.assert_array_equal(found.finish, shortest_queue(load, engines))


@pytest.mark.parametrize("closed", [0, 9])
def test_in_turn_each_engine_serves_its_part_as_if_alone(closed: int) -> None:
    load = drawn(300, 4, mean_gap=4.0)
    if closed:
        load = replace(load, arrival=np.where(np.arange(300) < closed, 0.0, np.nan), closed=closed)
    rules = EngineRules(num_blocks=40, max_num_seqs=8)
    found = serve_replicas(load, rules, UNIT_STEPS, routing=Routing(replicas=4))
    for first in range(4):
        part = slice(first, None, 4)
        share = len(range(first, closed, 4))
        alone = replace(
            load, arrival=load.arrival[part], prompt=load.prompt[part], output=load.output[part], closed=share
        )
        np.testing.assert_array_equal(found.finish[part], serve(alone, rules, UNIT_STEPS).finish)


@pytest.mark.parametrize("by", ROUTINGS)
def test_littles_law_and_every_token_hold_over_all_engines(by: str) -> None:
    load = drawn(500, 5, mean_gap=3.0)
    rules = EngineRules(num_blocks=40, max_num_seqs=4)
    found = serve_replicas(load, rules, UNIT_STEPS, routing=Routing(replicas=3, by=by))
    np.testing.assert_array_equal(found.emitted, load.output)
    stay = found.finish - found.requests.arrival
    assert found.seconds["in_system"] == pytest.approx(stay.sum(), rel=1e-9)
    summed = outcome(found, warmup=0.0)
    assert 0 < summed.utilisation <= 1
    assert found.series[:, 4].sum() == load.output.sum()


def test_where_lengths_differ_the_least_loaded_engine_keeps_requests_waiting_less() -> None:
    load = drawn(4000, 6, mean_gap=7.0)
    waits = {
        by: outcome(serve_replicas(load, ONE_AT_A_TIME, UNIT_STEPS, routing=Routing(replicas=4, by=by))).queue_s
        for by in ROUTINGS
    }
    assert waits["least-loaded"] < 0.8 * waits["round-robin"]


CLOSED = Requests(
    arrival=np.append(np.zeros(2), np.full(7, np.nan)), prompt=np.full(9, 8), output=np.full(9, 2), closed=2
)


@pytest.mark.parametrize(
    ("load", "routing", "says"),
    [
        (drawn(3, 1, 2.0), {"replicas": 4}, "more engines than the load's 3 requests"),
        (drawn(9, 1, 2.0), {"replicas": 0}, "expected 1 to 1024"),
        (drawn(9, 1, 2.0), {"replicas": 2, "by": "random"}, "one of round-robin, least-loaded"),
        (CLOSED, {"replicas": 2, "by": "least-loaded"}, "needs arrivals"),
    ],
)
def test_what_cannot_be_shared_is_one_line(load: Requests, routing: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        serve_replicas(load, ONE_AT_A_TIME, UNIT_STEPS, routing=Routing(**routing))
