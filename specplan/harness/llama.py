"""A Llama-family decoder in plain torch: GQA, tied heads, RoPE variants, biases and QK norms, with a static KV cache.

One pass scores W tokens per row against the cache, as a chain or as a tree, and commits nothing: the caller accepts
what it likes (`specplan.harness.kv_cache`). Llama, Mistral (full attention), Qwen2, Qwen3 and SmolLM share this shape.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from specplan.errors import InputError, UnsupportedError
from specplan.harness.kv_cache import KVCache, visible_slots, write_slots
from specplan.harness.rope import inverse_frequencies, rotate
from specplan.values.model import Attention, DenseMLP, Model

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """Sizes and switches of a Llama-family model."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_size: int
    tied: bool
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] | None = field(default=None, hash=False)
    max_position: int = 2048

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "LlamaShape":
        """Shape of a Hugging Face ``config.json``.

        Raises
        ------
        UnsupportedError
            For another model type or an active sliding window.
        """
        kind = config.get("model_type")
        if kind not in MODEL_TYPES:
            raise UnsupportedError(f"model type {kind!r} is not of the Llama family; one of {', '.join(MODEL_TYPES)}")
        window = config.get("sliding_window")
        if window and config.get("use_sliding_window", kind == "mistral"):
            raise UnsupportedError(f"{kind} with a sliding window of {window} runs through transformers, not here")
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        theta = float(rope.pop("rope_theta", None) or config.get("rope_theta") or 10_000.0)
        return cls(
            vocab_size=int(config["vocab_size"]),
            hidden_size=hidden,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            ffn_size=int(config["intermediate_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=bool(config.get("attention_bias", kind == "qwen2")),
            output_bias=bool(config.get("attention_bias", False)) and kind == "llama",
            qk_norm=kind == "qwen3",
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            rope_scaling=None if rope in ({}, {"rope_type": "default"}) else rope,
            max_position=int(config.get("max_position_embeddings", 2048)),
        )

    @classmethod
    def from_model(cls, model: Model, tp: int = 1) -> "LlamaShape":
        """Shape of one tensor-parallel rank of a model spec, for random weights: heads, FFN and vocabulary divided.

        Raises
        ------
        UnsupportedError
            When the layers are not all equal softmax attention with a gated dense feed-forward.
        """
        first = model.layers[0]
        plain = isinstance(first.mixer, Attention) and isinstance(first.feed_forward, DenseMLP)
        if not plain or any(layer != first for layer in model.layers):
            raise UnsupportedError(f"{model.name}: random weights need equal layers of attention and a dense MLP")
        mixer, ffn = first.mixer, first.feed_forward
        assert isinstance(mixer, Attention)  # noqa: S101 - narrowed by `plain`
        assert isinstance(ffn, DenseMLP)  # noqa: S101 - narrowed by `plain`
        if mixer.heads % tp or ffn.width % tp or not ffn.gated:
            raise InputError(f"{model.name}: {tp} ranks do not divide {mixer.heads} heads and a width of {ffn.width}")
        return cls(
            vocab_size=-(-model.vocab_size // tp),
            hidden_size=model.hidden_size,
            layers=len(model.layers),
            heads=mixer.heads // tp,
            kv_heads=max(1, mixer.kv_heads // tp),
            head_dim=mixer.head_dim,
            ffn_size=ffn.width // tp,
            tied=model.tied_embeddings,
            qkv_bias=mixer.qkv_bias,
            qk_norm=mixer.qk_norm == "head",
            max_position=model.max_position or 2048,
        )


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised `x`, same shape and dtype."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        normed: torch.Tensor = self.weight * scaled.to(x.dtype)
        return normed


class LlamaLayer(nn.Module):
    """Attention and a gated feed-forward, each behind a norm and a residual."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        s = self.shape = shape
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        self.input_norm = RMSNorm(s.hidden_size, s.norm_eps)
        self.post_norm = RMSNorm(s.hidden_size, s.norm_eps)
        self.qkv = nn.Linear(s.hidden_size, q + 2 * kv, bias=s.qkv_bias)
        self.out = nn.Linear(q, s.hidden_size, bias=s.output_bias)
        self.gate_up = nn.Linear(s.hidden_size, 2 * s.ffn_size, bias=False)
        self.down = nn.Linear(s.ffn_size, s.hidden_size, bias=False)
        self.q_norm = RMSNorm(s.head_dim, s.norm_eps) if s.qk_norm else None
        self.k_norm = RMSNorm(s.head_dim, s.norm_eps) if s.qk_norm else None

    def forward(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        slots: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """One layer of a pass: `x` of shape (batch, width, hidden); writes its keys and values, commits nothing.

        `keys` and `values` are this layer's part of the cache: all layers see arguments alike, and compile once.
        """
        s = self.shape
        batch, width, _ = x.shape
        heads = self.qkv(self.input_norm(x)).view(batch, width, s.heads + 2 * s.kv_heads, s.head_dim)
        q, k, v = heads.split((s.heads, s.kv_heads, s.kv_heads), dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        write_slots(keys, slots, k)
        write_slots(values, slots, v)
        span = mask.shape[-1]
        attended = functional.scaled_dot_product_attention(
            q,
            keys[:, :, :span],
            values[:, :, :span],
            attn_mask=mask,
            enable_gqa=s.heads != s.kv_heads,
        )
        x = x + self.out(attended.transpose(1, 2).reshape(batch, width, -1))
        gate, up = self.gate_up(self.post_norm(x)).chunk(2, dim=-1)
        fed: torch.Tensor = self.down(functional.silu(gate) * up)
        return x + fed


class Llama(nn.Module):
    """The decoder: embedding, layers, final norm and head."""

    inv_freq: torch.Tensor

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(LlamaLayer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        if shape.tied:
            self.head.weight = self.embed.weight
        inv_freq, self.rope_magnitude = inverse_frequencies(shape.head_dim, shape.rope_theta, shape.rope_scaling)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return self.shape.vocab_size

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Format of the weights."""
        return self.embed.weight.dtype

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        """Empty cache for `batch` rows of `capacity` tokens, in the weights' format and on their device."""
        s = self.shape
        return KVCache(
            layers=len(self.layers),
            batch=batch,
            kv_heads=s.kv_heads,
            head_dim=s.head_dim,
            capacity=capacity,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(
        self,
        tokens: torch.Tensor,
        cache: KVCache,
        *,
        depths: torch.Tensor | None = None,
        tree_mask: torch.Tensor | None = None,
        span: int | None = None,
        last_only: bool = False,
    ) -> torch.Tensor:
        """Logits of one pass; keys and values are written behind the committed ones, and nothing is committed.

        Parameters
        ----------
        tokens : Tensor
            Shape (batch, width). Rows with fewer tokens are padded with any id; only their own logits are meaningful.
        cache : KVCache
            From `new_cache`.
        depths : Tensor, optional
            Shape (batch, width) or (width,): position of each token behind the committed ones. 0, 1, 2, ... if None; in
            a tree a node's number of ancestors within the pass.
        tree_mask : Tensor, optional
            As in `specplan.harness.kv_cache.visible_slots`.
        span : int, optional
            Slots to read; the least possible if None. A fixed value keeps shapes static for graph capture.
        last_only : bool
            Only the last position's logits, shape (batch, 1, vocab), as a prefill wants them.

        Returns
        -------
        Tensor
            Shape (batch, width, vocab), in the weights' format.
        """
        width = tokens.shape[1]
        slots = cache.slots(width)
        reach = cache.span + width if span is None else span
        mask = visible_slots(cache.lengths, width, reach, tree_mask)
        offset = torch.arange(width, device=tokens.device) if depths is None else depths
        positions = cache.lengths[:, None] + offset
        angles = positions[:, None, :, None].float() * self.inv_freq
        cos, sin = ((f(angles) * self.rope_magnitude).to(self.dtype) for f in (torch.cos, torch.sin))
        x = self.embed(tokens)
        for index, layer in enumerate(self.layers):
            x = layer(x, cos, sin, cache.keys[index], cache.values[index], slots, mask)
        logits: torch.Tensor = self.head(self.norm(x[:, -1:] if last_only else x))
        return logits

    def without_layers(self, dropped: Iterable[int]) -> "Llama":
        """A self-draft: the same weights, shared, without the layers in `dropped`.

        Raises
        ------
        InputError
            When a layer does not exist or none would remain.
        """
        gone = set(dropped)
        n = len(self.layers)
        if not gone <= set(range(n)) or len(gone) >= n:
            raise InputError(f"cannot drop layers {sorted(gone)} of a model with layers 0 to {n - 1}")
        draft = Llama.__new__(Llama)
        nn.Module.__init__(draft)
        draft.shape = replace(self.shape, layers=n - len(gone))
        draft.embed, draft.norm, draft.head = self.embed, self.norm, self.head
        draft.layers = nn.ModuleList(layer for i, layer in enumerate(self.layers) if i not in gone)
        draft.rope_magnitude = self.rope_magnitude
        draft.register_buffer("inv_freq", self.inv_freq, persistent=False)
        return draft.eval()

    def load_hugging_face(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy weights named as in Hugging Face checkpoints of this family.

        Raises
        ------
        InputError
            When a tensor is missing, is left over, or has another shape.
        """
        left = dict(state)

        def take(name: str) -> torch.Tensor:
            found = left.pop(name, None)
            if found is None:
                raise InputError(f"the checkpoint has no tensor {name!r}")
            return found

        pairs: list[tuple[torch.Tensor, torch.Tensor, str]] = [
            (self.embed.weight, take("model.embed_tokens.weight"), "model.embed_tokens.weight"),
            (self.norm.weight, take("model.norm.weight"), "model.norm.weight"),
        ]
        if self.shape.tied:
            left.pop("lm_head.weight", None)
        else:
            pairs.append((self.head.weight, take("lm_head.weight"), "lm_head.weight"))
        for i, layer in enumerate(self.layers):
            pairs += self._layer_pairs(layer, f"model.layers.{i}.", take)
        unread = [name for name in left if not name.endswith("rotary_emb.inv_freq")]
        if unread:
            raise InputError(f"the checkpoint holds {len(unread)} tensors that this model lacks, such as {unread[0]!r}")
        with torch.no_grad():
            for own, given, name in pairs:
                if own.shape != given.shape:
                    raise InputError(f"{name} has shape {tuple(given.shape)}, expected {tuple(own.shape)}")
                own.copy_(given)

    def _layer_pairs(self, layer: Any, at: str, take: Any) -> list[tuple[torch.Tensor, torch.Tensor, str]]:
        s = self.shape
        qkv = [f"{at}self_attn.{part}_proj" for part in "qkv"]
        gate_up = [f"{at}mlp.{part}_proj.weight" for part in ("gate", "up")]
        pairs = [
            (layer.input_norm.weight, take(f"{at}input_layernorm.weight"), f"{at}input_layernorm.weight"),
            (layer.post_norm.weight, take(f"{at}post_attention_layernorm.weight"), f"{at}post_attention_layernorm"),
            (layer.qkv.weight, torch.cat([take(f"{n}.weight") for n in qkv]), f"{at}self_attn.qkv"),
            (layer.out.weight, take(f"{at}self_attn.o_proj.weight"), f"{at}self_attn.o_proj.weight"),
            (layer.gate_up.weight, torch.cat([take(n) for n in gate_up]), f"{at}mlp.gate_up"),
            (layer.down.weight, take(f"{at}mlp.down_proj.weight"), f"{at}mlp.down_proj.weight"),
        ]
        if s.qkv_bias:
            pairs.append((layer.qkv.bias, torch.cat([take(f"{n}.bias") for n in qkv]), f"{at}self_attn.qkv.bias"))
        if s.output_bias:
            pairs.append((layer.out.bias, take(f"{at}self_attn.o_proj.bias"), f"{at}self_attn.o_proj.bias"))
        if s.qk_norm:
            pairs += [
                (norm.weight, take(f"{at}self_attn.{part}_norm.weight"), f"{at}self_attn.{part}_norm.weight")
                for part, norm in (("q", layer.q_norm), ("k", layer.k_norm))
            ]
        return pairs
