"""Names that docstrings' examples may use, hypothesis' profiles, and the quick stage of the suite."""

import os
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# One profile for the suite: the same examples each time, and no clock that a busy machine could trip. By hand,
# HYPOTHESIS_PROFILE=fuzz draws anew.
_NO_CLOCK: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("suite", derandomize=True, **_NO_CLOCK)
settings.register_profile("fuzz", max_examples=2000, print_blob=True, **_NO_CLOCK)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


@pytest.fixture(autouse=True, scope="session")
def _example_models(doctest_namespace: dict[str, Any]) -> None:
    from specplan.specs.catalog import load_model

    doctest_namespace["llama3_70b"] = load_model("llama3-70b")
    doctest_namespace["llama32_1b"] = load_model("llama3.2-1b")
    doctest_namespace["mixtral"] = load_model("mixtral-8x7b")


QUICK_PER_FILE = 2
"""Tests of each file that the quick stage runs: the first, each with its first parameters."""
NEVER_QUICK = {"slow", "engine", "model", "transformers", "tail", "browser"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark `quick`: the first tests of every file that need no model, transformers, engine or browser."""
    seen: set[str] = set()
    taken: Counter[str] = Counter()
    for item in items:
        function = item.nodeid.partition("[")[0]
        if function in seen or any(mark.name in NEVER_QUICK for mark in item.iter_markers()):
            continue
        seen.add(function)
        file = function.partition("::")[0]
        if taken[file] < QUICK_PER_FILE:
            taken[file] += 1
            item.add_marker("quick")
