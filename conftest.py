"""Names that docstrings' examples may use: the chapter's models, from the shipped specs."""

from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def _example_models(doctest_namespace: dict[str, Any]) -> None:
    from specplan.specs.catalog import load_model

    doctest_namespace["llama3_70b"] = load_model("llama3-70b")
    doctest_namespace["llama32_1b"] = load_model("llama3.2-1b")
    doctest_namespace["mixtral"] = load_model("mixtral-8x7b")
