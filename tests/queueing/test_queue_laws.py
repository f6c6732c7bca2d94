import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.decide.compare import compare
from specplan.decide.step_setting import Setting, times
from specplan.decide.step_source import loads, on_engine
from specplan.queueing.acceptance import drafting_of
from specplan.queueing.arrivals import Load, read_lengths
from specplan.queueing.engine import EngineRules
from specplan.queueing.load import Lists, Requests
from specplan.queueing.outcome import outcome
from specplan.queueing.served_source import Limits, placed
from specplan.queueing.step_table import step_table
from specplan.queueing.stream import UNIT_STEPS, serve
from specplan.queueing.time_loop import target_s
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.timing.step_time import machine
from specplan.values.source import NO_SOURCE, Range, Source

NGRAM = Source(name="ngram", kind="ngram", alpha=Range.at(0.6), coverage=Range.at(0.5), kappa=3)


@pytest.fixture(scope="module")
def setting():
    return Setting(target=load_model("llama3.1-8b"), on=machine(load_accelerator("h100-sxm")))


def in_unit_steps(requests, **limits):
    return serve(requests, EngineRules(**{"num_blocks": 10**6, "prefix_caching": False, **limits}), UNIT_STEPS)


def arrivals(rate, n, seed=0):
    gaps = np.random.default_rng(seed).exponential(1 / rate, n)
    return np.cumsum(gaps) - gaps[0]


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    closed=st.sampled_from([0, 1, 5, 40]),
    blocks=st.integers(20, 400),
    seqs=st.sampled_from([1, 3, 64]),
    prefix=st.booleans(),
    kappa=st.sampled_from([0, 3]),
    engine=st.sampled_from(["vllm", "sglang"]),
)
def test_littles_law_and_every_token_hold_in_every_run(seed, closed, blocks, seqs, prefix, kappa, engine):
    rng = np.random.default_rng(seed)
    n = 60
    arrival = np.sort(rng.uniform(0, 300, n))
    if closed:
        arrival = np.where(np.arange(n) < closed, 0.0, np.nan)
    shared = Lists.of([[int(g)] * int(g > 0) for g in rng.integers(0, 3, n)])
    load = Requests(
        arrival=arrival,
        prompt=rng.integers(20, 180, n),
        output=rng.integers(1, 90, n),
        closed=min(closed, n),
        shared=shared,
        shared_tokens=16,
    )
    method = "draft_model" if kappa else "none"
    rules = EngineRules(num_blocks=blocks, max_num_seqs=seqs, max_num_batched_tokens=256, prefix_caching=prefix,
                        method=method, kappa=kappa, engine=engine)  # fmt: skip
    served = serve(load, rules, UNIT_STEPS, drafting_of(NGRAM, 3, n, seed) if kappa else None, log=True)
    sojourn = served.finish - served.requests.arrival
    assert served.seconds["in_system"] == pytest.approx(sojourn.sum(), rel=1e-9)
    assert (served.emitted == load.output).all()
    assert served.counts["emitted"] == load.output.sum()
    assert (served.start >= served.requests.arrival).all()
    assert (served.first > served.start).all()
    assert (served.finish >= served.first).all()
    assert served.steps[:, 9].sum() == load.output.sum()
    assert served.preempted.sum() == served.counts["preemptions"]
    # A preempted request computes its prompt again; nothing else is computed twice.
    if not prefix and not served.counts["preemptions"] and not kappa:
        assert served.counts["prompted"] == load.prompt.sum()


def test_without_variability_and_below_saturation_nobody_waits():
    n = 200
    load = Requests(arrival=np.arange(n) * 10.0, prompt=np.full(n, 50), output=np.full(n, 8))
    served = in_unit_steps(load, max_num_seqs=1)
    assert (served.start == load.arrival).all()
    assert (served.finish == load.arrival + 8).all()


@pytest.mark.parametrize("load_factor", [0.3, 0.6, 0.8])
def test_one_slot_and_one_step_each_is_the_queue_m_d_1(load_factor):
    n = 200_000
    load = Requests(arrival=arrivals(load_factor, n), prompt=np.full(n, 10), output=np.full(n, 1))
    served = in_unit_steps(load, max_num_seqs=1)
    wait = (served.start - load.arrival).mean()
    assert wait == pytest.approx(load_factor / (2 * (1 - load_factor)), rel=0.04)  # Pollaczek and Khinchine
    assert served.seconds["busy"] / served.seconds["span"] == pytest.approx(load_factor, rel=0.01)


def erlang_c(servers, offered):
    terms = [offered**i / math.factorial(i) for i in range(servers)]
    last = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return last / (sum(terms) + last)


@pytest.mark.parametrize("servers", [1, 4])
def test_outputs_of_geometric_length_are_the_queue_m_m_c(servers):
    n, mean, load_factor = 100_000, 60, 0.7
    rate = load_factor * servers / mean
    output = np.random.default_rng(5).geometric(1 / mean, n)
    load = Requests(arrival=arrivals(rate, n, seed=4), prompt=np.full(n, 10), output=output)
    served = in_unit_steps(load, max_num_seqs=servers)
    wait = (served.start - load.arrival).mean() - 0.5  # until the next step begins
    expected = erlang_c(servers, load_factor * servers) * mean / (servers * (1 - load_factor))
    assert wait == pytest.approx(expected, rel=0.08)


def test_alpha_0_is_plain_decoding_step_for_step():
    rng = np.random.default_rng(3)
    n = 300
    load = Requests(arrival=arrivals(0.5, n), prompt=rng.integers(5, 400, n), output=rng.integers(1, 60, n))
    plain = serve(load, EngineRules(num_blocks=5000, max_num_seqs=32), UNIT_STEPS)
    never = Source(name="ngram", kind="ngram", alpha=Range.at(0.0), kappa=3)
    rules = EngineRules(num_blocks=5000, max_num_seqs=32, method="ngram", kappa=3)
    drafted = serve(load, rules, UNIT_STEPS, drafting_of(never, 3, n, 0))
    assert (drafted.finish == plain.finish).all()
    assert drafted.counts["accepted"] == 0 < drafted.counts["drafted"]


def test_alpha_1_emits_a_whole_draft_and_the_bonus_token_per_step():
    always = Source(name="ngram", kind="ngram", alpha=Range.at(1.0), kappa=3)
    load = Requests(arrival=np.zeros(1), prompt=np.array([10]), output=np.array([41]))
    rules = EngineRules(num_blocks=100, method="ngram", kappa=3)
    assert serve(load, rules, UNIT_STEPS, drafting_of(always, 3, 1, 0)).finish[0] == 11  # the prompt's token, ten of 4


@pytest.mark.parametrize("concurrency", [1, 16, 128])
def test_a_full_engine_decodes_as_fast_as_compare_says(setting, concurrency):
    served = placed(setting, NO_SOURCE, Limits(max_model_len=4096), context=1016)
    load = Load(concurrency=concurrency, input=read_lengths("16", ""), output=read_lengths("2000", ""),
                requests=3 * concurrency)  # fmt: skip
    found = outcome(served.run(load, 0), warmup=0.0)
    (cell,) = compare(setting.target, setting.on.accelerator, [], batches=[concurrency], contexts=[1016]).cells
    assert found.token_rate == pytest.approx(cell.tokens_s_gpu, rel=0.02)


def test_throughput_rises_with_the_load_to_saturation_and_stays(setting):
    served = placed(setting, NO_SOURCE, Limits(max_model_len=4096, max_num_seqs=64), context=600)
    lengths = {"input": read_lengths("500", ""), "output": read_lengths("200", "")}
    rates = [
        outcome(served.run(Load(concurrency=c, requests=640, **lengths), 0), warmup=0.0).token_rate
        for c in (1, 4, 16, 64, 128, 256)
    ]
    assert rates[:4] == sorted(rates[:4])
    assert rates[3] > 15 * rates[0]
    assert rates[4:] == pytest.approx([rates[3]] * 2, rel=0.05)


def test_more_cache_never_lengthens_a_percentile(setting):
    load = Load(rate=12.0, input=read_lengths("p50=800,p95=3000", ""), output=read_lengths("p50=200,p95=800", ""),
                requests=1500)  # fmt: skip
    before = None
    for blocks in (700, 1000, 2000, 4000, 16000):
        served = placed(setting, NO_SOURCE, Limits(max_model_len=8192, num_blocks=blocks), context=1000)
        found = outcome(served.run(load, 1)).latencies
        if before is not None:
            for name in ("ttft", "e2e"):
                for statistic, seconds in found[name].items():
                    assert seconds <= before[name][statistic] * 1.03 + 1e-3, (blocks, name, statistic)
        before = found


def test_a_step_of_decodes_alone_takes_what_the_one_time_model_says(setting):
    draft = Source(name="llama3.2-1b", kind="model", model=load_model("llama3.2-1b"), alpha=Range.at(0.7), kappa=3)
    for source, kappa in ((NO_SOURCE, 0), (NGRAM, 3), (draft, 3)):
        source = on_engine(source, setting.target, "vllm")
        of = loads(setting.target, source, 1)
        table = step_table(setting, source, of, kappa, seqs=64, tokens=2048, longest=4096)
        for batch in (1, 7, 32, 64):
            for context in (0, 15, 1000, 4000):
                step = times(setting, source, of, batch, context, kappa)
                width = round(batch * float(step.positions))
                ours = target_s(table, width, batch, batch * context, 0.0, 0)
                assert ours == pytest.approx(float(step.verify_s), rel=0.01)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(setting):
    served = placed(setting, NGRAM, Limits(), context=600)
    load = Load(rate=5.0, input=read_lengths("p50=300,p95=900", ""), output=read_lengths("100", ""), requests=200)
    one, again, other = (served.run(load, seed) for seed in (3, 3, 4))
    assert one.finish.tobytes() == again.finish.tobytes()
    assert one.finish.tobytes() != other.finish.tobytes()


def test_bursts_lengthen_the_queue(setting):
    served = placed(setting, NO_SOURCE, Limits(), context=600)
    lengths = {"input": read_lengths("2k", ""), "output": read_lengths("50", "")}
    mean = [
        outcome(served.run(Load(rate=12.0, burstiness=b, requests=1500, **lengths), 0)).latencies["ttft"]["mean"]
        for b in (math.inf, 1.0, 0.2)
    ]
    assert mean == sorted(mean)
    assert mean[2] > 1.5 * mean[0]
