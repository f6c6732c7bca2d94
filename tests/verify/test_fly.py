"""FLy against its definition, token by token, and what its output still promises."""

import numpy as np
import pytest

from specplan.errors import InputError
from specplan.verify.fly import accept_fly, top_entropy
from specplan.verify.standard import accept_standard


def drawn(seed: int, batch: int = 60, k: int = 7, vocab: int = 5):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(vocab, 0.4), (batch, k + 1))
    q = rng.dirichlet(np.full(vocab, 0.4), (batch, k))
    draft = np.array([[rng.choice(vocab, p=row) for row in rows] for rows in q])
    for row, n in zip(draft, rng.integers(0, k + 1, batch), strict=True):
        row[n:] = -1
    return p, q, draft, rng.random((batch, k + 1))


def by_definition(p, q, draft, u, window: int, threshold: float, top_k: int) -> list[int]:
    found = []
    for rows, offers, tokens, coins in zip(p, q, draft.tolist(), u, strict=True):
        n = tokens.index(-1) if -1 in tokens else len(tokens)
        plain = [coins[i] * offers[i][tokens[i]] < rows[i][tokens[i]] for i in range(n)]
        accepted = 0
        for i in range(n):
            largest = sorted(rows[i])[-top_k:]
            entropy = -sum(x * np.log(x) for x in largest if x > 0)
            unsure = entropy >= threshold and rows[i][tokens[i]] > 0 and i + window < n
            if not plain[i] and not (unsure and all(plain[i + 1 : i + 1 + window])):
                break
            accepted += 1
        found.append(accepted)
    return found


@pytest.mark.parametrize("window", [1, 2, 6])
@pytest.mark.parametrize(("threshold", "top_k"), [(0.0, 3), (0.3, 3), (0.6, 2), (0.9, 5)])
def test_each_token_is_judged_as_defined(window: int, threshold: float, top_k: int) -> None:
    p, q, draft, u = drawn(window)
    found = accept_fly(p, q, draft, u, window=window, threshold=threshold, top_k=top_k)
    assert found.accepted.tolist() == by_definition(p, q, draft, u, window, threshold, top_k)


def test_without_a_forgiven_rejection_it_is_the_plain_rule_and_it_never_accepts_less() -> None:
    p, q, draft, u = drawn(8)
    plain = accept_standard(p, q, draft, u)
    strict = accept_fly(p, q, draft, u, threshold=np.inf)
    assert strict.emitted_tokens() == plain.emitted_tokens()
    free = accept_fly(p, q, draft, u, window=1, threshold=0.0)
    assert np.all(free.accepted >= plain.accepted)
    assert np.any(free.accepted > plain.accepted)


def test_the_law_is_lost_where_the_target_is_unsure() -> None:
    """Two equal tokens, the draft always the first: each emitted token should be the first half of the time."""
    n = 40_000
    rng = np.random.default_rng(0)
    p = np.full((n, 3, 2), 0.5)
    out = accept_fly(p, None, np.zeros((n, 2), np.int64), rng.random((n, 3)), window=1)
    first = np.array([tokens[0] for tokens in out.emitted_tokens()])
    # Accepted with 1/2, or rejected with 1/2 and forgiven where the second is accepted: 3/4.
    assert np.mean(first == 0) == pytest.approx(0.75, abs=0.01)


def test_entropy_is_of_the_largest_as_they_stand() -> None:
    assert top_entropy([0.25] * 4, 2) == pytest.approx(-0.5 * np.log(0.25))


@pytest.mark.parametrize(("k", "window"), [(1, None), (3, 3), (3, 0)])
def test_a_window_must_fit_the_draft(k: int, window: int | None) -> None:
    with pytest.raises(InputError, match="fly: a window"):
        accept_fly(np.full((1, k + 1, 2), 0.5), None, [[0] * k], [[0.1] * (k + 1)], window=window)
