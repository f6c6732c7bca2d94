"""Rotary position embedding: inverse frequencies of the published variants.

Source: RoFormer (arXiv 2104.09864); position interpolation (2306.15595); YaRN (2309.00071); Llama 3.1's piecewise rule.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from specplan.errors import UnsupportedError


def inverse_frequencies(head_dim: int, theta: float, scaling: Mapping[str, Any] | None) -> tuple[torch.Tensor, float]:
    r"""Inverse frequencies and the factor on attention's cosines and sines.

    .. math:: f_i = \theta^{-2i/d}

    Parameters
    ----------
    head_dim : int
        d: rotated size of a head, even.
    theta : float
        Base of the frequencies.
    scaling : mapping or None
        ``rope_scaling`` of a Hugging Face config: type ``default``, ``linear``, ``llama3`` or ``yarn``.

    Returns
    -------
    (Tensor, float)
        Shape (d / 2,), float32; magnitude factor (1 except for YaRN).

    Raises
    ------
    UnsupportedError
        For another type.

    Examples
    --------
    >>> inverse_frequencies(4, 100.0, None)[0].tolist()
    [1.0, 0.10000000149011612]
    """
    plain = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    kind = "default" if scaling is None else scaling.get("rope_type", scaling.get("type", "default"))
    if scaling is None or kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / float(scaling["factor"]), 1.0
    if kind == "llama3":
        return _llama3(plain, scaling), 1.0
    if kind == "yarn":
        return _yarn(plain, head_dim, theta, scaling)
    raise UnsupportedError(f"rope type {kind!r} is not built; one of default, linear, llama3, yarn")


def _llama3(plain: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    """Long waves are slowed by the factor, short ones kept, those between blended by their wave number."""
    factor, low, high = (float(scaling[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(scaling["original_max_position_embeddings"]) * plain / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return keep * plain + (1 - keep) * plain / factor


def _yarn(plain: torch.Tensor, head_dim: int, theta: float, scaling: Mapping[str, Any]) -> tuple[torch.Tensor, float]:
    factor = float(scaling["factor"])
    original = float(scaling["original_max_position_embeddings"])

    def dimension(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = (dimension(float(scaling.get(k, d))) for k, d in (("beta_fast", 32), ("beta_slow", 1)))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    slowed = ((torch.arange(len(plain), dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0.0, 1.0)
    blended = plain / factor * slowed + plain * (1 - slowed)
    magnitude = scaling.get("attention_factor")
    return blended, float(magnitude) if magnitude is not None else 0.1 * math.log(factor) + 1.0


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate heads of shape (..., d) by angles given as cosines and sines of shape (..., d / 2), halves paired."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
