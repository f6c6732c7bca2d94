"""vLLM 0.32's V1 and V2 samplers over batches of tensors; what they do is told in `specplan.verify.vllm`."""

import torch
from torch import Tensor

from specplan.errors import InputError
from specplan.harness.verifiers.categorical import at_tokens
from specplan.harness.verifiers.chains import (
    block_thresholds,
    chain_checks,
    draft_lengths,
    last_passed,
    last_weights,
    leading,
    overlap_of,
)
from specplan.harness.verifiers.outcome import OutcomeTensors, chain_outcome
from specplan.verify.vllm import V1_MAX_DRAFT, V2_SMALLEST_COIN


def accept_vllm_v1(
    p: Tensor, q: Tensor | None, draft: Tensor, u: Tensor, race: Tensor, bonus: Tensor, *, thorough: bool = True
) -> OutcomeTensors:
    """Verify as vLLM's V1 sampler does; see `specplan.verify.vllm.accept_vllm_v1`.

    Parameters
    ----------
    p, q, draft, thorough
        As in `accept_block`.
    u : Tensor, shape (B, K)
        Coins in [0, 1).
    race : Tensor, shape (B, V)
        Exponential variates.
    bonus : Tensor of int64, shape (B,)
        Token of the ordinary sampler after the last drafted token.

    Examples
    --------
    >>> p = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]])
    >>> accept_vllm_v1(p, None, torch.tensor([[0]]), torch.tensor([[0.25]]), torch.ones(1, 2), torch.tensor([1])).tokens
    tensor([[0, 1]])
    """
    if draft.shape[1] > V1_MAX_DRAFT:
        raise InputError(f"draft tokens: vLLM V1 verifies at most {V1_MAX_DRAFT} per step, got {draft.shape[1]}")
    drafted = draft_lengths(draft)
    checks = chain_checks(p, q, draft, drafted, torch.nn.functional.pad(u, (0, 1)), thorough=thorough)
    chance = at_tokens(p[:, :-1], draft)
    if q is None:
        accept = chance >= u
    else:
        drawn = at_tokens(q, draft)
        accept = (drawn > 0.0) & (chance / drawn >= u)
    accepted = leading(accept, drafted)
    recovered = (_settled(*last_weights(p, q, draft, drafted, accepted)) / race).argmax(dim=-1)
    last = torch.where(accepted == drafted, bonus, recovered)
    return chain_outcome(draft, drafted, accepted, last, overlap_of(p, q, draft), checks)


def accept_vllm_v2(
    p: Tensor,
    q: Tensor | None,
    draft: Tensor,
    u: Tensor,
    gumbel: Tensor,
    *,
    block: bool = False,
    thorough: bool = True,
) -> OutcomeTensors:
    """Verify as vLLM's V2 sampler does; see `specplan.verify.vllm.accept_vllm_v2`.

    Parameters
    ----------
    p, q, draft, thorough
        As in `accept_block`.
    u : Tensor, shape (B, K)
        Coins in [0, 1); raised to 2**-31.
    gumbel : Tensor, shape (B, K + 1, V)
        Gumbel variates.
    block : bool
        ``rejection_sample_method="block"``.

    Examples
    --------
    >>> p, noise = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]]), torch.tensor([[[0.0, 0.0], [0.1, 0.0]]])
    >>> accept_vllm_v2(p, None, torch.tensor([[0]]), torch.tensor([[0.25]]), noise).tokens
    tensor([[ 1, -1]])
    """
    drafted = draft_lengths(draft)
    checks = chain_checks(p, q, draft, drafted, torch.nn.functional.pad(u, (0, 1)), thorough=thorough)
    coin = u.double().clamp(min=V2_SMALLEST_COIN)
    chance = at_tokens(p[:, :-1], draft)
    scale = None
    if block:
        h, survival = block_thresholds(p, q, draft, drafted)
        accepted = last_passed(coin <= h, drafted)
        scale = survival.gather(1, accepted[:, None])[:, 0]
    else:
        drawn = torch.ones_like(chance) if q is None else at_tokens(q, draft)
        accepted = leading(chance.log() > coin.log() + drawn.log(), drafted)
    weights = _settled(*last_weights(p, q, draft, drafted, accepted, scale))
    noise = gumbel[torch.arange(len(draft), device=p.device), accepted]
    last = (weights.log() + noise).argmax(dim=-1)
    return chain_outcome(draft, drafted, accepted, last, overlap_of(p, q, draft), checks)


def _settled(weights: Tensor, fallback: Tensor) -> Tensor:
    """Weights for an argmax over whole rows: those of `fallback` where `weights` has no mass."""
    return torch.where(weights.amax(dim=-1, keepdim=True) > 0.0, weights, fallback)
