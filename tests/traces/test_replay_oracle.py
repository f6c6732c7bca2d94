"""Replay against a brute force of a few lines, and against targets whose acceptance is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.decide.measured import summarise
from specplan.errors import InputError
from specplan.propose.rules import NgramSource, SglangNgramSource, SuffixSource
from specplan.propose.spelling import parse_source
from specplan.propose.steps import join
from specplan.propose.suffix_replay import replay as suffix_replay
from specplan.traces.counts import counts_per_request, tallies_by_tag, total_of
from specplan.traces.counts import tested_of as verdicts_of
from specplan.traces.read import TraceReader, find_files
from specplan.traces.requests import RecordedRequest
from specplan.traces.serve import driven, steps_of, verified_width

texts = st.lists(st.integers(0, 3), min_size=0, max_size=40)
traces = st.lists(st.tuples(texts, texts), min_size=1, max_size=5)


def request(prompt: list[int], response: list[int], name: str = "r", tag: str = "") -> RecordedRequest:
    return RecordedRequest(id=name, tag=tag, prompt=np.array(prompt, np.int32), response=np.array(response, np.int32))


def ngram_oracle(context: list[int], low: int, high: int, k: int) -> list[int]:
    """Longest n, earliest start, at most k tokens, not past the end."""
    for n in range(min(high, len(context) - 1), low - 1, -1):
        tail = context[len(context) - n :]
        for start in range(len(context) - n):
            if context[start : start + n] == tail:
                return context[start + n : start + n + k]
    return []


def replay_oracle(prompt: list[int], response: list[int], low: int, high: int, k: int) -> list[tuple]:
    rows, emitted = [], 1
    while emitted < len(response):
        context = prompt + response[:emitted]
        draft = ngram_oracle(context, low, high, k)
        following = response[emitted:]
        accepted = 0
        while accepted < min(len(draft), len(following)) and draft[accepted] == following[accepted]:
            accepted += 1
        step = min(accepted + 1, len(following))
        rows.append((len(context), len(draft), accepted, step))
        emitted += step
    return rows


@given(traces, st.integers(1, 3), st.integers(0, 3), st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_ngram_replay_is_the_brute_force(trace: list, low: int, more: int, k: int) -> None:
    source = NgramSource(min=low, max=low + more, k=k)
    steps = steps_of(source, [request(p, r) for p, r in trace])
    rows = zip(steps.context_len, steps.drafted, steps.accepted, steps.emitted, strict=True)
    got = [tuple(int(v) for v in row) for row in rows]
    assert got == [row for p, r in trace for row in replay_oracle(p, r, low, low + more, k)]


SOURCES = [
    NgramSource(min=1, max=3, k=4),
    NgramSource(min=1, max=3, k=4, rule="vllm-v2"),
    NgramSource(max=3, k=4, rule="transformers"),
    NgramSource(min=2, max=3, k=4, rule="latest", len=50),
    SuffixSource(k=8, depth=8),
    SuffixSource(k=8, depth=6, cached=1, factor=2.0, min_prob=0.3, len=60),
    SglangNgramSource(budget=6, depth=5),
    SglangNgramSource(budget=6, depth=5, rule="sane", match="prob"),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.short)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_compiled_loops_equal_the_protocol_step_by_step(source, concurrency: int) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(5)
    trace = [
        request(rng.integers(1, 5, rng.integers(1, 30)).tolist(), rng.integers(1, 5, rng.integers(0, 40)).tolist())
        for _ in range(12)
    ]  # no token 0: as padding of SGLang's engine it may be accepted without having been drafted
    compiled = steps_of(source, trace, concurrency=concurrency)
    asked = driven(source, trace, concurrency=concurrency)
    for column in ("request", "context_len", "drafted", "accepted", "emitted"):
        assert np.array_equal(getattr(compiled, column), getattr(asked, column)), column
    assert np.array_equal(verdicts_of(compiled), verdicts_of(asked))


def test_a_path_that_ends_in_a_leaf_shows_no_rejection() -> None:
    """At context 7 the tree is {3, 2} under the root: 3 is accepted and has nothing below, so 1 position was tested."""
    source = SglangNgramSource(budget=3, depth=3, rule="sane")
    trace = [request([1, 2, 1, 3, 1], [6, 1, 3, 7, 1, 2, 1, 3, 5])]
    for steps in (steps_of(source, trace), driven(source, trace)):
        rows = zip(steps.context_len, steps.drafted, steps.accepted, steps.emitted, verdicts_of(steps), strict=True)
        assert [tuple(int(v) for v in row) for row in rows] == [
            (6, 0, 0, 1, 0),
            (7, 2, 1, 2, 1),
            (9, 0, 0, 1, 0),
            (10, 2, 0, 1, 1),
            (11, 2, 2, 3, 2),
        ]
        tally = tallies_by_tag(steps, trace, verified_width(source))[""]
        assert (tally.accepted_tokens, tally.tested_tokens) == (3, 4)


def test_an_accepted_pad_is_a_leaf() -> None:
    steps = steps_of(SglangNgramSource(budget=4), [request([5], [6, 0, 7])])
    assert (steps.accepted.tolist(), verdicts_of(steps).tolist()) == ([1], [1])


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.short)
def test_steps_tile_every_response(source) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(7)
    trace = [request(rng.integers(0, 3, 20).tolist(), rng.integers(0, 3, n).tolist()) for n in (0, 1, 2, 50)]
    steps = steps_of(source, trace, concurrency=2)
    counts = counts_per_request(steps, len(trace), verified_width(source))
    assert counts[:, 1].tolist() == [max(r.response.size - 1, 0) for r in trace]  # emitted, the prefill's one apart
    total = total_of(tallies_by_tag(steps, trace, verified_width(source)))
    total.check_integrity()
    assert (total.requests, total.prefills) == (4, 3)
    assert total.emitted_tokens == counts[:, 1].sum()


def simulated(p: float, n_requests: int, rng: np.random.Generator) -> list[RecordedRequest]:
    """Requests in which the n-gram's guess is right with probability p, independently at each position.

    The prompt says 0 1 2 ... 63 0 1; a response goes on counting (mod 64) with probability p and else emits a fresh id
    and two tokens that bring it back to a place in the count, so that the matcher drafts again.
    """
    out = []
    for _ in range(n_requests):
        response: list[int] = [2]
        at, fresh = 2, 1000
        for _ in range(60):
            if rng.random() < p:
                at = (at + 1) % 64
                response.append(at)
            else:
                at = int(rng.integers(1, 62))
                response += [fresh, at, at + 1]
                at, fresh = at + 1, fresh + 1
        out.append(request([*range(64), 0, 1], response))
    return out


def test_alpha_covers_the_truth_at_the_stated_rate() -> None:
    """Drafts of one token: each is right with probability p, so alpha's interval must hold p in about 95 of 100."""
    source = NgramSource(min=2, max=2, k=1)
    rng = np.random.default_rng(11)
    p, trials, held, values = 0.7, 150, 0, []
    for _ in range(trials):
        trace = simulated(p, 12, rng)
        steps = steps_of(source, trace)
        # Where the record left the count, the bigram (fresh, at) was never seen: no draft. Where it counts, one token.
        alpha = summarise(total_of(tallies_by_tag(steps, trace, None)), source="s").alpha
        assert alpha.value is not None
        assert alpha.low is not None
        assert alpha.high is not None
        values.append(alpha.value)
        held += alpha.low <= p <= alpha.high
    assert np.mean(values) == pytest.approx(p, abs=4 * np.std(values) / np.sqrt(trials))
    assert 0.89 <= held / trials <= 0.99  # binomial(150, 0.95): 0.905 to 0.985 at three standard deviations


def test_longer_drafts_do_not_bias_alpha() -> None:
    """Only positions up to the first rejection count, so a long draft's untested tail does not pull alpha down."""
    rng = np.random.default_rng(13)
    trace = simulated(0.8, 200, rng)
    found = {}
    for k in (1, 3, 8):
        steps = steps_of(NgramSource(min=2, max=2, k=k), trace)
        found[k] = summarise(total_of(tallies_by_tag(steps, trace, None)), source="s")
    for k, m in found.items():
        assert m.alpha.low is not None
        assert m.alpha.high is not None
        assert m.alpha.low - 0.01 <= 0.8 <= m.alpha.high + 0.01, k
    assert found[8].accepted_per_drafted is not None
    assert found[8].accepted_per_drafted < 0.6  # the pooled ratio is another quantity


def test_a_record_that_ends_inside_a_draft_shows_no_rejection() -> None:
    trace = [request([1, 2, 3, 4, 5, 1, 2], [3, 4])]
    steps = steps_of(NgramSource(min=2, max=2, k=3), trace)
    total = total_of(tallies_by_tag(steps, trace, None))
    assert (total.drafted_tokens, total.accepted_tokens, total.tested_tokens) == (3, 1, 1)
    assert total.emitted_tokens == 1


@pytest.mark.parametrize(
    ("depth", "factor", "min_prob", "k", "cached", "totals"),
    [
        (24, 1.0, 0.1, 32, 100_000, (6917, 10705, 3995)),
        (64, 1.0, 0.1, 32, 100_000, (6868, 11177, 4045)),
        (64, 2.0, 0.3, 16, 5, (6904, 13061, 4007)),
        (24, 4.0, 0.0, 8, 0, (6989, 19315, 3923)),
    ],
)
def test_totals_are_those_of_arctics_cache(
    depth: int, factor: float, min_prob: float, k: int, cached: int, totals: tuple
) -> None:
    """Steps, drafted, accepted: arctic-inference 0.3.0's cache over the shipped trace, drafting on the bare prompt."""
    trace = list(TraceReader().read(find_files(["smollm2"])))
    stream, starts, prompts = join([r.prompt for r in trace], [r.response for r in trace])
    steps = suffix_replay(
        stream,
        starts,
        prompts,
        k,
        max_tree_depth=depth,
        max_cached_requests=cached,
        max_spec_factor=factor,
        min_token_prob=min_prob,
        prefill_emits=0,
    )
    assert (len(steps), int(steps.drafted.sum()), int(steps.accepted.sum())) == totals


@given(traces, st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_a_proposer_of_ones_own_runs_by_its_name(trace: list, k: int, concurrency: int) -> None:
    requests = [request(p, r) for p, r in trace]
    own = steps_of(parse_source(f"own_proposer:LastToken:k={k}"), requests, concurrency=concurrency)
    same = steps_of(parse_source(f"ngram:min=1,max=1,k={k},rule=latest"), requests)
    assert [own.drafted.tolist(), own.accepted.tolist()] == [same.drafted.tolist(), same.accepted.tolist()]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere.at.all:Class", "No module named 'nowhere'"),
        ("own_proposer:Absent", "no attribute 'Absent'"),
        ("collections:OrderedDict", "it lacks check_integrity, extend"),
        ("collections:namedtuple", "cannot be made"),
    ],
)
def test_what_is_no_proposer_says_why(name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        steps_of(parse_source(name), [request([1], [1, 2, 3])])
