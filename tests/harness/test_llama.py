"""Our Llama against transformers, and its cache against full recomputation."""

import dataclasses
from pathlib import Path

import pytest
import torch

from specplan.errors import InputError, UnsupportedError
from specplan.harness.kv_cache import KVCache
from specplan.harness.llama import Llama, LlamaShape
from specplan.harness.load import load_llama, smollm2_gguf, with_fresh_rope

TINY = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
ROPES = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


def reference(kind: str, rope: str = "default", **more):
    """A transformers model with random weights, and ours with the same."""
    import transformers

    config_class = getattr(transformers, f"{kind}Config")
    given = TINY | more
    if ROPES[rope]:
        given["rope_parameters"] = ROPES[rope] | {"rope_theta": 10_000.0}
    torch.manual_seed(1)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config_class(**given)).eval()
    for p in theirs.parameters():  # norms and biases too, so that none is at its neutral value
        torch.nn.init.normal_(p, std=0.2)
    ours = Llama(LlamaShape.from_config(theirs.config.to_dict()))
    ours.load_hugging_face(theirs.state_dict())
    return theirs, ours.eval()


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("Llama", {}),
        ("Llama", {"attention_bias": True}),
        ("Llama", {"tie_word_embeddings": True}),
        ("Llama", {"head_dim": 12}),
        ("Mistral", {"sliding_window": None}),
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 16}),
    ],
    ids=str,
)
def test_logits_equal_transformers(kind: str, more: dict) -> None:
    theirs, ours = reference(kind, **more)
    tokens = torch.randint(0, 97, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs(tokens).logits
    got = ours(tokens, ours.new_cache(2, 40))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rope", ROPES)
def test_rope_variants_equal_transformers_past_the_original_length(rope: str) -> None:
    theirs, ours = reference("Llama", rope)
    tokens = torch.randint(0, 97, (1, 200), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens, ours.new_cache(1, 200)), expected, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def tiny() -> Llama:
    return reference("Llama")[1]


def prompt(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 97, shape, generator=torch.Generator().manual_seed(seed))


def test_incremental_passes_equal_one_full_pass(tiny: Llama) -> None:
    tokens = prompt(2, 30)
    full = tiny(tokens, tiny.new_cache(2, 30))
    cache = tiny.new_cache(2, 64)
    parts = []
    for start, stop in ((0, 11), (11, 12), (12, 20), (20, 30)):
        parts.append(tiny(tokens[:, start:stop], cache))
        cache.commit(torch.full((2,), stop - start), stop)
    torch.testing.assert_close(torch.cat(parts, 1), full, atol=1e-5, rtol=1e-5)


def test_rejected_tokens_leave_the_cache_as_if_never_written(tiny: Llama) -> None:
    """Ragged acceptance: one row keeps 1 of 4 tokens, the other 3; both go on as if the rest had never been."""
    tokens = prompt(2, 10)
    drafts = prompt(2, 4, seed=1)
    cache = tiny.new_cache(2, 40)
    tiny(tokens, cache)
    cache.commit(torch.tensor([10, 10]), 10)
    tiny(drafts, cache)
    cache.commit(torch.tensor([1, 3]), 13)
    after = prompt(2, 2, seed=2)
    got = tiny(after, cache)
    for row, kept in ((0, 1), (1, 3)):
        whole = torch.cat((tokens[row], drafts[row, :kept], after[row]))[None]
        expected = tiny(whole, tiny.new_cache(1, 40))[:, -2:]
        torch.testing.assert_close(got[row : row + 1], expected, atol=1e-5, rtol=1e-5)


def test_truncation_rolls_back(tiny: Llama) -> None:
    tokens = prompt(1, 12)
    cache = tiny.new_cache(1, 40)
    tiny(tokens, cache)
    cache.commit(torch.tensor([12]), 12)
    cache.truncate(torch.tensor([5]), 5)
    got = tiny(tokens[:, 5:], cache)
    torch.testing.assert_close(got, tiny(tokens, tiny.new_cache(1, 12))[:, 5:], atol=1e-5, rtol=1e-5)


def test_tree_masked_logits_equal_each_path_on_its_own(tiny: Llama) -> None:
    """Tree: 0 - (1 - (3, 4), 2); every node sees the prompt, its ancestors and itself."""
    parents = [-1, 0, 0, 1, 1]
    tokens = prompt(1, 9)
    nodes = prompt(1, 5, seed=3)
    mask = torch.zeros(5, 5, dtype=torch.bool)
    paths = []
    for i, parent in enumerate(parents):
        path = ([] if parent < 0 else paths[parent]) + [i]
        paths.append(path)
        mask[i, path] = True
    depths = torch.tensor([len(p) - 1 for p in paths])
    cache = tiny.new_cache(1, 40)
    tiny(tokens, cache)
    cache.commit(torch.tensor([9]), 9)
    got = tiny(nodes, cache, depths=depths, tree_mask=mask)
    for i, path in enumerate(paths):
        whole = torch.cat((tokens[0], nodes[0, path]))[None]
        expected = tiny(whole, tiny.new_cache(1, 40))[0, -1]
        torch.testing.assert_close(got[0, i], expected, atol=1e-5, rtol=1e-5)
    cache.commit_path(torch.tensor([[0, 1, 4]]), torch.tensor([3]), 12)
    after = prompt(1, 2, seed=4)
    whole = torch.cat((tokens[0], nodes[0, [0, 1, 4]], after[0]))[None]
    torch.testing.assert_close(tiny(after, cache), tiny(whole, tiny.new_cache(1, 40))[:, -2:], atol=1e-5, rtol=1e-5)


def test_a_longer_span_than_needed_changes_nothing(tiny: Llama) -> None:
    tokens = prompt(2, 10)
    torch.testing.assert_close(
        tiny(tokens, tiny.new_cache(2, 64), span=64), tiny(tokens, tiny.new_cache(2, 64)), atol=1e-6, rtol=1e-6
    )


def test_a_self_draft_shares_its_weights_and_equals_the_model_without_those_layers(tiny: Llama) -> None:
    draft = tiny.without_layers([1])
    assert draft.embed.weight.data_ptr() == tiny.embed.weight.data_ptr()
    shape = LlamaShape.from_config(TINY | {"model_type": "llama", "num_hidden_layers": 2})
    alone = Llama(shape).eval()
    alone.embed, alone.norm, alone.head = tiny.embed, tiny.norm, tiny.head
    alone.layers = torch.nn.ModuleList([tiny.layers[0], tiny.layers[2]])
    tokens = prompt(1, 8)
    torch.testing.assert_close(draft(tokens, draft.new_cache(1, 8)), alone(tokens, alone.new_cache(1, 8)))
    with pytest.raises(InputError):
        tiny.without_layers([0, 1, 2])


def test_a_full_cache_is_an_error_that_names_its_size(tiny: Llama) -> None:
    cache = tiny.new_cache(1, 8)
    with pytest.raises(InputError, match="holds 8 tokens"):
        tiny(prompt(1, 9), cache)
    assert isinstance(cache, KVCache)
    assert cache.n_bytes == 2 * 3 * 2 * 8 * 8 * 4


def test_other_families_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="gpt2"):
        LlamaShape.from_config({"model_type": "gpt2"})


def test_casting_keeps_the_rotary_frequencies_in_float32(tiny: Llama) -> None:
    cast = with_fresh_rope(Llama(tiny.shape).to(torch.bfloat16))
    assert cast.inv_freq.dtype is torch.float32


def write_gguf(path: Path, model, kind: str, quantised: bool) -> None:
    """A file of `model` as llama.cpp's converter writes it: its names, and its order of a Llama's rotated rows."""
    gguf = pytest.importorskip("gguf")
    config = model.config
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_key_length(config.head_dim if kind == "qwen3" else config.hidden_size // config.num_attention_heads)
    rotated = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        heads = rotated.get(name.split(".")[-2]) if kind == "llama" else None
        if heads:
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if quantised and values.ndim == 2:
            kinds = gguf.GGMLQuantizationType
            packed = gguf.quants.quantize(values, kinds.Q8_0)
            writer.add_tensor(stored, packed, raw_dtype=kinds.Q8_0)
        else:
            writer.add_tensor(stored, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("quantised", [False, True])
def test_a_gguf_file_holds_the_weights_that_were_written(tmp_path: Path, kind: str, quantised: bool) -> None:
    theirs, ours = reference(kind, hidden_size=96, num_attention_heads=6, intermediate_size=64)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, theirs, kind.lower(), quantised)
    loaded = load_llama(path)
    assert dataclasses.replace(loaded.shape, norm_eps=ours.shape.norm_eps) == ours.shape  # a float32 in the file
    for (name, expected), found in zip(ours.state_dict().items(), loaded.state_dict().values(), strict=True):
        step = expected.abs().max() / 127 if quantised and expected.ndim == 2 else 0.0
        assert (found - expected).abs().max() <= step, name


@pytest.mark.model
@pytest.mark.slow  # transformers takes half a minute to read the file
def test_smollm2_logits_equal_transformers() -> None:
    from transformers import AutoModelForCausalLM

    path = smollm2_gguf()
    theirs = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32).eval()
    ours = load_llama("smollm2-135m")
    tokens = torch.randint(0, ours.vocab_size, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs(tokens).logits
    assert (ours(tokens, ours.new_cache(2, 64)) - expected).abs().max() < 1e-4
