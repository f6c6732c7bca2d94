"""A static key-value cache with rollback, for chains and trees.

Invariant: in row ``b`` slots ``[0, lengths[b])`` hold committed tokens. A pass writes its W tokens into slots
``[lengths[b], lengths[b] + W)`` and commits nothing; `commit` moves the length over what was accepted. Slots at or past
the length are never visible to a later pass until they are written again, so rejected tokens need no clean-up.
"""

import torch

from specplan.errors import InputError


class KVCache:
    """Keys and values of every layer for `batch` rows of at most `capacity` tokens.

    Attributes
    ----------
    keys, values : Tensor
        Shape (layers, batch, kv_heads, capacity, head_dim).
    lengths : Tensor
        Shape (batch,), int64: committed tokens of each row, on the cache's device.
    span : int
        At least the longest row's committed length; known on the host, so that a pass reads no more slots than it must
        without asking the device.
    """

    def __init__(
        self,
        *,
        layers: int,
        batch: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        shape = (layers, batch, kv_heads, capacity, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=device)
        self.span = 0
        self._rows = torch.arange(batch, device=device)

    @property
    def batch(self) -> int:
        """Rows."""
        return self.keys.shape[1]

    @property
    def capacity(self) -> int:
        """Slots per row."""
        return self.keys.shape[3]

    @property
    def n_bytes(self) -> int:
        """Bytes of keys and values."""
        return 2 * self.keys.numel() * self.keys.element_size()

    def slots(self, width: int) -> torch.Tensor:
        """Slots, shape (batch, width), that a pass of `width` tokens writes.

        Raises
        ------
        InputError
            When the longest row has no room left.
        """
        if self.span + width > self.capacity:
            raise InputError(f"the KV cache holds {self.capacity} tokens a row; {self.span} + {width} do not fit")
        return self.lengths[:, None] + torch.arange(width, device=self.lengths.device)

    def commit(self, counts: torch.Tensor, longest: int) -> None:
        """Accept the first `counts[b]` tokens of each row's last pass; `longest` bounds the new longest length."""
        self.lengths += counts
        self.span = longest

    def commit_path(self, nodes: torch.Tensor, counts: torch.Tensor, longest: int) -> None:
        """Accept a path through a tree: the first `counts[b]` of `nodes[b]` (ascending indices into the last pass).

        The kept nodes move to the slots right behind the committed ones, so that the cache is again a chain.
        """
        rows = self._rows[:, None]
        source = self.lengths[:, None] + nodes
        target = self.lengths[:, None] + torch.arange(nodes.shape[1], device=nodes.device)
        # Advanced indexing copies before it writes; entries past the count land in slots that stay invisible.
        self.keys[:, rows, :, target] = self.keys[:, rows, :, source]
        self.values[:, rows, :, target] = self.values[:, rows, :, source]
        self.commit(counts, longest)

    def truncate(self, lengths: torch.Tensor, longest: int) -> None:
        """Roll rows back to `lengths`, each at most the committed length."""
        self.lengths.copy_(torch.minimum(self.lengths, lengths))
        self.span = min(self.span, longest)

    def row(self, index: int) -> "KVCache":
        """One row as a cache of its own that shares storage, so that a new request can be prefilled into it."""
        part = KVCache.__new__(KVCache)
        part.keys, part.values = self.keys[:, index : index + 1], self.values[:, index : index + 1]
        part.lengths = self.lengths[index : index + 1]
        part.span = int(part.lengths[0])
        part._rows = self._rows[:1]
        return part


def write_slots(store: torch.Tensor, slots: torch.Tensor, new: torch.Tensor) -> None:
    """Put `new`, shape (batch, heads, width, head_dim), into `slots` of one layer's keys or values."""
    rows = torch.arange(len(slots), device=slots.device)[:, None]
    store[rows, :, slots] = new.transpose(1, 2)


def visible_slots(lengths: torch.Tensor, width: int, span: int, tree_mask: torch.Tensor | None) -> torch.Tensor:
    """Which slots each query of a pass may attend to, shape (batch, 1, width, span).

    Parameters
    ----------
    lengths : Tensor
        Committed tokens of each row, shape (batch,).
    width : int
        Tokens in the pass.
    span : int
        Slots that the pass reads: at least the longest length plus `width`.
    tree_mask : Tensor or None
        Shape (batch, width, width) or (width, width), bool: query i sees token j of the pass (itself and ancestors). A
        chain (lower triangle) if None.

    Examples
    --------
    >>> visible_slots(torch.tensor([1]), 2, 4, None)[0, 0].int().tolist()
    [[1, 1, 0, 0], [1, 1, 1, 0]]
    """
    slot = torch.arange(span, device=lengths.device)
    offset = slot[None, :] - lengths[:, None]  # (batch, span): index within the pass; negative for committed slots
    if tree_mask is None:
        query = torch.arange(width, device=lengths.device)
        return (offset[:, None, :] <= query[:, None])[:, None]
    mask = tree_mask.expand(len(lengths), width, width)
    inside = (offset >= 0) & (offset < width)
    index = offset.clamp(0, width - 1)[:, None, :].expand(-1, width, -1)
    seen = torch.gather(mask, 2, index) & inside[:, None, :]
    return (seen | (offset < 0)[:, None, :])[:, None]
