"""Vision towers that an engine loads beside the decoder, counted from the wrapper's config.

Known towers: SigLIP and CLIP (Gemma-3, LLaVA and their kin), Gemma-4's, Pixtral (Mistral-3), Qwen's from Qwen2.5-VL on
(MiMo-VL and Qwen3-Omni with it), MoonViT, Llama-4's, mllama's, and Whisper's encoder for audio. Another one that states
its layers and widths is counted as a plain transformer, with what that may be off by; one that does not is named, and
its weights must be given.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specplan.files.documents import json_object
from specplan.files.reading import read_text
from specplan.specs.huggingface.config import import_config
from specplan.units import GIB
from specplan.values.model import Model, Shard, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower:
    """A tower and its projector.

    Attributes
    ----------
    weights : tuple of Weight
        Encoder layers (divided among ranks), embeddings and projector (whole on each).
    image_tokens : int or None
        Decoder tokens that one largest image becomes; None where it depends on more than the config.
    image_values : int
        Input numbers of that image.
    peak_numbers : tuple of float
        Numbers that the encoder holds for that image at its peak: whole on each rank, divided among ranks; zeros where
        the decoder's own peak was above it in every log.
    guessed : str
        What a count of a tower of unknown make rests on, with its bounds; empty for known ones.
    """

    weights: tuple[Weight, ...]
    image_tokens: int | None
    image_values: int
    peak_numbers: tuple[float, float] = (0.0, 0.0)
    guessed: str = ""

    @property
    def params(self) -> int:
        """Parameters of tower and projector."""
        return sum(w.size * w.copies for w in self.weights)


def vision_tower(config: Mapping[str, Any]) -> VisionTower | None:
    """The tower of a parsed ``config.json``; None for a text model and for towers that are not known.

    Examples
    --------
    Gemma-3's SigLIP with its projector to 2,560:

    >>> found = vision_tower({"model_type": "gemma3", "mm_tokens_per_image": 256, "text_config": {"hidden_size": 2560},
    ...     "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
    ...                       "num_hidden_layers": 27, "patch_size": 14, "image_size": 896}})
    >>> found.params, found.image_tokens
    (419816304, 256)
    """
    inner = config.get("thinker_config")
    if isinstance(inner, Mapping):  # Qwen-Omni: the part that vLLM serves
        return vision_tower({"model_type": "qwen3_omni", **inner})
    tower = config.get("vision_config")
    width = _decoder_width(config)
    if not isinstance(tower, Mapping) or width is None:
        return None
    found = _sighted(config, tower, width)
    audio = config.get("audio_config")
    if found is None or not isinstance(audio, Mapping) or "d_model" not in audio:
        return found
    return replace(found, weights=(*found.weights, *_whisper(audio, width)))


def _sighted(config: Mapping[str, Any], tower: Mapping[str, Any], width: int) -> VisionTower | None:
    """Tower of a wrapper whose sizes are all there; None where one is missing."""
    kind = str(tower.get("model_type") or "")
    outer = str(config.get("model_type") or "")
    try:
        if outer.startswith(("qwen2_5_vl", "qwen3", "mimo")) and "depth" in tower:
            return _qwen(tower, width)
        if kind == "moonvit" or "vt_hidden_size" in tower or outer == "kimi_vl":
            return _moonvit(tower, width)
        if outer == "llama4":
            return _llama4(tower, width)
        if outer == "mllama":
            return _mllama(tower, width)
        if outer.startswith("gemma4"):
            return _gemma4(tower, width)
        if kind == "pixtral" or outer == "mistral3":
            return _pixtral(config, tower, width)
        if kind.startswith(("siglip", "clip")) or outer in ("gemma3", "paligemma"):
            return _siglip(config, tower, width, clip=kind.startswith("clip"))
        return _plain_encoder(tower, width)
    except (KeyError, TypeError):
        return None  # a size is missing: nothing is assumed for it


def _block(h: int, inner: int) -> int:
    """Parameters of a plain encoder layer: four projections and two matrices with biases, two norms."""
    return 4 * (h * h + h) + 2 * h * inner + inner + h + 4 * h


def _moonvit(tower: Mapping[str, Any], width: int) -> VisionTower:
    """Kimi's: learned positions of a grid, two-by-two merging, a projector of the merged width."""
    h = tower.get("vt_hidden_size") or tower["hidden_size"]
    inner = tower.get("vt_intermediate_size") or tower["intermediate_size"]
    layers = tower.get("vt_num_hidden_layers") or tower["num_hidden_layers"]
    patch, grid = tower.get("patch_size", 14), tower.get("init_pos_emb_height", 64)
    if "qkv_hidden_size" in tower:  # Kimi-K3's: no biases, heads wider than the stream, a norm behind the projector
        weights = (
            _layers(4 * h * tower["qkv_hidden_size"] + 2 * h * inner + 2 * h, layers),
            _whole("embed", 3 * patch * patch * h + grid * grid * h + h),
            _whole("projector", 16 * h * h + 4 * h * width + width),
        )
        return VisionTower(weights=weights, image_tokens=None, image_values=0)
    weights = (
        _layers(_block(h, inner), layers),
        _whole("embed", 3 * patch * patch * h + h + grid * grid * h + 2 * h),
        _whole("projector", 2 * h + 16 * h * h + 4 * h + 4 * h * width + width),
    )
    return VisionTower(weights=weights, image_tokens=None, image_values=0)


def _llama4(tower: Mapping[str, Any], width: int) -> VisionTower:
    """Llama-4's: a pixel-shuffle adapter of two matrices, and a projection to the decoder."""
    h, inner, patch = tower["hidden_size"], tower["intermediate_size"], tower["patch_size"]
    seen, out = tower["projector_input_dim"], tower["projector_output_dim"]
    positions = (tower["image_size"] // patch) ** 2 + 1
    weights = (
        _layers(_block(h, inner), tower["num_hidden_layers"]),
        _whole("embed", 3 * patch * patch * h + h + positions * h + 4 * h),
        _whole("projector", inner * seen + seen * out + tower.get("vision_output_dim", out) * width),
    )
    return VisionTower(weights=weights, image_tokens=None, image_values=0)


def _mllama(tower: Mapping[str, Any], width: int) -> VisionTower:
    """Llama-3.2-Vision's: local and global layers, positions per tile, features of several layers side by side."""
    h, inner, patch = tower["hidden_size"], tower["intermediate_size"], tower["patch_size"]
    layer = 4 * h * h + 2 * h * inner + inner + h + 4 * h
    patches = (tower["image_size"] // patch) ** 2 + 1
    tiles, ratios = tower.get("max_num_tiles", 4), len(tower.get("supported_aspect_ratios") or ()) or 8
    embed = 3 * patch * patch * h + patches * h + (ratios + 1) * tiles * (patches + 2) * h + 6 * h
    weights = (
        _layers(layer, tower["num_hidden_layers"] + tower.get("num_global_layers", 8)),
        _whole("embed", embed),
        _whole("projector", tower.get("vision_output_dim", 7680) * width + width),
    )
    return VisionTower(weights=weights, image_tokens=None, image_values=0)


def _whisper(audio: Mapping[str, Any], width: int) -> tuple[Weight, ...]:
    """Whisper's encoder as Qwen's omni models carry it: two-dimensional convolutions before, two projections after."""
    h, d = audio["d_model"], audio.get("downsample_hidden_size", 480)
    out = audio.get("output_dim", width)
    convolutions = 10 * d + 2 * (9 * d * d + d) + d * (audio.get("num_mel_bins", 128) // 8) * h
    ends = convolutions + h * h + h + h * out + out + 2 * h
    return (
        replace(
            _layers(_block(h, audio.get("encoder_ffn_dim", 4 * h)), audio.get("encoder_layers", 32)), component="audio"
        ),
        replace(_whole("ends", ends), component="audio"),
    )


def _plain_encoder(tower: Mapping[str, Any], width: int) -> VisionTower:
    """A tower of unknown make, counted as a plain transformer with a two-matrix projector."""
    h = tower["hidden_size"]
    count = tower.get("num_hidden_layers") or tower["depth"]
    inner = tower.get("intermediate_size") or 4 * h
    weights = (
        _layers(_block(h, inner), count),
        _whole("projector", 4 * h * (4 * h) + 4 * h * width),
    )
    size = 2 * sum(w.size * w.copies for w in weights) / GIB
    gated = 2 * count * h * inner / GIB
    words = (
        f"a vision tower of unknown make is counted as a plain one of {count} layers: {size:.2f} GiB in 16 bits "
        f"(from {0.9 * size:.2f} to {size + gated + 0.1:.2f})"
    )
    return VisionTower(weights=weights, image_tokens=None, image_values=0, guessed=words)


def _decoder_width(config: Mapping[str, Any]) -> int | None:
    text = config.get("text_config")
    found = text.get("hidden_size") if isinstance(text, Mapping) else config.get("hidden_size")
    return found if isinstance(found, int) else None


def _whole(name: str, size: int) -> Weight:
    return Weight(component="vision", name=name, size=size, shard=Shard.REPLICATE, quantizable=False)


def _layers(size: int, count: int) -> Weight:
    return Weight(component="vision", name="layer", size=size, copies=count, quantizable=False)


def _siglip(config: Mapping[str, Any], tower: Mapping[str, Any], width: int, *, clip: bool) -> VisionTower:
    h, inner, patch = tower["hidden_size"], tower["intermediate_size"], tower["patch_size"]
    side = tower["image_size"] // patch
    layer = _block(h, inner)
    positions = side * side + (1 if clip else 0)
    embed = 3 * patch * patch * h + positions * h + h  # and a class token (CLIP) or the convolution's bias (SigLIP)
    norms = 4 * h if clip else 2 * h
    weights = [_layers(layer, tower["num_hidden_layers"]), _whole("embed", embed + norms)]
    if config.get("model_type") == "gemma3":
        weights.append(_whole("projector", h * width + h))
        tokens = config.get("mm_tokens_per_image", 256)
    else:
        chosen = config.get("vision_feature_layer", -2)
        read = h * (len(chosen) if isinstance(chosen, list) else 1)
        weights.append(_whole("projector", read * width + width + width * width + width))
        tokens = side * side if config.get("model_type") == "llava" else None
        if str(config.get("model_type", "")).startswith("llava_next"):
            weights.append(_whole("newline", width))
    values = 3 * tower["image_size"] ** 2
    return VisionTower(weights=tuple(weights), image_tokens=tokens, image_values=values)


def _pixtral(config: Mapping[str, Any], tower: Mapping[str, Any], width: int) -> VisionTower:
    h, inner, patch = tower["hidden_size"], tower["intermediate_size"], tower["patch_size"]
    merge = config.get("spatial_merge_size", 2)
    layer = 4 * h * h + 3 * h * inner + 2 * h
    projector = h + merge**2 * h * h + h * width + width * width
    weights = (
        _layers(layer, tower["num_hidden_layers"]),
        _whole("embed", 3 * patch * patch * h + h),
        _whole("projector", projector),
    )
    side = tower["image_size"] // patch // merge
    # Every row of merged patches ends in a break, the last in an end token.
    return VisionTower(weights=weights, image_tokens=side * (side + 1), image_values=3 * tower["image_size"] ** 2)


def _gemma4(tower: Mapping[str, Any], width: int) -> VisionTower:
    """Gated feed-forwards, a table of positions for each of two axes, and one projection to the decoder."""
    h, inner, patch = tower["hidden_size"], tower["intermediate_size"], tower["patch_size"]
    layer = 4 * h * h + 3 * h * inner + 6 * h
    positions = 2 * tower.get("position_embedding_size", 10240) * h
    weights = (
        _layers(layer, tower["num_hidden_layers"]),
        _whole("embed", 3 * patch * patch * h + positions),
        _whole("projector", h * width),
    )
    tokens = tower.get("default_output_length", 280)
    return VisionTower(weights=weights, image_tokens=tokens, image_values=tokens * 9 * 3 * patch * patch)


def _qwen(tower: Mapping[str, Any], width: int) -> VisionTower:
    h, inner, patch = tower["hidden_size"], tower["intermediate_size"], tower["patch_size"]
    merge, frames = tower.get("spatial_merge_size", 2), tower.get("temporal_patch_size", 2)
    layer = _block(h, inner)
    merged = merge**2 * h
    merger = merged * merged + merged + merged * width + width + 2 * h
    deep = len(tower.get("deepstack_visual_indexes") or ())
    weights = (
        _layers(layer, tower["depth"]),
        _whole("embed", 3 * frames * patch * patch * h + h + tower.get("num_position_embeddings", 2304) * h),
        _whole("merger", merger + deep * (merger - 2 * h + 2 * merged)),
    )
    tokens = 16384  # the processor's largest image
    patches = tokens * merge**2
    return VisionTower(
        weights=weights,
        image_tokens=tokens,
        image_values=patches * 3 * frames * patch * patch,
        # Fitted by hand: peaks of 1.46 GiB on each of two ranks (RTX 3090, RTX 5090) and of 2.33 on one (RTX PRO 6000).
        peak_numbers=(1.7 * h * patches, (2 * inner + 4.9 * h) * patches),
    )


def tower_beside(path: Path) -> tuple[VisionTower | None, str]:
    """Tower of the ``config.json`` at `path` or in that folder, and what to say where one stands but is not known."""
    file = path / "config.json" if path.is_dir() else path
    if file.suffix != ".json" or not file.is_file():
        return None, ""
    config = json_object(read_text(file, "a Hugging Face config (JSON)"), str(file), nan="keep")
    found = vision_tower(config)
    if found is None and "vision_config" in config:
        return None, f"the vision tower of {file} is not known and not counted (give --extra-weights)"
    return found, "" if found is None else found.guessed


def import_served(config: Mapping[str, Any], where: str = "config.json") -> Model:
    """Model of a parsed ``config.json`` as an engine loads it: the decoder, and the tower beside it where one is known.

    >>> text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 6,
    ...         "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
    ...         "sliding_window": 1024, "max_position_embeddings": 131072}
    >>> len(import_served(text).extra)
    0
    """
    model = import_config(config, where, name=where).model
    tower = vision_tower(config)
    return model if tower is None else replace(model, extra=(*model.extra, *tower.weights))
