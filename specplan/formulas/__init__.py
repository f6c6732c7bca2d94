"""The chapter's formulas and what follows from them: pure functions of arrays, numpy only, scipy for one population.

Index, file by file (``specplan explain SYMBOL`` prints one with its equation and a worked example):

acceptance.py
    Acceptance: what it is, how it is estimated from steps, and what engines and papers call it:
    `alpha_estimate`, `alpha_of_mean_acceptance_length`, `conditional_estimates`,
    `conditionals_of_marginals`, `continuation_estimate`, `coverage_estimate`, `emitted_estimate`,
    `emitted_given_draft_estimate`, `hit_estimate`, `marginal_estimates`, `mean_acceptance_length`,
    `overlap`, `overlap_estimate`, `pooled_rate`, `pooled_rate_of_alpha`, `positions_tested`,
    `ratio_estimate`, `ratio_estimate_of_sums`

adaptive.py
    Adaptive verification: how many drafted positions to verify in a step, and what that gives over a population:
    `adaptive_expectation`, `class_lengths`, `confidences`, `explained_variance`, `verify_budget`

draft_length.py
    Best kappa: how many tokens to draft, and what another choice loses:
    `best_kappa`, `first_losing_kappa`, `loss_from`, `peak_kappa`, `speedup_by_kappa`

emitted.py
    E: tokens a speculative step is expected to emit, the bonus or recovered token included:
    `emission_coefficients`, `emitted_and_slope`, `emitted_of_drafted_steps`, `emitted_over_all_steps`,
    `expected_emitted`, `expected_emitted_hazard`, `expected_emitted_hit`, `expected_emitted_lengths`,
    `factor_lengths`, `mixture_yield`, `survival`

indifference.py
    Contours of equal speedup on the (alpha, c) plane, break-even, and ties between sources:
    `alpha_for_emitted`, `alpha_for_emitted_lengths`, `break_even_alpha`, `c_for_emitted`,
    `continuation_for_emitted`, `contour_alpha`, `contour_c`,
    `coverage_for_speedup`, `emitted_for_speedup`, `free_draft_tie`, `hazard_scale_for_emitted`,
    `hit_for_emitted`, `reach`

kernels.py
    Laws of single kernels: seconds from shapes, with constants that were measured on a card:
    `attention_s`, `experts_s`, `gemm_s`, `latent_s`, `recurrent_s`, `reduce_s`

kv_cache.py
    Cached keys, values and states: bytes per token stored, bytes read per step, and what fits in the pool:
    `conv_channels_per_rank`, `kv_bytes_per_token`, `kv_bytes_read`, `kv_bytes_stored`, `kv_pool_bytes`,
    `pool_sequences`, `pool_tokens`, `read_spans`, `recurrent_state_bytes`, `stored_spans`

pairing.py
    Whether a draft belongs to a target: its sizes against the target's:
    `check_pair`, `mismatches`

parameters.py
    N_stream and N_resident: the weights of a model, counted by how a decode step touches them:
    `borrowed_head`, `elementwise_params`, `expert_shares`, `experts_touched`, `format_of`, `gathered_params`,
    `is_output_head`, `is_routed`, `layer_weights`, `outer_weights`, `params_by_component`, `resident_bytes`,
    `resident_params`, `streamed_bytes`, `streamed_params`, `weights`

pass_kernels.py
    A pass as the sum of its kernels: which a model's pass launches on one rank, and how long they take by
    their laws:
    `compact`, `floors`, `gemm_law`, `glue_times`, `kernel_times`, `kernels_of`, `law_key`, `pass_point`,
    `reduction_times`

requantize.py
    A shipped model in another number format: what a checkpoint of the same shape, quantised, streams:
    `requantized`, `stored_formats`

roofline.py
    Floor, ridge and verification width: what bandwidth and peak rate allow at best:
    `cost_ratio`, `decode_floor_s`, `ridge_positions`, `verified_positions`

speedup.py
    Speedup of speculative decoding: tokens emitted per step over the cost of a step in units of one plain
    decode step:
    `length_step_cost`, `paired_speedup`, `ridge_batch`, `speedup`, `step_cost`, `verify_factor`

step.py
    Time of one pass: what it moves and computes on each rank, and the roofline and additive laws over that
    load:
    `all_reduce_s`, `bound_s`, `pass_load`, `pass_shape`, `pass_terms`, `without`

student.py
    Quantiles of Student's t, which intervals over requests rest on: closed sums, so that nothing but Python is
    needed:
    `student_quantile`

tree.py
    Token trees: expected emitted tokens, the best tree for a node budget, and what a padded budget costs:
    `best_tree`, `best_tree_size`, `best_tree_values`, `expected_emitted_tree`, `padded_tree_speedup`,
    `tree_depth`, `tree_speedup`
"""
