"""A shipped model asked for in another format: bytes by hand, and what stays as it was."""

import pytest

from specplan.errors import InputError
from specplan.formulas.parameters import streamed_bytes, streamed_params
from specplan.formulas.requantize import requantized, stored_formats
from specplan.specs.catalog import load_model

LLAMA = load_model("llama3.1-8b")
HEAD = 128256 * 4096


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("fp8", 8),
        ("fp8-block", 8 + 32 / 128**2),
        ("nvfp4", 4.5),
        ("mxfp4", 4.25),
        ("awq", 4.15625),
        ("gptq-int4", 4.15625),
    ],
)
def test_linear_layers_take_the_format_and_the_head_keeps_its_own(name: str, bits: float):
    rest = streamed_params(LLAMA) - HEAD
    assert streamed_bytes(requantized(LLAMA, name)) == pytest.approx(rest * bits / 8 + 2 * HEAD)


def test_a_mixture_of_llama_cpp_quantises_its_head_too():
    model = requantized(LLAMA, "Q4_K_M")
    assert stored_formats(model) == ("gguf-q4_k", "gguf-q6_k")
    assert streamed_bytes(model) == pytest.approx((streamed_params(LLAMA) - HEAD) * 4.5 / 8 + HEAD * 6.5625 / 8)


def test_a_quantised_spec_can_be_asked_for_in_sixteen_bits_and_back():
    r1 = load_model("deepseek-r1")
    assert stored_formats(requantized(r1, "bf16")) == ("bfloat16",)
    assert streamed_bytes(requantized(requantized(r1, "bf16"), "fp8-block")) == streamed_bytes(r1)


def test_mxfp4_of_experts_leaves_attention_alone():
    oss = load_model("gpt-oss-20b")
    assert streamed_bytes(requantized(requantized(oss, "bf16"), "mxfp4"), 8) == streamed_bytes(oss, 8)


def test_an_unknown_format_is_named():
    with pytest.raises(InputError, match="--quantization fp3: unknown number format 'fp3'"):
        requantized(LLAMA, "fp3")
