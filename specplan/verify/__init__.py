"""Accept tokens: one file per rule, pure functions of probabilities and uniforms (numpy float64, the reference).

- `logits.probabilities`: from logits to the distribution a request samples from, by its `logits.Sampling`
- `greedy.accept_greedy`, `standard.accept_standard`, `one_hot.accept_one_hot`, `block.accept_block`: exact rules for
  chains
- `tree.accept_tree_greedy`, `tree.accept_tree`: exact rules for trees
- `synthetic.accept_synthetic`: what-if runs with given rates
- `sglang.accept_sglang_target_only`, `vllm.accept_vllm_v1`, `vllm.accept_vllm_v2`: engines' own conventions
- `outcome.Outcome`: what each returns, and its rows as step records

`specplan.harness.verifiers` has the same rules, under the same names, over batches of torch tensors.
"""

from specplan.verify.block import accept_block
from specplan.verify.greedy import accept_greedy
from specplan.verify.logits import Sampling, probabilities
from specplan.verify.one_hot import accept_one_hot
from specplan.verify.outcome import Outcome
from specplan.verify.sglang import accept_sglang_target_only
from specplan.verify.standard import accept_standard
from specplan.verify.synthetic import accept_synthetic
from specplan.verify.tree import accept_tree, accept_tree_greedy
from specplan.verify.vllm import accept_vllm_v1, accept_vllm_v2

__all__ = [
    "Outcome",
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
]
