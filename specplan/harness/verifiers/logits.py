"""From logits to distributions and verdicts, in chunks of requests."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from specplan.harness.verifiers.outcome import OutcomeTensors, concatenated
from specplan.verify.logits import PLAIN, Sampling

CPU_CHUNK: Final = 2**23
"""Elements of a chunk on a CPU: 32 MiB of float32, about a last-level cache; smaller ones meet more thread barriers."""

GPU_CHUNK: Final = 2**28
"""Elements of a chunk on a GPU: 1 GiB of float32, as much as vLLM's sampler takes at once."""


def to_device(values: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """Host numbers as a tensor on the device, without waiting for it."""
    tensor = torch.tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def probabilities(logits: Tensor, sampling: Sampling = PLAIN, *, out: Tensor | None = None) -> Tensor:
    """Distributions that the requests sample from; rows of bad logits become NaN, which the rules report.

    Parameters
    ----------
    logits : Tensor, shape (B, ..., V)
        Any floating type; the first axis is the request.
    sampling : Sampling
        Temperature and filters.
    out : Tensor or None
        Memory of the result's shape and type, which it may use.

    Returns
    -------
    Tensor, shape (B, ..., V)
        float64 for float64 logits, else float32. Rows of temperature 0 are one-hot by construction.

    Notes
    -----
    The same filters in the same order as `specplan.verify.logits.probabilities`.

    Examples
    --------
    >>> probabilities(torch.tensor([[0.0, -torch.inf], [1.0, 2.0]]), Sampling(temperature=(1.0, 0.0))).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    z = logits if logits.dtype == torch.float64 else logits.float()
    batch, lead = z.shape[0], (-1, *[1] * (z.dim() - 1))
    host = {name: sampling.column(name, batch) for name in ("temperature", "top_k", "top_p", "min_p")}
    filters = bool((host["top_k"] > 0).any() or (host["top_p"] < 1.0).any() or (host["min_p"] > 0.0).any())
    greedy = host["temperature"] == 0.0
    if greedy.all():
        return _one_hot(z)
    if not filters and (host["temperature"] == 1.0).all():
        return torch.softmax(z, dim=-1, out=out)

    def column(values: np.ndarray[Any, Any]) -> Tensor:
        return to_device(values, z.device).to(z.dtype).reshape(lead)

    # Subtracting the maximum first keeps every temperature above 0 from overflowing; bad rows turn into NaN here.
    shifted = (z - z.amax(dim=-1, keepdim=True)).div_(column(np.where(greedy, 1.0, host["temperature"])))
    if filters:
        p = _filtered(shifted.exp_(), host, column, min_p_first=sampling.min_p_first)
    else:
        p = torch.softmax(shifted, dim=-1)
    if not greedy.any():
        return p
    return torch.where(to_device(greedy, z.device).reshape(lead), _one_hot(z), p)


def _one_hot(z: Tensor) -> Tensor:
    top, index = z.max(dim=-1, keepdim=True)
    mass = torch.where(top.isfinite(), 1.0, torch.nan).to(z.dtype)
    return torch.zeros_like(z).scatter_(-1, index, mass)


def _filtered(
    w: Tensor,
    host: dict[str, np.ndarray[Any, Any]],
    column: Callable[[np.ndarray[Any, Any]], Tensor],
    *,
    min_p_first: bool,
) -> Tensor:
    """Weights relative to the most probable token, filtered and normalised."""
    ruled_out = torch.isnan(w[..., :1])
    if min_p_first:
        w = torch.where(w >= column(host["min_p"]), w, 0.0)
    if (host["top_k"] > 0).any():
        size = w.shape[-1]
        keep = np.where(host["top_k"] > 0, np.minimum(host["top_k"], size), size).astype(np.int64)
        falling = w.topk(int(keep.max()), dim=-1).values
        last = to_device(keep - 1, w.device).reshape(-1, *[1] * (w.dim() - 1)).expand(*w.shape[:-1], 1)
        w = torch.where(w >= falling.gather(-1, last), w, 0.0)
    if (host["top_p"] < 1.0).any():
        w = _top_p(w, column(np.where(host["top_p"] < 1.0, host["top_p"], np.inf)))
    if not min_p_first:
        w = torch.where(w >= column(host["min_p"]), w, 0.0)
    return torch.where(ruled_out, torch.nan, w / w.sum(dim=-1, keepdim=True))


def _top_p(w: Tensor, top_p: Tensor) -> Tensor:
    falling, order = w.sort(dim=-1, descending=True, stable=True)
    wide = falling.double()
    before = wide.cumsum(dim=-1) - wide
    keep = before < top_p.double() * wide.sum(dim=-1, keepdim=True)
    return torch.zeros_like(w).scatter_(-1, order, torch.where(keep, falling, 0.0))


def chunks(batch: int, per_request: int, device: torch.device) -> Iterator[slice]:
    """Slices of requests whose rows fit the chunk of the device."""
    size = max(1, (CPU_CHUNK if device.type == "cpu" else GPU_CHUNK) // max(per_request, 1))
    for start in range(0, batch, size):
        yield slice(start, min(start + size, batch))


def verify_logits(
    rule: Callable[..., OutcomeTensors], logits: Tensor, sampling: Sampling, *inputs: Tensor | None, **options: Any
) -> OutcomeTensors:
    """Verdicts from logits, by any rule whose first argument are the target's distributions.

    Parameters
    ----------
    rule : callable
        Such as `accept_standard`, or a rule for trees.
    logits : Tensor, shape (B, K + 1, V)
        The target's, after the context and each drafted token.
    sampling : Sampling
        Temperature and filters.
    *inputs : Tensor or None
        The rule's other inputs, each with the request as its first axis; distributions as `probabilities` makes them.
    **options
        The rule's options, the same for all requests; of arrays of two dimensions (parents of one tree per request),
        each request takes its row.

    Returns
    -------
    OutcomeTensors
        Equal to ``rule(probabilities(logits, sampling), *inputs, **options)``, with one chunk of requests in memory.

    Examples
    --------
    >>> from specplan.harness.verifiers.chains import accept_one_hot
    >>> logits = torch.tensor([[[0.0, -torch.inf], [-torch.inf, 0.0]]])
    >>> verify_logits(accept_one_hot, logits, Sampling(), torch.tensor([[0]]), torch.zeros(1, 2)).tokens.tolist()
    [[0, 1]]
    """
    batch = logits.shape[0]
    groups = list(chunks(batch, logits[:1].numel(), logits.device))
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    # The chunks' distributions share one piece of memory: a rule keeps nothing of them.
    scratch = torch.empty_like(logits[groups[0]], dtype=dtype) if groups else logits
    parts = []
    for rows in groups:
        p = probabilities(logits[rows], sampling.rows(rows.start, rows.stop), out=scratch[: rows.stop - rows.start])
        mine = {name: v[rows] if getattr(v, "ndim", 0) == 2 else v for name, v in options.items()}
        parts.append(rule(p, *(None if a is None else a[rows] for a in inputs), thorough=False, **mine))
    return concatenated(parts) if len(parts) != 1 else parts[0]
