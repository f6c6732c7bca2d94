"""Residuals and one draw by inversion over rows of any vocabulary, without waiting for the device."""

from typing import Final

import torch
from torch import Tensor

_WIDTH: Final = 512
"""Tokens of a block in `draw`: only block sums and one block per row are brought to float64."""

_BELOW_ONE: Final = 1.0 - 2.0**-53


def _invert(weights: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Index drawn from each row of float64 weights, and the uniform that is left within its mass."""
    scaled = weights / weights.amax(dim=-1, keepdim=True)
    cdf = scaled.cumsum(dim=-1)
    # A parallel scan may be non-monotone by a rounding; asking for mass keeps an empty entry from being drawn.
    target = torch.minimum(u[:, None] * cdf[:, -1:], cdf.amax(dim=-1, keepdim=True) * _BELOW_ONE)
    index = ((cdf > target) & (scaled > 0.0)).to(torch.uint8).argmax(dim=-1, keepdim=True)
    mass = scaled.gather(1, index)
    rest = (target - (cdf.gather(1, index) - mass)) / mass
    return index[:, 0], rest[:, 0].clamp(0.0, _BELOW_ONE)


def draw(weights: Tensor, u: Tensor, fallback: Tensor | None = None) -> Tensor:
    """Token drawn by inverting the cumulative weights, first over blocks of 512 tokens, then within one.

    Parameters
    ----------
    weights : Tensor, shape (B, V)
        At least 0; they need not sum to 1.
    u : Tensor, shape (B,)
        Uniform in [0, 1).
    fallback : Tensor, shape (B, V), or None
        Weights of the rows in which `weights` has no mass (or NaN): what only rounding leaves of a residual.

    Returns
    -------
    Tensor of int64, shape (B,)
        Token ids; a token of weight 0 is never drawn.

    Notes
    -----
    Cumulative sums are float64: in float32 every token below 6e-8 would be lost in the tail of a large vocabulary.

    Examples
    --------
    >>> draw(torch.tensor([[0.25, 0.0, 0.75]] * 3), torch.tensor([0.0, 0.25, 0.999])).tolist()
    [0, 2, 2]
    """
    width = min(_WIDTH, weights.shape[-1])
    sums = _block_sums(weights, width)
    if fallback is not None:
        empty = ~(sums.amax(dim=-1, keepdim=True) > 0.0)
        sums = torch.where(empty, _block_sums(fallback, width), sums)
    block, rest = _invert(sums, u.double())
    index = block[:, None] * width + torch.arange(width, device=weights.device)
    inside = index < weights.shape[-1]
    index = index.clamp(max=weights.shape[-1] - 1)
    inner = weights.gather(1, index)
    if fallback is not None:
        inner = torch.where(empty, fallback.gather(1, index), inner)
    return block * width + _invert(torch.where(inside, inner.double(), 0.0), rest)[0]


def _block_sums(weights: Tensor, width: int) -> Tensor:
    """Sums of consecutive blocks of `width` tokens, the last one shorter, as float64."""
    whole = weights.shape[-1] // width * width
    sums = weights[:, :whole].reshape(len(weights), whole // width, width).sum(dim=-1)
    if whole < weights.shape[-1]:
        sums = torch.cat([sums, weights[:, whole:].sum(dim=-1, keepdim=True)], dim=-1)
    return sums.double()


def at_tokens(rows: Tensor, token: Tensor) -> Tensor:
    """Entry of one token per row as float64; 0 for tokens that are not there.

    >>> at_tokens(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([1, -1])).tolist()
    [0.25, 0.0]
    """
    found = rows.gather(-1, token.clamp(0, rows.shape[-1] - 1)[..., None])[..., 0]
    return torch.where(token >= 0, found.double(), 0.0)
