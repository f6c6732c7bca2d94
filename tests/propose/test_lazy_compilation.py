"""numba is imported when a compiled proposer is first used, not before, and its absence is one clear line."""

import subprocess
import sys

import pytest

from specplan.errors import MissingExtraError
from specplan.propose.compiled import jit, jit_leaf

PROGRAM = """
import sys
import specplan.propose.ngram as ngram, specplan.propose.ngram_replay, specplan.propose.suffix as suffix
import specplan.propose.suffix_replay, specplan.propose.vllm_suffix, specplan.propose.stores
import specplan.propose.vocab_mapping
assert "numba" not in sys.modules
"""


def test_importing_proposers_imports_no_numba():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)


def test_without_numba_the_install_line_is_named():
    program = PROGRAM + (
        "sys.modules['numba'] = None\n"
        "for make in (lambda: ngram.NgramIndex(ngram.vllm_v1(1, 2)), lambda: suffix.SuffixCache(24)):\n"
        "    try:\n"
        "        make()\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True)
    line = "MissingExtraError this needs numba, which is not installed; run: pip install 'specplan[replay]'"
    assert done.stdout.splitlines() == [line, line]


@pytest.mark.parametrize("decorate", [jit, jit_leaf])
def test_decorators_say_so_too(decorate, monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(MissingExtraError, match="numba"):
        decorate(len)
