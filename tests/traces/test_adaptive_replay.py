"""Adaptive verification on recorded requests: its walk against replay, against a loop by hand, and its limits."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specplan.cli.app import main
from specplan.errors import InputError
from specplan.formulas.adaptive import WidthCost, verify_budget
from specplan.propose.spelling import parse_source
from specplan.traces import adaptive
from specplan.traces.adaptive import Drafts, adaptive_row, budgeted, drafts_of, everything, nothing, serve
from specplan.traces.requests import RecordedRequest
from specplan.traces.serve import driven

COST = WidthCost.of([1, 2, 4, 8, 16], [1.0, 1.0, 1.02, 1.1, 1.4], 0.05)


def requests(seed: int = 3, count: int = 6) -> list[RecordedRequest]:
    rng = np.random.default_rng(seed)
    motif = rng.integers(0, 50, 12)

    def text(n: int) -> np.ndarray:
        noisy = np.where(rng.random(n) < 0.25, rng.integers(0, 50, n), np.resize(motif, n))
        return noisy.astype(np.int32)

    return [RecordedRequest(id=str(i), tag="", prompt=text(20), response=text(40 + 5 * i)) for i in range(count)]


@pytest.mark.parametrize("spelling", ["ngram:min=1,max=3,k=4", "suffix"])
def test_verifying_the_whole_draft_is_replay(spelling: str) -> None:
    source, recorded = parse_source(spelling), requests()
    steps = driven(source, recorded)
    found = serve(drafts_of(source, recorded), range(len(recorded)), 1, everything, COST)
    assert found.request_steps == len(steps)
    assert (found.drafted, found.tokens) == (steps.drafted.sum(), steps.emitted.sum())
    assert found.accepted == steps.accepted.sum()


class ByHand:
    """The walk in plain lists, one request at a time; a slot is [request, emitted tokens, belief by position]."""

    def __init__(self, tables: list[Drafts], order: list[int], batch: int, keep: float) -> None:
        self.tables, self.keep, self.slow = tables, keep, keep**0.1
        self.width = max(int(t.drafted.max()) for t in tables)
        self.overall = [adaptive.PRIOR] * self.width
        self.totals = [0, 0, 0, 0]  # steps of requests, tokens, verified, accepted
        waiting: Iterator[int] = iter(order)
        slots: list[list] = [[None] for _ in range(batch)]
        while True:
            for slot in slots:
                if slot[0] is None:
                    slot[:] = [next(waiting, None), 1, list(self.overall)]
            on = [s for s in slots if s[0] is not None]
            if not on:
                return
            self.step(on)

    def survivals(self, request: int, t: int, belief: list[float]) -> list[float]:
        reach, row = 1.0, []
        for i in range(self.width):
            reach = reach * belief[i] if i < self.tables[request].drafted[t] else 0.0
            row.append(reach)
        return row

    def step(self, on: list[list]) -> None:
        lengths = verify_budget([self.survivals(*slot) for slot in on], COST).lengths.tolist()
        seen: list[list[bool]] = [[] for _ in range(self.width)]
        for slot, length in zip(on, lengths, strict=True):
            self.verify(slot, length, seen)
        for i, outcomes in enumerate(seen):
            kept = self.keep ** (len(outcomes) / len(on)) if outcomes else self.slow
            towards = sum(outcomes) / len(outcomes) if outcomes else adaptive.PRIOR
            self.overall[i] = kept * self.overall[i] + (1 - kept) * towards

    def verify(self, slot: list, length: int, seen: list[list[bool]]) -> None:
        request, t, belief = slot
        table = self.tables[request]
        verified = min(length, int(table.drafted[t]))
        accepted = min(int(table.accepted[t]), verified)
        for i in range(self.width):
            if i < min(accepted + 1, verified):
                belief[i] = self.keep * belief[i] + (1 - self.keep) * (i < accepted)
                seen[i].append(i < accepted)
            else:
                belief[i] = self.slow * belief[i] + (1 - self.slow) * self.overall[i]
        emitted = min(accepted + 1, table.drafted.size - t)
        self.totals = [a + b for a, b in zip(self.totals, (1, emitted, verified, accepted), strict=True)]
        slot[:2] = [None if t + emitted >= table.drafted.size else request, t + emitted]


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_counts_equal_a_loop_by_hand(batch: int) -> None:
    tables = list(drafts_of(parse_source("ngram:min=1,max=3,k=4"), requests()))
    order = [0, 3, 1, 2, 5, 4, 0, 1]
    found = serve(tables, order, batch, budgeted(COST, 0.0), COST)
    expected = ByHand(tables, order, batch, 0.8).totals
    assert [found.request_steps, found.tokens, found.verified, found.accepted] == expected


def test_every_rule_emits_each_response_once() -> None:
    recorded = requests()
    tables = drafts_of(parse_source("suffix"), recorded)
    tokens = sum(r.response.size - 1 for r in recorded)
    for rule in (nothing, everything, budgeted(COST, 0.1)):
        assert serve(tables, range(len(recorded)), 4, rule, COST).tokens == tokens
    assert serve(tables, range(len(recorded)), 4, nothing, COST).verified == 0


def test_free_positions_are_all_verified_and_dear_ones_hardly() -> None:
    tables = drafts_of(parse_source("ngram:min=1,max=3,k=4"), requests())
    free = adaptive_row(tables, 4, WidthCost.of([4096], [1.0], 0.0))
    assert free.gain == pytest.approx((1.0, 1.0, 1.0))
    dear = adaptive_row(tables, 16, WidthCost.of([1], [1.0], 1.0))
    assert dear.gain[0] > 1.0
    assert dear.adaptive.verified < 0.5 * dear.whole.verified


def test_trees_and_impossible_settings_are_refused() -> None:
    with pytest.raises(InputError, match="a tree is verified whole"):
        drafts_of(parse_source("sglang-ngram:budget=8"), requests())
    tables = drafts_of(parse_source("ngram:min=1,max=3,k=4"), requests(count=1))
    with pytest.raises(InputError, match="must lie in"):
        serve(tables, [0], 1, nothing, COST, keep=1.0)
    with pytest.raises(InputError, match="at least one request"):
        serve(tables, [0], 0, nothing, COST)


def test_classes_of_requests_get_their_own_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests that repeat themselves and requests that do not, in one batch; together never worse than one length."""
    rng = np.random.default_rng(4)
    rows = []
    for i in range(8):
        motif = rng.integers(0, 99, 9).tolist() * 9
        rows.append({"id": f"r{i}", "tag": "repeats", "prompt_token_ids": motif[:30], "output_token_ids": motif[30:]})
        noise = rng.integers(0, 12, 80).tolist()  # of few tokens: n-grams match, and the next token seldom does
        rows.append({"id": f"n{i}", "tag": "noise", "prompt_token_ids": noise[:30], "output_token_ids": noise[30:]})
    trace, picture = tmp_path / "trace.jsonl", tmp_path / "classes.svg"
    trace.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(SystemExit):
        main(["replay", str(trace), "-s", "ngram:min=1,max=3,k=5", "--adaptive", "--target", "llama3-70b", "--tp", "4",
              "--context", "256", "--picture", str(picture), "--json"])  # fmt: skip
    (found,) = json.loads(capsys.readouterr().out)["classes"]
    plans = {plan["batch"]: plan for plan in found["batches"]}
    lengths = {batch: {r["tag"]: r["kappa"] for r in plan["rows"]} for batch, plan in plans.items()}
    for plan in plans.values():
        assert plan["speedup"] >= plan["one_speedup"] * (1 - 1e-9)
        assert sum(r["share"] for r in plan["rows"]) == pytest.approx(1)
        mean = sum(r["share"] * r["speedup"] for r in plan["rows"])
        assert mean == pytest.approx(plan["speedup"], rel=1e-9)
    assert all(of["repeats"] >= of["noise"] for of in lengths.values())
    assert lengths[256]["noise"] < lengths[1]["noise"]
    assert lengths[256]["repeats"] == 5
    assert "repeats" in picture.read_text()
