"""The process in which vLLM runs: one engine, one source, requests in, one JSON line out for each as it ends.

Started by `specplan.harness.vllm_runner` as ``python -m specplan.harness.vllm_engine`` with a JSON job on stdin. It
owns stdout for its lines; whatever vLLM prints goes to stderr.
"""

import json
import os
import sys
import time
from typing import Any, TextIO


def serve(job: dict[str, Any], out: TextIO) -> None:
    """Run all requests of `job` and write one line for each as it ends.

    A line holds the request's id, its output tokens, the tokens that each engine step gave it, each step's share of
    the wall time, and the drafted and accepted tokens of its steps that verified a draft.
    """
    from vllm import LLM, SamplingParams

    engine = LLM(**job["engine"]).llm_engine
    waiting = list(job["requests"])
    tokens: dict[str, list[int]] = {}
    step_tokens: dict[str, list[int]] = {}
    step_s: dict[str, list[float]] = {}
    for request in waiting:
        name = request["id"]
        tokens[name], step_tokens[name], step_s[name] = [], [], []
        engine.add_request(name, {"prompt_token_ids": request["prompt"]}, SamplingParams(**job["sampling"]))
    pending = 0.0  # time of steps that gave nobody a token: it belongs to those that get the next ones
    while engine.has_unfinished_requests():
        began = time.perf_counter()
        outputs = engine.step()
        pending += time.perf_counter() - began
        given = [o for o in outputs if len(o.outputs[0].token_ids) > len(tokens[o.request_id])]
        for output in given:
            name = output.request_id
            found = list(output.outputs[0].token_ids)
            step_tokens[name].append(len(found) - len(tokens[name]))
            step_s[name].append(pending / len(given))
            tokens[name] = found
        if given:
            pending = 0.0
        for output in outputs:
            if output.finished:
                name = output.request_id
                counts = output.outputs[0].spec_decode_metrics
                row = {
                    "id": name,
                    "tokens": tokens.pop(name),
                    "step_tokens": step_tokens.pop(name),
                    "step_s": step_s.pop(name),
                    "drafted": [] if counts is None else list(counts.per_step_drafted),
                    "accepted": [] if counts is None else list(counts.per_step_accepted),
                }
                out.write(json.dumps(row) + "\n")
                out.flush()


def main() -> None:
    """Read the job, keep stdout for the lines, and say an error as a line."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        serve(json.load(sys.stdin), out)
    except Exception as error:
        out.write(json.dumps({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}) + "\n")
        out.flush()
        raise


if __name__ == "__main__":
    main()
