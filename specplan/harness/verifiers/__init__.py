"""Accept tokens over batches of torch tensors, on CPU or GPU: the rules of `specplan.verify` under the same names.

Nothing here waits for the device: shapes, tree shapes and sampling parameters live on the host, everything else is
tensors, and bad input is noted on the device and raised by `OutcomeTensors.to_host`.

- `logits.probabilities`, `logits.verify_logits`: from logits; in chunks, so that no (B, K + 1, V) copy is held
- `chains`: `accept_greedy`, `accept_standard`, `accept_one_hot`, `accept_block`, `accept_synthetic`
- `trees`: `accept_tree_greedy`, `accept_tree`, `accept_sglang_target_only`
- `vllm`: `accept_vllm_v1`, `accept_vllm_v2`

A step of a harness loop::

    outcome = verify_logits(accept_standard, logits, sampling, q, draft, torch.rand(B, K + 1, dtype=torch.float64))
    for tokens, row in zip(outcome.emitted_tokens(), outcome.records(requests, steps, "draft_model", lengths)):
        ...
"""

from specplan.harness.verifiers.chains import (
    accept_block,
    accept_greedy,
    accept_one_hot,
    accept_standard,
    accept_synthetic,
)
from specplan.harness.verifiers.logits import probabilities, verify_logits
from specplan.harness.verifiers.outcome import OutcomeTensors
from specplan.harness.verifiers.trees import accept_sglang_target_only, accept_tree, accept_tree_greedy
from specplan.harness.verifiers.vllm import accept_vllm_v1, accept_vllm_v2
from specplan.verify.logits import Sampling

__all__ = [
    "OutcomeTensors",
    "Sampling",
    "accept_block",
    "accept_greedy",
    "accept_one_hot",
    "accept_sglang_target_only",
    "accept_standard",
    "accept_synthetic",
    "accept_tree",
    "accept_tree_greedy",
    "accept_vllm_v1",
    "accept_vllm_v2",
    "probabilities",
    "verify_logits",
]
