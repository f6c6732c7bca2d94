"""Drafters of a block: one pass whatever is drafted, and DSpark's Markov head walked over it."""

from dataclasses import replace

import numpy as np
import pytest

from specplan.formulas.parameters import streamed_bytes
from specplan.formulas.step import pass_shape
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.specs.huggingface.config import import_config
from specplan.timing.draft_time import WALK_S, model_draft_s
from specplan.timing.step_time import machine

CARD, TARGET = load_accelerator("h100-sxm"), load_model("qwen3-8b")
CONFIG = {
    "architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 5, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "block_size": 7,
    "target_layer_ids": [1, 9, 17, 25, 33], "mask_token_id": 151669, "num_anchors": 512, "markov_rank": 256,
    "markov_head_type": "vanilla", "enable_confidence_head": True, "confidence_head_with_markov": True,
}  # fmt: skip
DSPARK = import_config(CONFIG, "dspark").model
DFLASH = replace(DSPARK, draft_method="dflash", extra=tuple(w for w in DSPARK.extra if w.name != "markov_w2"))


def drafted_s(model, kappa: int, layer: str, batch: int = 1) -> float:
    shape = pass_shape(model, head_of=TARGET)
    return float(model_draft_s(machine(CARD, layer=layer), shape, batch, kappa, 2048, own_head=False, parallel=True))


def test_at_the_roofline_the_walk_reads_its_table_for_each_drafted_token() -> None:
    table_s = 151936 * 256 * 2 / CARD.bandwidth
    for kappa in (1, 4, 7):
        more = drafted_s(DSPARK, kappa, "roofline") - drafted_s(DFLASH, kappa, "roofline")
        assert more == pytest.approx(kappa * table_s, rel=1e-3)
    assert drafted_s(DFLASH, 1, "roofline") == pytest.approx(drafted_s(DFLASH, 7, "roofline"))
    backbone = streamed_bytes(DFLASH) + 151936 * 4096 * 2  # with the head that the target lends
    assert drafted_s(DFLASH, 7, "roofline") >= 0.99 * backbone / CARD.bandwidth


@pytest.mark.parametrize("batch", [1, 16, 64])
def test_modelled_each_drafted_token_adds_its_walk_and_little_else(batch: int) -> None:
    dspark = np.array([drafted_s(DSPARK, k, "modelled", batch) for k in range(8)])
    dflash = np.array([drafted_s(DFLASH, k, "modelled", batch) for k in range(8)])
    assert dspark[0] == dflash[0] == 0
    walks = dspark - dflash
    np.testing.assert_allclose(walks, np.arange(8) * walks[1], rtol=1e-9)
    assert walks[1] >= WALK_S + 151936 * 256 * 2 / CARD.bandwidth
    if batch == 1:
        assert dspark[7] < 3 * dspark[1]  # a model that drafts token by token takes seven times as long
