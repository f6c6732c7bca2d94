"""Laws of kernels: floors, monotone in every input, never below the roofline's share, and a pass as their sum."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplan.formulas.kernels import attention_s, experts_s, gemm_s, reduce_s
from specplan.formulas.parameters import streamed_bytes
from specplan.formulas.pass_kernels import ExpertsKernel, Gemm, LatentKernel, compact, floors, kernels_of
from specplan.formulas.step import pass_shape
from specplan.specs.catalog import list_models, load_model
from specplan.specs.hardware import list_accelerators, load_accelerator
from specplan.timing.step_time import machine, pass_time
from specplan.values.formats import lookup

MEASURED = {card.name: card for card in list_accelerators() if card.kernels}
OWN = [card for card in MEASURED.values() if next(iter(card.kernels.values())).card == card.name]
LAWS = [(card, laws) for card in OWN for laws in card.kernels.values()]
IDS = [f"{card.name}-{laws.engine}" for card, laws in LAWS]
LIMITS = {"bfloat16": 0.10, "fp8": 0.14, "fp8-block": 0.20}


@pytest.mark.parametrize(("card", "laws"), LAWS, ids=IDS)
def test_more_rows_tokens_and_bytes_never_take_less_time(card, laws):
    peaks = card.bandwidth, card.flops["bfloat16"]
    rows = np.arange(1, 2049)
    for law in laws.gemm.values():
        assert np.all(np.diff(gemm_s(law, rows, 4096, 4096, 2 * 4096**2, *peaks)) >= 0)
    context = np.geomspace(1, 1e6, 500)
    for law in laws.attention.values():
        assert np.all(np.diff(attention_s(law, 1, context, 1, 32, 8, 4096, 256, *peaks)) > 0)
    for law in laws.experts.values():
        for count, per_token, size in ((8, 2, 180e6), (128, 8, 2.4e6), (256, 8, 11e6)):
            times = experts_s(law, rows, count, per_token, size, size / 2, 4096, *peaks)
            assert np.all(np.diff(times) >= -1e-3 * times[:-1])


@pytest.mark.parametrize("laws", [laws for _, laws in LAWS], ids=IDS)
def test_laws_state_how_they_did_on_shapes_that_were_not_fitted(laws):
    for kind in ("gemm", "attention", "latent", "experts", "recurrent"):
        for law in getattr(laws, kind).values():
            assert law.fit is not None
            assert law.fit.tested > 0
            assert law.fit.version
    for key, limit in LIMITS.items():
        assert key not in laws.gemm or laws.gemm[key].fit.error < limit
    if laws.reduce is not None:
        assert laws.reduce.fit.error < 0.10
    if laws.engine == "vllm":
        assert all(law.fit.error < 0.14 for key, law in laws.attention.items() if not key.endswith("-window"))
        assert all(law.fit.error < 0.11 for law in laws.latent.values())
        # Tuned kernels of one old table jump from shape to shape.
        assert all(law.fit.error < (0.19 if laws.card.startswith("a100") else 0.15) for law in laws.experts.values())


def test_a_small_weight_is_a_floor_and_a_large_one_a_bandwidth():
    h100 = load_accelerator("h100-sxm")
    law = h100.kernels["vllm"].gemm["bfloat16"]
    peaks = h100.bandwidth, h100.flops["bfloat16"]
    share = [2 * n**2 / h100.bandwidth / float(gemm_s(law, 1, n, n, 2 * n**2, *peaks)) for n in (1024, 4096, 16384)]
    # Achieved share of peak bandwidth by weight size, as measured: 0.31 under 8 MiB, 0.63 at 32, 0.89 for the largest.
    assert share[0] < 0.31 < 0.6 < share[1] < 0.75 < 0.83 < share[2] < 0.95


@pytest.mark.parametrize("name", ["llama3-70b", "qwen3-0.6b", "mixtral-8x7b", "gpt-oss-20b", "qwen3.8-27b", "phi-2"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_kernels_of_a_pass_read_the_weights_that_it_streams(name: str, tp: int):
    model = load_model(name)
    read = 0.0
    for kernel in kernels_of(model, tp):
        match kernel:
            case Gemm():
                read += kernel.count * kernel.weight_bytes
            case ExpertsKernel():
                size = kernel.expert_params * kernel.format.bytes
                read += kernel.count * kernel.per_token * size
    padded = any(isinstance(k, ExpertsKernel) and k.format.payload_bits < 5 for k in kernels_of(model, tp))
    assert read == pytest.approx(streamed_bytes(model, 1, tp), rel=0.1 if padded else 1e-9)


def test_every_shipped_model_is_a_sum_of_kernels():
    on = machine(load_accelerator("h100-sxm"))
    for entry in list_models():
        model = entry.model
        found = pass_time(on, pass_shape(model), [1, 8], 1, 2048)
        total = sum(np.broadcast_to(k.seconds, (2,)) for k in found.kernels)
        assert found.total_s == pytest.approx(np.maximum(total, found.lower_s), rel=1e-12), model.name
        assert np.all(total > 0.97 * found.lower_s), model.name
        for name, (_, seconds, floor) in floors(found.kernels).items():
            assert np.all(seconds >= 0), (model.name, name)
            assert np.all(np.isfinite(floor)), (model.name, name)


def test_latent_attention_counts_its_projections_once():
    kernels = kernels_of(load_model("deepseek-v3"), 8)
    names = [k.name for k in kernels if isinstance(k, Gemm)]
    assert not {"q_a_proj", "kv_b_proj", "o_proj", "qkv"} & set(names)
    assert sum(k.count for k in kernels if isinstance(k, LatentKernel)) == 61


def test_positions_are_padded_to_recorded_graphs():
    on = machine(load_accelerator("h100-sxm"))
    shape = pass_shape(load_model("llama3.1-8b"))
    times = {
        b: float(next(k for k in pass_time(on, shape, b).kernels if k.name == "qkv").seconds) for b in (5, 8, 9, 600)
    }
    assert times[5] == times[8] < times[9]


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 100_000), st.sampled_from(["llama3-8b", "qwen3-30b-a3b"]))
@settings(max_examples=30, deadline=None)
def test_arrays_and_scalars_agree(batch: int, width: int, context: int, name: str):
    on, shape = machine(load_accelerator("h100-sxm")), pass_shape(load_model(name))
    b, w = np.broadcast_arrays(np.array([[1.0], [float(batch)]]), np.array([float(width), 9.0]))
    whole = pass_time(on, shape, b, w, context).total_s
    assert float(whole[1, 0]) == pytest.approx(float(pass_time(on, shape, batch, width, context).total_s), rel=1e-12)


def test_what_a_broadcast_repeats_is_computed_once():
    x = np.broadcast_to(np.arange(3.0)[:, None], (3, 5))
    assert compact(x).shape == (3, 1)
    assert np.array_equal(np.broadcast_to(compact(x), (3, 5)), x)


def test_reductions_between_and_beyond_measured_ranks():
    law = load_accelerator("h100-sxm").kernels["vllm"].reduce
    two, three, four, eight, sixteen = (float(reduce_s(law, 16384, n)) for n in (2, 3, 4, 8, 16))
    assert two < three < four < eight < sixteen
    assert 4e-6 < two < eight < 6e-6
    assert float(reduce_s(replace(law), 1e12, 2)) > float(reduce_s(law, 1e11, 2))


@pytest.mark.parametrize("model", ["deepseek-v3", "gpt-oss-120b", "nemotron-3-nano"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_cache_in_eight_bits_a_window_and_two_matrices_take_their_own_kernels(model: str, engine: str):
    on = machine(load_accelerator("h200"), engine, 4)
    laws = on.laws
    assert laws is not None

    def seconds(without: str = "", kv: str = "bf16") -> float:
        kept = {
            kind: {k: v for k, v in getattr(laws, kind).items() if not without or without not in k}
            for kind in ("attention", "latent", "experts")
        }
        shape = pass_shape(load_model(model), 4, lookup(kv))
        return float(pass_time(replace(on, laws=replace(laws, **kept)), shape, 32, 1, 8192).total_s)

    for variant, kv in (("-kv8", "fp8"), ("-kv8", "bf16"), ("-window", "bf16"), ("-ungated", "bf16")):
        taken = {
            "-kv8": model == "deepseek-v3" and kv == "fp8",
            "-window": model == "gpt-oss-120b",
            "-ungated": model.startswith("nemotron") and engine == "sglang",
        }[variant]
        assert (seconds(kv=kv) != seconds(variant, kv)) == taken, (variant, kv)


def test_sglang_adds_the_projections_of_a_latent_block_to_its_core():
    found = {}
    for engine in ("vllm", "sglang"):
        shape = pass_shape(load_model("deepseek-v3"), 8)
        times = floors(pass_time(machine(load_accelerator("h200"), engine, 8), shape, 16, 1, 1024).kernels)
        found[engine] = {name: float(seconds) for name, (_, seconds, _) in times.items()}
    assert {"o_proj", "kv_b_proj", "norms and rotation of latents"} <= set(found["sglang"])
    assert not {"o_proj", "kv_b_proj"} & set(found["vllm"])
    whole = sum(v for k, v in found["sglang"].items() if "proj" in k or "latent" in k)
    assert whole == pytest.approx(found["vllm"]["latent attention"], rel=0.35)


def test_shapes_that_an_engine_brings_settings_for_take_the_law_fitted_to_them():
    on = machine(load_accelerator("a100-sxm-80gb"), "vllm", 2)
    laws = on.laws
    assert laws is not None
    tuned = laws.experts["bfloat16-tuned"]
    assert (8, 14336 / 2) in tuned.shapes
    assert (8, 14336) not in tuned.shapes
    others = {k: v for k, v in laws.experts.items() if k != "bfloat16-tuned"}

    def experts(tp: int, *, told_apart: bool) -> float:
        given = laws if told_apart else replace(laws, experts=others)
        shape = pass_shape(load_model("mixtral-8x7b"), tp)
        return float(floors(pass_time(replace(on, tp=tp, laws=given), shape, 128).kernels)["experts"][1])

    assert experts(2, told_apart=True) < 0.8 * experts(2, told_apart=False)
    assert experts(1, told_apart=True) == experts(1, told_apart=False)
    # What one engine's files name is no other engine's: nobody borrows it.
    assert "bfloat16-tuned" not in load_accelerator("a100-sxm-80gb").kernels["sglang"].experts
