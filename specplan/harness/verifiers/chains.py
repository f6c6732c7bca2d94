"""Rules for chains: greedy, standard, one-hot, block, synthetic. What each does is told in `specplan.verify`."""

import numpy.typing as npt
import torch
from torch import Tensor

from specplan.errors import InputError
from specplan.harness.verifiers.categorical import at_tokens, draw
from specplan.harness.verifiers.logits import to_device
from specplan.harness.verifiers.outcome import (
    Check,
    OutcomeTensors,
    chain_outcome,
    check_rows,
    check_scores,
    check_tokens,
    check_uniforms,
)
from specplan.verify.synthetic import conditional_rates


def draft_lengths(draft: Tensor) -> Tensor:
    """Tokens before the first slot of -1.

    >>> draft_lengths(torch.tensor([[4, 0, -1], [-1, 2, 2]])).tolist()
    [2, 0]
    """
    return (draft >= 0).long().cumprod(dim=1).sum(dim=1)


def leading(accept: Tensor, drafted: Tensor) -> Tensor:
    """Accepted length: the verdicts before the first rejection, within the draft."""
    inside = torch.arange(accept.shape[1], device=accept.device) < drafted[:, None]
    return (accept & inside).long().cumprod(dim=1).sum(dim=1)


def last_weights(
    p: Tensor, q: Tensor | None, draft: Tensor, drafted: Tensor, accepted: Tensor, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Weights of the last token and what stands in where they have no mass, both (B, V), for `draw`.

    The target's row after a whole draft, else its residual: only this row of each request is turned into one. `scale`,
    shape (B,), multiplies the target before q is taken away (block verification).
    """
    row = torch.arange(len(draft), device=p.device)
    target = p[row, accepted]
    if draft.shape[1] == 0:
        return target, target
    short = accepted < drafted
    at = accepted.clamp(max=draft.shape[1] - 1)
    if q is None:
        token = draft.gather(1, at[:, None]).clamp(0, p.shape[-1] - 1)
        return target.scatter(1, token, torch.where(short[:, None], 0.0, target.gather(1, token))), target
    # After a whole draft nothing is taken away. The row of q is then not in use and may hold NaN; `draw` falls back.
    taken = short.to(p.dtype)
    scaled = target if scale is None else target * scale.to(p.dtype)[:, None]
    return torch.addcmul(scaled, q[row, at], taken[:, None], value=-1).clamp_(min=0.0), target


def overlap_of(p: Tensor, q: Tensor | None, draft: Tensor, *, wanted: bool = True) -> Tensor | None:
    """Sum of min(p, q) at every drafted position; p of the drafted token where q is one-hot; None if not wanted."""
    if not wanted:
        return None
    if q is None:
        return at_tokens(p[:, :-1], draft)
    return torch.minimum(p[:, :-1], q).sum(dim=-1).double()


def chain_checks(
    p: Tensor, q: Tensor | None, draft: Tensor, drafted: Tensor, u: Tensor, *, thorough: bool
) -> tuple[Check, ...]:
    """Checks of a chain's inputs; shapes at once, numbers on the device (`check_rows` tells of `thorough`).

    Raises
    ------
    InputError
        If shapes do not fit together.
    """
    batch, k = draft.shape
    expected = {"p": (batch, k + 1, p.shape[-1]), "q": (batch, k, p.shape[-1]), "u": (batch, k + 1)}
    for name, tensor in (("p", p), ("q", q), ("u", u)):
        if tensor is not None and tuple(tensor.shape) != expected[name]:
            raise InputError(f"{name}: expected shape {expected[name]}, got {tuple(tensor.shape)}")
    position = torch.arange(k + 1, device=draft.device)
    checks = [
        check_tokens(draft, p.shape[-1]),
        check_uniforms(u),
        check_rows("target probabilities", p, position <= drafted[:, None], thorough=thorough),
    ]
    if q is not None:
        checks.append(check_rows("draft probabilities", q, position[:-1] < drafted[:, None], thorough=thorough))
    return tuple(checks)


def accept_greedy(scores: Tensor, draft: Tensor) -> OutcomeTensors:
    """Accept drafted tokens while they equal the target's argmax; see `specplan.verify.greedy.accept_greedy`.

    Parameters
    ----------
    scores : Tensor, shape (B, K + 1, V)
        Logits or probabilities of the target.
    draft : Tensor of int64, shape (B, K)
        Drafted tokens; -1 where there is none.

    Examples
    --------
    >>> accept_greedy(torch.tensor([[[0.0, 1, 0], [3, 0, 0], [0, 0, 2]]]), torch.tensor([[1, 2]])).tokens.tolist()
    [[1, 0, -1]]
    """
    drafted = draft_lengths(draft)
    position = torch.arange(scores.shape[1], device=scores.device)
    checks = (
        check_tokens(draft, scores.shape[-1]),
        check_scores("target scores", scores, position <= drafted[:, None]),
    )
    best = scores.argmax(dim=-1)
    accepted = leading(best[:, :-1] == draft, drafted)
    return chain_outcome(draft, drafted, accepted, best.gather(1, accepted[:, None])[:, 0], None, checks)


def accept_standard(
    p: Tensor, q: Tensor, draft: Tensor, u: Tensor, *, overlap: bool = True, thorough: bool = True
) -> OutcomeTensors:
    """Accept with probability min(1, p/q), else draw from the residual; see `specplan.verify.standard`.

    Parameters
    ----------
    p : Tensor, shape (B, K + 1, V)
        Target distributions, as `probabilities` gives them.
    q : Tensor, shape (B, K, V)
        Distributions from which the drafted tokens were drawn.
    draft : Tensor of int64, shape (B, K)
        Drafted tokens; -1 where there is none.
    u : Tensor, shape (B, K + 1)
        Uniforms in [0, 1): K coins, then the one that draws the last token. float64 keeps rare tokens possible.
    overlap : bool
        Whether to record the sum of min(p, q), which reads all of both.
    thorough : bool
        Whether to check whole rows; False for rows that `probabilities` made, of which one entry tells.

    Examples
    --------
    >>> p, q = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]]), torch.tensor([[[0.75, 0.25]]])
    >>> accept_standard(p, q, torch.tensor([[0]]), torch.tensor([[0.5, 0.1]])).tokens.tolist()
    [[1, -1]]
    """
    drafted = draft_lengths(draft)
    checks = chain_checks(p, q, draft, drafted, u, thorough=thorough)
    accepted = leading(u[:, :-1].double() * at_tokens(q, draft) < at_tokens(p[:, :-1], draft), drafted)
    weights, fallback = last_weights(p, q, draft, drafted, accepted)
    last = draw(weights, u[:, -1], fallback)
    return chain_outcome(draft, drafted, accepted, last, overlap_of(p, q, draft, wanted=overlap), checks)


def accept_one_hot(p: Tensor, draft: Tensor, u: Tensor, *, thorough: bool = True) -> OutcomeTensors:
    """Accept with the target's own probability of the token; see `specplan.verify.one_hot`.

    Parameters
    ----------
    p, draft, u, thorough
        As in `accept_standard`.

    Examples
    --------
    >>> p = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]])
    >>> accept_one_hot(p, torch.tensor([[0]]), torch.tensor([[0.2, 0.9]])).tokens.tolist()
    [[0, 1]]
    """
    drafted = draft_lengths(draft)
    checks = chain_checks(p, None, draft, drafted, u, thorough=thorough)
    chance = at_tokens(p[:, :-1], draft)
    accepted = leading(u[:, :-1] < chance, drafted)
    weights, fallback = last_weights(p, None, draft, drafted, accepted)
    last = draw(weights, u[:, -1], fallback)
    return chain_outcome(draft, drafted, accepted, last, chance, checks)


def block_thresholds(p: Tensor, q: Tensor | None, draft: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """Acceptance thresholds h_1 ... h_K, shape (B, K), and P_0 ... P_K, shape (B, K + 1), in float64."""
    batch, k = draft.shape
    chance = at_tokens(p[:, :-1], draft)
    drawn = torch.ones_like(chance) if q is None else at_tokens(q, draft)
    ratio = torch.where(chance > 0.0, chance / drawn, 0.0)
    survival = [torch.ones(batch, dtype=torch.float64, device=p.device)]
    thresholds = []
    for i in range(1, k + 1):
        before = survival[-1]
        running = torch.where(before > 0.0, before * ratio[:, i - 1], 0.0).clamp(max=1.0)
        survival.append(running)
        if i == k:
            thresholds.append(running)
            continue
        if q is None:
            left = running * torch.where(draft[:, i] >= 0, 1.0 - chance[:, i], 0.0)
        else:
            left = (running.to(p.dtype)[:, None] * p[:, i] - q[:, i]).clamp_(min=0.0).sum(dim=-1).double()
        gap = left + 1.0 - running
        held = torch.where(gap > 0.0, left / gap, 1.0)
        thresholds.append(torch.where(drafted == i, running, held))
    h = torch.stack(thresholds, dim=1) if thresholds else chance
    return h, torch.stack(survival, dim=1)


def last_passed(passed: Tensor, drafted: Tensor) -> Tensor:
    """Accepted length of a block: the last position within the draft that passed."""
    if passed.shape[1] == 0:
        return torch.zeros_like(drafted)
    length = torch.arange(1, passed.shape[1] + 1, device=passed.device)
    return torch.where(passed & (length <= drafted[:, None]), length, 0).amax(dim=1)


def accept_block(
    p: Tensor, q: Tensor | None, draft: Tensor, u: Tensor, *, overlap: bool = True, thorough: bool = True
) -> OutcomeTensors:
    """Judge all positions together; see `specplan.verify.block.accept_block`.

    Parameters
    ----------
    p, draft, u, overlap, thorough
        As in `accept_standard`.
    q : Tensor, shape (B, K, V), or None
        None for one-hot drafts.

    Examples
    --------
    >>> p, q = torch.tensor([1 / 3, 2 / 3]).expand(1, 3, 2), torch.tensor([2 / 3, 1 / 3]).expand(1, 2, 2)
    >>> accept_block(p, q, torch.tensor([[0, 1]]), torch.tensor([[0.6, 0.9, 0.1]])).accepted.tolist()
    [2]
    """
    drafted = draft_lengths(draft)
    checks = chain_checks(p, q, draft, drafted, u, thorough=thorough)
    h, survival = block_thresholds(p, q, draft, drafted)
    accepted = last_passed(u[:, :-1] < h, drafted)
    scale = survival.gather(1, accepted[:, None])[:, 0]
    weights, fallback = last_weights(p, q, draft, drafted, accepted, scale)
    last = draw(weights, u[:, -1], fallback)
    return chain_outcome(draft, drafted, accepted, last, overlap_of(p, q, draft, wanted=overlap), checks)


def accept_synthetic(
    p: Tensor, q: Tensor | None, draft: Tensor, u: Tensor, *, rates: npt.ArrayLike, thorough: bool = True
) -> OutcomeTensors:
    """Accept position i with a given probability; see `specplan.verify.synthetic.accept_synthetic`.

    Parameters
    ----------
    p, q, draft, u, thorough
        As in `accept_block`.
    rates : array_like, shape (K,)
        Marginal rates, on the host.

    Examples
    --------
    >>> p = torch.full((1, 3, 2), 0.5)
    >>> accept_synthetic(p, None, torch.tensor([[0, 0]]), torch.tensor([[0.7, 0.2, 0.5]]), rates=[0.8, 0.2]).accepted
    tensor([2])
    """
    drafted = draft_lengths(draft)
    checks = chain_checks(p, q, draft, drafted, u, thorough=thorough)
    chance = to_device(conditional_rates(rates), p.device)
    if tuple(chance.shape) != (draft.shape[1],):
        raise InputError(f"synthetic rates: expected {draft.shape[1]}, one per drafted position, got {chance.numel()}")
    accepted = leading(u[:, :-1] < chance, drafted)
    weights, fallback = last_weights(p, q, draft, drafted, accepted)
    last = draw(weights, u[:, -1], fallback)
    return chain_outcome(draft, drafted, accepted, last, None, checks)
