"""Machine code on disk belongs to the sources of all kernels: a change of a callee in another file is noticed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

import specplan


def test_a_changed_callee_in_another_file_is_compiled_anew(tmp_path: Path) -> None:
    root = tmp_path / "specplan"
    shutil.copytree(Path(specplan.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__", "data"))
    callee, caller = root / "propose" / "a_kernels.py", root / "propose" / "b_kernels.py"
    head = "from specplan.propose.compiled import jit\n\n\n"
    callee.write_text(f"{head}@jit\ndef one(x):\n    return x + 1\n")
    caller.write_text(
        f"{head}from specplan.propose.a_kernels import one\n\n\n@jit\ndef two(x):\n    return one(x) * 10\n"
    )
    code = "from specplan.propose.b_kernels import two; print(two(1), sum(two.stats.cache_hits.values()))"
    env = os.environ | {"PYTHONPATH": str(tmp_path)}

    def run() -> str:
        return subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    assert [run(), run()] == ["20 0\n", "20 1\n"]
    callee.write_text(callee.read_text().replace("x + 1", "x + 2"))
    assert run() == "30 0\n"
