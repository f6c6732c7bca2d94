"""Recorded runs of a real scheduler, and our run of the same requests, step by step.

A case is a mapping as `tools/record_scheduler.py` writes it: ``config``, ``requests`` and ``steps``; see there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from specplan.errors import InputError
from specplan.queueing import state as at
from specplan.queueing.engine import EngineRules
from specplan.queueing.load import Drafting, Lists, Requests
from specplan.queueing.stream import UNIT_STEPS, serve
from specplan.values.vllm_versions import DEFAULT_VERSION

_VERSION: Final = re.compile(r"\d+\.\d+(\.\d+)?")

COLUMNS: Final = (
    "step", "tokens", "drafts", "preempted", "free blocks", "admitted", "resumed", "emitted", "finished",
)  # fmt: skip
"""Of a recorded step, the whole numbers by request where it is not a list of requests."""

_BY_REQUEST: Final = {at.SCHEDULED: 1, at.CHECK: 2, at.ADMIT: 5, at.EMIT: 7}
_LISTED: Final = {at.PREEMPT: 3, at.RESUME: 6, at.END: 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first step in which our run and the recorded one differ.

    Attributes
    ----------
    step : int
    column : str
        One of `COLUMNS`.
    ours, recorded : object
    """

    step: int
    column: str
    ours: Any
    recorded: Any

    def __str__(self) -> str:
        return f"step {self.step}, {self.column}: ours {self.ours}, recorded {self.recorded}"


def first_difference(case: Mapping[str, Any]) -> Difference | None:
    """Run a case and compare it with its record; None where all steps are equal.

    Raises
    ------
    InputError
        If the case is not of the known form.
    """
    try:
        ours = case_steps(case)
        recorded = [_sorted(step) for step in case["steps"]]
    except (KeyError, TypeError, ValueError) as error:
        form = "config, requests and steps as tools/record_scheduler.py writes them"
        raise InputError(f"case {case.get('id', '?')}: expected {form}: {error!r}") from None
    for mine, theirs in zip(ours, recorded, strict=False):
        for name, a, b in zip(COLUMNS, mine, theirs, strict=True):
            if a != b:
                return Difference(step=theirs[0], column=name, ours=a, recorded=b)
    if len(ours) != len(recorded):
        return Difference(
            step=min(len(ours), len(recorded)), column="steps in all", ours=len(ours), recorded=len(recorded)
        )
    return None


def case_steps(case: Mapping[str, Any]) -> list[list[Any]]:
    """Our run of a case, in the form of its record."""
    config, listed = case["config"], case["requests"]
    order = sorted(range(len(listed)), key=lambda i: listed[i]["arrival_step"])
    asked = [listed[i] for i in order]
    block = config["block_size"]
    kappa = config["k"]
    rules = EngineRules(
        num_blocks=config["num_blocks"],
        block_size=block,
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_model_len=config["max_model_len"],
        prefix_caching=config["prefix_caching"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        method=(config["method"] or "none") if kappa else "none",
        kappa=kappa,
        version=found[0] if (found := _VERSION.search(str(case.get("engine", "")))) else DEFAULT_VERSION,
    )
    groups = {g: i for i, g in enumerate(sorted({r["group"] for r in asked if "group" in r}))}
    most = config["max_model_len"] // block + 1
    load = Requests(
        arrival=np.array([r["arrival_step"] for r in asked], np.float64),
        prompt=np.array([r["prompt_len"] for r in asked], np.int64),
        output=np.array([r["output_len"] for r in asked], np.int64),
        shared=Lists.of(
            [
                [groups[r["group"]] * most + j for j in range(r["shared"] // block)] if "group" in r else []
                for r in asked
            ]
        ),
        shared_tokens=block,
    )
    drafting = Drafting.of([r.get("draft") or [0] for r in asked], [r.get("accept") or [0] for r in asked])
    served = serve(load, rules, UNIT_STEPS, drafting, log=True)
    steps: dict[int, list[Any]] = {}
    for step, kind, request, value in served.events.tolist():
        row = steps.setdefault(step, [step, {}, {}, [], 0, {}, [], {}, []])
        name = str(order[request])
        if kind == at.LEFT:
            row[4] = value
        elif kind in _LISTED:
            row[_LISTED[kind]].append(name)
        else:
            row[_BY_REQUEST[kind]][name] = value
    return [_sorted(row) for row in steps.values()]


def _sorted(step: list[Any]) -> list[Any]:
    """A step whose lists of requests are in order: records list them by number."""
    return [sorted(part, key=int) if isinstance(part, list) else part for part in step]
