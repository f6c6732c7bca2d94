"""Prometheus alert rules on speculation for the engines whose metrics ``ingest`` reads."""

from typing import Final

from specplan.errors import InputError

_V: Final = "vllm:spec_decode_num_"
# engine: (name, expression, minutes it must hold, summary)
_RULES: Final[dict[str, tuple[tuple[str, str, int, str], ...]]] = {
    "vllm": (
        (
            "SpeculationAcceptanceFell",
            f"(rate({_V}accepted_tokens_total[15m]) / rate({_V}draft_tokens_total[15m])) < 0.7 * "
            f"(rate({_V}accepted_tokens_total[1d]) / rate({_V}draft_tokens_total[1d]))",
            15,
            "accepted over drafted tokens is 30 % below the last day's",
        ),
        (
            "SpeculationAcceptanceLengthLow",
            f"1 + rate({_V}accepted_tokens_total[15m]) / rate({_V}drafts_total[15m]) < {{length}}",
            15,
            "acceptance length is below {length}, at which drafting pays",
        ),
        (
            "SpeculationDraftsRare",
            f"rate({_V}drafts_total[15m]) / rate(vllm:inter_token_latency_seconds_count[15m]) < 0.1",
            30,
            "fewer than a tenth of the steps have a draft (coverage)",
        ),
        (
            "SpeculationCachePressure",
            "rate(vllm:num_preemptions_total[15m]) > 0 and vllm:kv_cache_usage_perc > 0.95",
            10,
            "the cache is full and requests are thrown out; the draft's share of it costs places",
        ),
    ),
    "sglang": (
        (
            "SpeculationAcceptanceFell",
            "avg_over_time(sglang:spec_accept_length[15m]) - 1 "
            "< 0.7 * (avg_over_time(sglang:spec_accept_length[1d]) - 1)",
            15,
            "accepted tokens per step are 30 % below the last day's",
        ),
        (
            "SpeculationAcceptanceLengthLow",
            "avg_over_time(sglang:spec_accept_length[15m]) < {length}",
            15,
            "accept length (E) is below {length}, at which drafting pays",
        ),
        (
            "SpeculationCachePressure",
            "sglang:token_usage > 0.95 and sglang:num_queue_reqs > 0",
            10,
            "the pool is full and requests wait; the draft's share of it costs places",
        ),
    ),
    "llama.cpp": (
        (
            "SpeculationAcceptanceFell",
            "(rate(llamacpp:n_drafted_accepted_total[15m]) / rate(llamacpp:n_drafted_total[15m])) < 0.7 * "
            "(rate(llamacpp:n_drafted_accepted_total[1d]) / rate(llamacpp:n_drafted_total[1d]))",
            15,
            "accepted over drafted tokens is 30 % below the last day's (builds that export draft counters)",
        ),
        ("SpeculationQueue", "llamacpp:requests_deferred > 0", 10, "requests wait for a slot"),
    ),
}


def alert_rules(engine: str, length: float = 1.5) -> str:
    """A rule file for one engine, as YAML.

    Parameters
    ----------
    engine : str
        ``vllm``, ``sglang`` or ``llama.cpp``.
    length : float
        Acceptance length below which drafting does not pay; `ingest` with ``--target`` shows it for a server.

    Raises
    ------
    InputError
        For another engine.
    """
    if engine not in _RULES:
        raise InputError(f"--rules {engine}: expected one of {', '.join(_RULES)}")
    lines = ["groups:", "  - name: specplan-speculation", "    rules:"]
    for name, expression, minutes, summary in _RULES[engine]:
        expr, text = (x.replace("{length}", f"{length:.2f}") for x in (expression, summary))
        lines += [
            f"      - alert: {name}",
            "        expr: >-",
            f"          {expr}",
            f"        for: {minutes}m",
            "        labels:",
            "          severity: warning",
            "        annotations:",
            f"          summary: {text!r}",
        ]
    return "\n".join(lines)
