import pickle
from multiprocessing.reduction import ForkingPickler

import specplan.runners
from specplan.decide.step_setting import Setting
from specplan.queueing.capacity import Candidate
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.timing.step_time import machine
from specplan.values.source import NO_SOURCE


def test_a_candidate_reaches_another_process_as_it_is():
    assert specplan.runners.Processes(2).jobs == 2
    for card in ("h100-sxm", "l40s", "mi300x"):
        setting = Setting(target=load_model("llama3.1-8b"), on=machine(load_accelerator(card)))
        candidate = Candidate(setting=setting, source=NO_SOURCE)
        there = pickle.loads(bytes(ForkingPickler.dumps(candidate)))  # noqa: S301 - our own bytes
        assert there == candidate
