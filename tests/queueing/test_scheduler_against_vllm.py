import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from specplan.queueing.cases import case_steps, first_difference

DATA = Path(__file__).parents[1] / "data"
RECORDS = DATA / "vllm_scheduler.json.gz"


def recorded(path: Path = RECORDS):
    return json.loads(gzip.decompress(path.read_bytes()))


@pytest.mark.parametrize(("name", "runs"), [("vllm_scheduler", 125), ("vllm_scheduler_0.33", 44)])
def test_every_recorded_run_of_vllms_scheduler_is_equal_step_by_step(name, runs):
    found = {case["id"]: str(first_difference(case)) for case in recorded(DATA / f"{name}.json.gz")}
    assert len(found) == runs
    assert not {name: text for name, text in found.items() if text != "None"}


def test_a_changed_record_is_seen_in_each_column():
    case = recorded()[0]
    for column, changed in ((1, {"0": 1}), (4, -1), (7, {"0": 99}), (8, ["3"])):
        steps = [list(step) for step in case["steps"]]
        steps[2][column] = changed
        difference = first_difference({**case, "steps": steps})
        assert difference is not None
        assert difference.step == steps[2][0]
    assert first_difference({**case, "steps": case["steps"][:-1]}).column == "steps in all"


IN_PYTHON = """
import gzip, json, sys
sys.modules["numba"] = None
from specplan.queueing import compiled
from specplan.queueing.cases import case_steps
assert not compiled.IS_COMPILED
cases = json.loads(gzip.decompress(open(sys.argv[1], "rb").read()))
print(json.dumps([case_steps(case) for case in cases[:8]]))
"""


def test_without_numba_the_steps_are_the_same():
    done = subprocess.run([sys.executable, "-c", IN_PYTHON, str(RECORDS)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads(json.dumps([case_steps(case) for case in recorded()[:8]]))


@pytest.mark.engine
def test_new_runs_of_the_installed_scheduler_are_equal(tmp_path):
    tool = Path(__file__).parents[2] / "tools" / "record_scheduler.py"
    out = tmp_path / "new.json"
    subprocess.run([sys.executable, str(tool), "--runs", "20", "--seed", "7", "-o", str(out)], check=True)
    for case in json.loads(out.read_text()):
        assert first_difference(case) is None, case["id"]
