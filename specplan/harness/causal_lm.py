"""What the loop asks of a model, and the adapter that gives it for any causal model of transformers."""

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from specplan.errors import InputError, UnsupportedError


class Cache(Protocol):
    """Committed tokens per row, a host bound on the longest, and the ways to move that line."""

    lengths: torch.Tensor
    span: int

    def commit(self, counts: torch.Tensor, longest: int) -> None:
        """Accept the first tokens of each row's last pass."""
        ...

    def commit_path(self, nodes: torch.Tensor, counts: torch.Tensor, longest: int) -> None:
        """Accept a path through each row's last pass, a tree."""
        ...

    def truncate(self, lengths: torch.Tensor, longest: int) -> None:
        """Roll rows back."""
        ...

    def row(self, index: int) -> "Cache":
        """One row, sharing storage, so that a new request can be prefilled into it."""
        ...


class CausalLM(Protocol):
    """A decoder that scores several tokens per row behind a cache and commits nothing itself."""

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Format of the weights."""
        ...

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """Empty cache."""
        ...

    def __call__(
        self,
        tokens: torch.Tensor,
        cache: Any,
        *,
        depths: torch.Tensor | None = None,
        tree_mask: torch.Tensor | None = None,
        last_only: bool = False,
    ) -> torch.Tensor:
        """Logits, shape (batch, width, vocab)."""
        ...


class TransformersCache:
    """One ``DynamicCache`` per row: rows are ragged, and each rolls back on its own."""

    def __init__(self, caches: Sequence[Any], device: torch.device) -> None:
        self.caches = list(caches)
        self.lengths = torch.zeros(len(self.caches), dtype=torch.int64, device=device)
        self.span = 0

    def row(self, index: int) -> "TransformersCache":
        """One row, sharing storage."""
        part = TransformersCache.__new__(TransformersCache)
        part.caches = self.caches[index : index + 1]
        part.lengths = self.lengths[index : index + 1]
        part.span = int(part.lengths[0])
        return part

    def commit(self, counts: torch.Tensor, longest: int) -> None:
        """Accept the first tokens of each row's last pass, and drop the rest."""
        self.lengths += counts
        self.span = longest
        self._crop()

    def commit_path(self, nodes: torch.Tensor, counts: torch.Tensor, longest: int) -> None:
        """Keep a path of each row's last pass."""
        for cache, path, n, start in zip(
            self.caches, nodes.tolist(), counts.tolist(), self.lengths.tolist(), strict=True
        ):
            kept = [*range(start), *(start + node for node in path[:n])]
            _keep(cache, torch.tensor(kept, device=self.lengths.device))
        self.commit(counts, longest)

    def truncate(self, lengths: torch.Tensor, longest: int) -> None:
        """Roll rows back."""
        self.lengths.copy_(torch.minimum(self.lengths, lengths))
        self.span = min(self.span, longest)
        self._crop()

    def _crop(self) -> None:
        for cache, length in zip(self.caches, self.lengths.tolist(), strict=True):
            if cache.get_seq_length() > length:
                _keep(cache, slice(0, length))


def _keep(cache: Any, positions: Any) -> None:
    """Keep `positions` of every layer (``DynamicCache.crop`` changed its meaning between versions)."""
    for layer in cache.layers:
        layer.keys = layer.keys[:, :, positions]
        layer.values = layer.values[:, :, positions]


class TransformersLM:
    """Any causal model of transformers whose cache can be rolled back (full attention in every layer)."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        text = model.config.get_text_config()
        kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise UnsupportedError(
                f"{text.model_type} has layers of kind {', '.join(sorted(kinds - {'full_attention'}))}, whose cache "
                "cannot be rolled back after a rejection"
            )
        takes = inspect.signature(model.forward).parameters
        self._cache_name = "past_key_values" if "past_key_values" in takes else "cache"
        self._vocab = int(model.get_output_embeddings().weight.shape[0])

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return self._vocab

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return torch.device(self.model.device)

    @property
    def dtype(self) -> torch.dtype:
        """Format of the weights."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    def new_cache(self, batch: int, capacity: int) -> TransformersCache:
        """Empty cache; it grows, so `capacity` is only checked against the model's limit."""
        from transformers import DynamicCache

        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if limit is not None and capacity > limit:
            raise InputError(f"{capacity} tokens were asked for; the model states {limit} positions")
        return TransformersCache([DynamicCache() for _ in range(batch)], self.device)

    @torch.inference_mode()
    def __call__(
        self,
        tokens: torch.Tensor,
        cache: TransformersCache,
        *,
        depths: torch.Tensor | None = None,
        tree_mask: torch.Tensor | None = None,
        last_only: bool = False,
    ) -> torch.Tensor:
        """Logits of one pass, row by row, as `specplan.harness.llama.Llama` gives them for the batch at once."""
        width = tokens.shape[1]
        out = []
        for row, (past, start) in enumerate(zip(cache.caches, cache.lengths.tolist(), strict=True)):
            offset = (
                torch.arange(width, device=tokens.device) if depths is None else depths.expand(len(tokens), width)[row]
            )
            given: dict[str, Any] = {"position_ids": (start + offset)[None]}
            if tree_mask is not None:
                seen = tree_mask.expand(len(tokens), width, width)[row]
                prefix = torch.ones(width, start, dtype=torch.bool, device=tokens.device)
                given["attention_mask"] = self._additive(torch.cat((prefix, seen), dim=1))
            done = self.model(
                input_ids=tokens[row : row + 1],
                use_cache=True,
                logits_to_keep=1 if last_only else 0,
                **{self._cache_name: past},
                **given,
            )
            out.append(done.logits)
        return torch.cat(out)

    def _additive(self, seen: torch.Tensor) -> torch.Tensor:
        low = torch.finfo(self.model.dtype).min
        return torch.where(seen, 0.0, low).to(self.model.dtype)[None, None]
