import json
import math
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from specplan.decide.step_setting import Setting
from specplan.errors import InputError
from specplan.queueing.arrivals import Load, read_lengths
from specplan.queueing.capacity import Candidate, Question, capacity, ranked, read_prices
from specplan.queueing.estimate import estimate
from specplan.queueing.outcome import outcome, read_target
from specplan.queueing.served_source import Limits, placed
from specplan.runners import Processes
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.timing.step_time import machine
from specplan.values.source import NO_SOURCE, Range, Source

NGRAM = Source(name="ngram", kind="ngram", text="ngram", alpha=Range.at(0.7), coverage=Range.at(0.6), kappa=3)


def candidate(source=NO_SOURCE, gpu="h100-sxm", tp=1, model="llama3.1-8b"):
    setting = Setting(target=load_model(model), on=machine(load_accelerator(gpu), tp=tp))
    return Candidate(setting=setting, source=source)


def question(rate=20.0, ttft="p95=500ms", tpot="p95=30ms", requests=600):
    load = Load(rate=rate, input=read_lengths("1500", ""), output=read_lengths("200", ""), requests=requests)
    return Question(load=load, targets=(read_target(ttft, "ttft"), read_target(tpot, "tpot")), limits=Limits())


def test_the_highest_rate_holds_and_a_little_more_does_not():
    q = question()
    (found,) = capacity([candidate()], q)
    served = placed(candidate().setting, NO_SOURCE, q.limits, context=1600)

    def p95(rate):
        load = Load(rate=rate, input=q.load.input, output=q.load.output, requests=600)
        o = outcome(served.run(load, 0))
        return o.latencies["ttft"]["p95"] / 0.5, o.latencies["tpot"]["p95"] / 0.03

    assert max(p95(found.rate)) <= 1
    assert max(p95(found.rate * 1.1)) > 1
    assert found.replicas == math.ceil(20 / found.rate)
    assert found.binds in ("prefill", "decode", "cache", "queue")
    assert found.estimated_rate == pytest.approx(found.rate, rel=0.4)


def test_tighter_targets_hold_less_and_speculation_that_pays_holds_more():
    def rate(tpot, source=NO_SOURCE):
        return next(capacity([candidate(source)], question(tpot=tpot))).rate

    wide, tight = rate("p95=30ms"), rate("p95=14ms")
    assert 0 < tight < wide
    assert rate("p95=14ms", NGRAM) > tight


def test_what_no_rate_reaches_has_its_reason_and_stands_last():
    q = question(tpot="p95=3ms")
    both = [candidate(), candidate(model="llama3-70b")]
    found = list(capacity(both, q))
    assert [f.replicas for f in found] == [0, 0]
    assert "misses the targets" in found[0].reason
    assert "weights" in found[1].reason
    answer = ranked(found, q, "x", {}, {})
    assert not answer.reaches


def test_cheapest_first_where_prices_are_known_and_fewest_cards_where_not():
    q = question(rate=30.0)
    found = list(capacity([candidate(), candidate(gpu="l40s")], q))
    assert ranked(found, q, "x", {}, {}).found[0].gpu == "h100-sxm"
    dear = ranked(found, q, "x", {"h100-sxm": 100.0, "l40s": 0.5}, {})
    assert dear.found[0].gpu == "l40s"
    best = dear.found[0]
    assert dear.cost_per_million(best) == pytest.approx(0.5 / 3600 * best.cards / (30 * 200) * 1e6)


def test_a_killed_search_takes_up_where_it_ended(tmp_path):
    q = question(requests=200)
    path = tmp_path / "notes.jsonl"
    wanted = [candidate(), candidate(NGRAM), candidate(gpu="h200")]
    whole = list(capacity(wanted, q))
    search = capacity(wanted, q, checkpoint=path)
    next(search)
    search.close()
    assert len(path.read_text().splitlines()) == 2
    with path.open("a") as file:
        file.write('{"name": "torn')
    marked = path.read_text().replace('"binds":"', '"binds":"noted ')
    path.write_text(marked)
    resumed = list(capacity(wanted, q, checkpoint=path))
    assert resumed[0].binds.startswith("noted")
    assert [f.rate for f in resumed] == [f.rate for f in whole]
    with pytest.raises(InputError, match="belongs to another search"):
        list(capacity(wanted, question(requests=201), checkpoint=path))
    path.write_text(json.dumps({"a": 1}) + "\n")
    with pytest.raises(InputError, match="no checkpoint"):
        list(capacity(wanted, q, checkpoint=path))


DIES = """
import os, signal, sys
from specplan.cli.app import main
from specplan.queueing.notes import Notes
note = Notes.note
def noted(*args):
    note(*args)
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv.pop(1) == "dies":
    Notes.note = noted
main(sys.argv[1:])
"""


def test_a_search_killed_outright_gives_the_same_document_when_run_again(tmp_path):
    args = ["capacity", "llama3.1-8b", "--rate", "9", "--input", "800", "--output", "50", "-n", "100", "--json"]
    args += ["--tp", "1,2", "--tpot", "p95=30ms", "--ttft", "p95=1s", "-s", "none", "-s", "ngram:alpha=.7,k=3"]

    args += ["--checkpoint", "notes.jsonl"]
    there, again = tmp_path / "there", tmp_path / "again"
    there.mkdir()
    again.mkdir()

    def run(mode, folder):
        command = [sys.executable, "-c", DIES, mode, *args]
        return subprocess.run(command, cwd=folder, capture_output=True, check=False)

    whole = run("lives", there)
    for finished in (1, 2):
        died = run("dies", again)
        assert (died.returncode, died.stdout) == (-signal.SIGKILL, b"")
        assert len((again / "notes.jsonl").read_text().splitlines()) == 1 + finished
    resumed = run("lives", again)
    assert (resumed.returncode, resumed.stdout) == (0, whole.stdout)
    assert len(json.loads(whole.stdout)["candidates"]) == 4


def test_a_checkpoint_answers_no_other_engine_and_no_other_draft_length(tmp_path):
    q = question(requests=100)
    path = tmp_path / "notes.jsonl"
    on = candidate(NGRAM).setting.on
    sglang = replace(candidate(NGRAM), setting=replace(candidate(NGRAM).setting, on=machine(on.accelerator, "sglang")))
    wanted = [candidate(NGRAM), sglang, candidate(replace(NGRAM, kappa=5))]
    assert len({c.name for c in wanted}) == 3
    alone = list(capacity(wanted[1:], q))
    list(capacity(wanted[:1], q, checkpoint=path))
    assert list(capacity(wanted[1:], q, checkpoint=path)) == alone


@pytest.mark.slow
def test_processes_give_the_same_answers():
    q = question(requests=200)
    wanted = [candidate(), candidate(NGRAM)]
    assert list(capacity(wanted, q, runner=Processes(2))) == list(capacity(wanted, q))


def test_the_estimate_obeys_littles_law_and_fails_beyond_saturation():
    served = placed(candidate().setting, NO_SOURCE, Limits(), context=1600)
    for rate in (1.0, 5.0, 10.0):
        found = estimate(served, rate, 1500, 200, 1.0)
        assert found.batch == pytest.approx(rate * 200 * found.tpot_s, rel=0.02)
    assert not estimate(served, 1000.0, 1500, 200, 1.0).is_stable


def test_questions_without_an_answer_are_refused():
    load = Load(rate=1.0, input=read_lengths("9", ""), output=read_lengths("9", ""))
    with pytest.raises(InputError, match="needs a target"):
        Question(load=load, targets=(), limits=Limits())
    with pytest.raises(InputError, match="--price a100=1"):
        read_prices(["a100=1"], {"h100-sxm"})
    with pytest.raises(InputError, match="alike"):
        list(capacity([candidate(), candidate()], question()))
