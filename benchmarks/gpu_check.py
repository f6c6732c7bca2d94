"""What one card does: everything that needs a GPU, in one command under five minutes, without a network.

    python benchmarks/gpu_check.py [--device cuda] [--gpu h100-sxm] [--seconds 280] [-o measurements/NAME.json]
    python benchmarks/gpu_check.py --device cpu --small

Sections: the device's own bandwidth and matmul rates; passes of Llama-3.1-8B, Llama-3.2-1B and one rank of Llama-3-70B
on four with random weights at true shapes (share of the bandwidth floor with CUDA graphs, c, v over 1 to 64 x 25
positions, memory beside prediction); alpha of every source with SmolLM2-135M at temperature 0 and 1; n-gram matching on
the device beside the host's; verifiers beside a softmax. A section that fails is reported and the others go on; one
that runs out of its share of the time says what it left out. Prints tables, its limits judged and, last, one line of
JSON, and writes the document after each section. Ends with 1 where a section failed or, on a CUDA device or with
``--strict``, a limit was missed. ``--small`` puts small shapes and a random model in place of all of these.
"""

import argparse
import dataclasses
import datetime as dt
import gc
import importlib.util
import json
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specplan.decide.measured import summarise
from specplan.errors import SpecplanError
from specplan.harness.bench import BenchJob, bench_model
from specplan.harness.calibrate import CalibrateJob, calibrate, check_device, device_name, driver_version
from specplan.harness.llama import Llama, LlamaShape
from specplan.harness.load import SMOLLM2, load_llama
from specplan.harness.loop import Request, SpeculativeLoop
from specplan.harness.ngram_window import NgramWindow
from specplan.harness.pass_times import timed
from specplan.harness.prompts import read_requests, stop_ids_of, tokenizer_of
from specplan.harness.sources import Drafts, NoSource, draft_length, read_source
from specplan.harness.verifiers import Sampling
from specplan.propose.build import proposer_of
from specplan.propose.spelling import parse_source
from specplan.records.prompts import prompt_file
from specplan.records.tally import Tally
from specplan.report.json_document import render
from specplan.specs.catalog import load_model
from specplan.specs.hardware import list_accelerators, load_accelerator
from specplan.timing.bench_result import BenchedModel, bench_rows, benched_model, ridge_of
from specplan.values.formats import lookup
from specplan.values.hardware import Accelerator

SOURCES = (
    "ngram:min=2,max=5,k=3",
    "suffix",
    "sglang-ngram:budget=8",
    "draft:drop=12-15,k=3",
    "draft:drop=12-15,k=3,sample=probabilistic",
    "draft:first=8,k=3",
)
SMALL_SOURCES = ("ngram:min=2,max=5,k=3", "suffix", "sglang-ngram:budget=8", "draft:drop=1,k=3")
MODELS = (("llama3.1-8b", 1), ("llama3.2-1b", 1), ("llama3-70b", 4), ("llama3.2-1b", 4))
"""Targets and the ranks among which they are divided; the smallest is the draft of the others on as many ranks."""
SMALL_MODELS = (("smollm2-360m", 1), ("smollm2-135m", 1))
MEMORY_LIMIT = 1.02
"""Measured bytes over predicted ones: what the shapes say is what is there."""
FLOOR_LIMIT = 0.85
"""Share of the bandwidth floor that a decode pass at batch 1 must reach with CUDA graphs."""


@dataclasses.dataclass
class Check:
    """One run: where, against which card, until when, and what was found so far."""

    device: torch.device
    dtype: str
    small: bool
    card: Accelerator | None
    seconds: float
    output: Path
    document: dict[str, Any]
    began: float = dataclasses.field(default_factory=time.perf_counter)

    @property
    def left_s(self) -> float:
        """Seconds that are left of the whole run."""
        return self.seconds - (time.perf_counter() - self.began)

    def section(self, name: str, share: float, run: Callable[["Check", float], dict[str, Any]]) -> None:
        """Run one section with at most `share` of the time, report a failure, and write what there is."""
        budget = min(share * self.seconds, self.left_s)
        print(f"\n== {name}", flush=True)
        start = time.perf_counter()
        if budget <= 0:
            found: dict[str, Any] = {"skipped": "out of time"}
        else:
            try:
                found = run(self, budget)
            except Exception as error:  # one section's failure must not lose the others
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{Path(last.filename).name}:{last.lineno}"
                found = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", "where": where}
        for key in ("failed", "skipped"):
            if found.get(key):
                print(f"{name}: {key}: {found[key]}")
        found["section_s"] = round(time.perf_counter() - start, 1)
        self.document["sections"][name] = found
        self.write()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def write(self) -> None:
        """The document so far, whole."""
        fresh = self.output.with_name(self.output.name + ".new")
        fresh.write_text(render(self.document) + "\n", encoding="utf-8")
        fresh.replace(self.output)


def environment(device: torch.device) -> dict[str, Any]:
    """Card, driver, versions and date."""
    is_cuda = device.type == "cuda"
    return {
        "card": device_name(device),
        "driver": driver_version() if is_cuda else None,
        "capability": ".".join(map(str, torch.cuda.get_device_capability(device))) if is_cuda else None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "date": dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
    }


def datasheet(name: str, memory_bytes: float) -> Accelerator | None:
    """Shipped profile of the card that torch calls `name`, where exactly one fits its words and its memory."""
    words = set(name.lower().replace("-", " ").split())
    form = next((f for f in ("nvl", "pcie", "sxm") if any(w.startswith(f) for w in words)), None)
    if form is None and "hbm3" in words:
        form = "sxm"
    fits = []
    for card in list_accelerators():
        parts = card.name.split("-")
        forms = [p for p in parts if p.startswith(("nvl", "pcie", "sxm"))]
        plain = {p for p in parts if p not in forms and not p.endswith("gb")}
        memory = card.memory_torch_bytes or card.memory_driver_bytes or 0.0
        as_named = form is not None and any(f.startswith(form) for f in forms)
        as_usual = not forms and form in (None, "sxm")
        if plain <= words and abs(memory / memory_bytes - 1) < 0.1 and (as_named or as_usual):
            fits.append(card)
    return fits[0] if len(fits) == 1 else None


def device_section(check: Check, budget: float) -> dict[str, Any]:
    """Bandwidth and matmul rates; without a datasheet they are the peaks that floors are taken from."""
    sizes: dict[str, Any] = {"buffer_bytes": 1 << 22, "inner": 128, "rows": (1, 16)} if check.small else {}
    job = CalibrateJob(device=str(check.device), formats=(check.dtype,), repeats=5, **sizes)
    report = calibrate(job, "this-device", datasheet=check.card)
    check.card = report.profile
    r = report.readings
    for b in r.bandwidth:
        print(f"{b.kind:>8} {b.format:<9} {b.rate / 1e9:>10.1f} GB/s {b.rate / check.card.bandwidth:>7.1%} of peak")
    best = r.peaks()[check.dtype]
    print(f"  matmul {best.format:<9} {best.rate / 1e12:>10.2f} TFLOP/s at {best.rows} positions")
    return {
        "bandwidth": [dataclasses.asdict(b) | {"bytes_per_s": b.rate} for b in r.bandwidth],
        "matmul": [dataclasses.asdict(m) | {"flops_per_s": m.rate} for m in r.matmul],
        "launch": dataclasses.asdict(r.launch),
        "peaks": check.card.note,
        "bandwidth_bytes_per_s": check.card.bandwidth,
        "budget_s": budget,
    }


def alpha_section(check: Check, budget: float) -> dict[str, Any]:
    """alpha, coverage and E of every source at temperature 0 and 1."""
    began = time.perf_counter()
    if check.small:
        target, requests, stops, tokens, batch = random_target(), random_requests(), frozenset[int](), 12, 2
        sources = SMALL_SOURCES
    else:
        target = load_llama(SMOLLM2, dtype=torch.float32, device=str(check.device))
        tokenizer = tokenizer_of(SMOLLM2)
        requests = [r for name in ("copy", "open") for r in read_requests(prompt_file(name), tokenizer, limit=16)]
        stops, tokens, batch, sources = stop_ids_of(tokenizer), 64, 16, SOURCES
    drafts = Drafts(target)
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    print(f"{'source':<44} {'T':>2} {'tag':<5} {'alpha':>7} {'95 %':>15} {'coverage':>8} {'E':>6} {'tok/s':>8}")
    for temperature in (0.0, 1.0):
        for text in ("none", *sources):
            if time.perf_counter() - began > budget:
                skipped.append(f"{text} at temperature {temperature:g}")
                continue
            source = NoSource() if text == "none" else read_source(text)
            generator = torch.Generator(device=check.device).manual_seed(0)
            capacity = max(len(r.prompt) for r in requests) + tokens + draft_length(source) + 2
            sampling = Sampling(temperature=temperature)
            drafter = drafts.drafter(source, batch=batch, capacity=capacity, sampling=sampling, generator=generator)
            loop = SpeculativeLoop(
                target=target,
                drafter=drafter,
                source=text,
                max_tokens=tokens,
                capacity=capacity,
                stop_ids=stops,
                sampling=sampling,
                batch=batch,
                generator=generator,
            )
            steps = [step for generated in loop.run(requests) for step in generated.steps]
            rows += [
                alpha_row(text, temperature, tag, [s for s in steps if s.tag == tag])
                for tag in sorted({step.tag for step in steps})
            ]
    return {"model": "random" if check.small else SMOLLM2, "rows": rows, "skipped": skipped, "batch": batch}


def alpha_row(source: str, temperature: float, tag: str, steps: list[Any]) -> dict[str, Any]:
    """Figures of one source on one set of prompts."""
    m = summarise(Tally.of_steps(steps), source=source, tag=tag)
    t = m.tally
    seconds = (t.draft_s or 0.0) + (t.verify_s or 0.0) + (t.host_s or 0.0) if t is not None else 0.0
    speed = (t.emitted_tokens or 0) / seconds if t is not None and seconds else None
    if source != "none":
        alpha = "-" if m.alpha.value is None else f"{m.alpha.value:.3f}"
        ends = "" if m.alpha.low is None or m.alpha.high is None else f"[{m.alpha.low:.3f}, {m.alpha.high:.3f}]"
        print(
            f"{source:<44} {temperature:>2g} {tag:<5} {alpha:>7} {ends:>15} {m.coverage or 0:>8.2f} "
            f"{m.tokens_per_step or 0:>6.3f} {speed or 0:>8.0f}"
        )
    return {
        "source": source,
        "temperature": temperature,
        "tag": tag,
        "alpha": m.alpha.value,
        "alpha_low": m.alpha.low,
        "alpha_high": m.alpha.high,
        "position_rates_conditional": m.position_rates_conditional,
        "coverage": m.coverage,
        "tokens_per_step": m.tokens_per_step,
        "steps": None if t is None else t.steps,
        "tokens_per_s": speed,
    }


def random_target() -> Llama:
    """A tiny model, for ``--small``."""
    torch.manual_seed(0)
    shape = LlamaShape(vocab_size=32, hidden_size=32, layers=3, heads=4, kv_heads=2, head_dim=8, ffn_size=48, tied=True)
    model = Llama(shape).eval()
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.5)
    return model


def random_requests() -> list[Request]:
    """Prompts that repeat themselves."""
    rng = np.random.default_rng(0)
    prompts = [np.tile(rng.integers(0, 32, 6), 3).tolist() for _ in range(4)]
    return [Request(id=str(i), prompt=tuple(p), tag="copy" if i % 2 else "open") for i, p in enumerate(prompts)]


def passes_section(check: Check, budget: float) -> dict[str, Any]:
    """Floor, c, v and memory of each model; a pass is a CUDA graph on a CUDA device.

    The sweep runs the layers as they are; one decode pass is also timed with its layers compiled.
    """
    if check.card is None:
        raise SpecplanError("the device's own section failed and no --gpu is given: no peaks to hold passes against")
    began = time.perf_counter()
    todo = SMALL_MODELS if check.small else MODELS
    swept: list[BenchedModel] = []
    fused: list[BenchedModel] = []
    notes: list[str] = []
    for n, (name, tp) in enumerate(todo):
        spec = load_model(name)
        model = benched_model(spec, lookup(check.dtype), 1 if check.small else None)
        job = BenchJob(
            device=str(check.device),
            dtype=check.dtype,
            tp=tp,
            batches=(1, 2) if check.small else (1, 4, 16, 64),
            widths=(1, 3) if check.small else (1, 2, 4, 8, 16, 25),
            contexts=(16,) if check.small else (512,),
            repeats=2 if check.small else 7,
            seconds=max(1.0, (budget - (time.perf_counter() - began)) / (len(todo) - n)),
        )
        decode = dataclasses.replace(job, batches=(1,), widths=(1,), repeats=4 * job.repeats, compiled=True)
        for kind, plan, into in (("layers as they are", job, swept), ("layers compiled", decode, fused)):
            if plan.compiled and check.device.type != "cuda":
                continue
            try:
                into.append(bench_model(model, plan, layers_of_model=len(spec.layers)))
            except Exception as error:  # a compiler's and a card's failures have no common class
                notes.append(f"{name} on {tp}, {kind}: {' '.join(str(error).split())[:300]}")
    entries = [model_entry(one, swept, fused, check.card) for one in swept]
    for entry in entries:
        print_model(entry)
    for note in notes:
        print(f"failed: {note}")
    if not entries:
        raise SpecplanError("no model was timed: " + "; ".join(notes))
    return {"models": entries, "notes": notes, "floor_limit": FLOOR_LIMIT, "dtype": check.dtype}


def model_entry(
    one: BenchedModel, swept: list[BenchedModel], fused: list[BenchedModel], card: Accelerator
) -> dict[str, Any]:
    """One model's figures."""
    rows = bench_rows(one, card, draft_of(one, swept))
    compiled = next((m for m in fused if (m.model.name, m.tp) == (one.model.name, one.tp)), None)
    decode = [
        {
            "layers": kind,
            "decode_s": row.reading.seconds,
            "decode_floor_s": row.floor_s,
            "decode_floor_fraction": row.floor_fraction,
            "c": row.c,
            "c_derived": row.c_derived,
        }
        for kind, found in (
            ("as they are", rows),
            ("compiled", () if compiled is None else bench_rows(compiled, card, draft_of(compiled, fused))),
        )
        for row in found
        if row.reading.positions == 1
    ]
    draft = draft_of(one, swept)
    return {
        "model": one.model.name,
        "tensor_parallel_size": one.tp,
        "title": one.title,
        "draft": None if draft is None else draft.model.name,
        "decode": decode,
        "ridge_positions": ridge_of(one.model, card),
        "rows": [
            {
                "batch": r.reading.batch,
                "width": r.reading.width,
                "positions": r.reading.positions,
                "context": r.reading.context_len,
                "seconds": r.reading.seconds,
                "spread": r.reading.spread,
                "floor_fraction": r.floor_fraction,
                "v": r.v,
                "v_derived": r.v_derived,
                "c": r.c,
                "c_derived": r.c_derived,
            }
            for r in rows
        ],
        "memory": [dataclasses.asdict(m) | {"ratio": m.ratio} for m in one.memory],
        "peak_bytes": one.peak_bytes,
        "skipped": list(one.skipped),
    }


def draft_of(target: BenchedModel, others: list[BenchedModel]) -> BenchedModel | None:
    """The smallest model on as many ranks, if the target is another."""
    same = [m for m in others if m.tp == target.tp]
    smallest = min(same, key=lambda m: m.memory[0].predicted_bytes, default=target)
    return None if smallest.model.name == target.model.name else smallest


def print_model(entry: dict[str, Any]) -> None:
    """Passes of one model, with the ridge where it falls."""
    print(f"\n{entry['title']}")
    print(f"{'batch':>6} {'width':>6} {'positions':>10} {'ms':>9} {'of floor':>9} {'v':>7} {'derived':>8}")
    past = False
    for r in sorted(entry["rows"], key=lambda r: r["positions"]):
        if r["positions"] > entry["ridge_positions"] and not past:
            print(f"{'':>6} ridge at {entry['ridge_positions']:.0f} positions")
            past = True
        v = "-" if r["v"] is None else f"{r['v']:.3f}"
        print(
            f"{r['batch']:>6} {r['width']:>6} {r['positions']:>10} {1e3 * r['seconds']:>9.3f} "
            f"{r['floor_fraction']:>9.1%} {v:>7} {r['v_derived']:>8.3f}"
        )
    for d in entry["decode"]:
        verdict = "reached" if d["decode_floor_fraction"] >= FLOOR_LIMIT else "not reached"
        c = "" if d["c"] is None else f"; c of {entry['draft']} {d['c']:.4f} measured, {d['c_derived']:.4f} derived"
        print(
            f"decode at batch 1, layers {d['layers']}: {1e3 * d['decode_s']:.3f} ms, {d['decode_floor_fraction']:.1%} "
            f"of the floor ({FLOOR_LIMIT:.0%} {verdict}){c}"
        )
    for m in entry["memory"]:
        size = "" if m["what"] == "weights" else f" {m['batch']} x {m['tokens']}"
        print(f"{m['what']}{size}: {m['ratio']:.4f} of the predicted bytes")
    for text in entry["skipped"]:
        print(f"not measured: {text}")


def ngram_section(check: Check, budget: float) -> dict[str, Any]:
    """One step of n-gram drafts for a batch, on the device and on the host, over batch and context."""
    began = time.perf_counter()
    window = NgramWindow(min_n=2, max_n=5, k=3)
    shapes = ((1, 256), (4, 256)) if check.small else (
        (1, 2048), (8, 2048), (64, 2048), (8, 32768), (64, 8192), (64, 32768), (256, 32768)
    )  # fmt: skip
    rows, skipped = [], []
    print(f"{'batch':>6} {'context':>8} {'device us':>10} {'graph us':>10} {'host us':>10} {'host/device':>12}")
    for batch, context in shapes:
        if time.perf_counter() - began > budget:
            skipped.append(f"batch {batch}, context {context}")
            continue
        row = ngram_row(check.device, window, batch, context)
        rows.append(row)
        device_s = row["graph_s"] or row["device_s"]
        graph = "-" if row["graph_s"] is None else f"{1e6 * row['graph_s']:.1f}"
        print(
            f"{batch:>6} {context:>8} {1e6 * row['device_s']:>10.1f} {graph:>10} {1e6 * row['host_s']:>10.1f} "
            f"{row['host_s'] / device_s:>12.2f}"
        )
    return {"rule": "min 2, max 5, k 3, earliest", "rows": rows, "skipped": skipped}


def ngram_row(device: torch.device, window: NgramWindow, batch: int, context: int) -> dict[str, Any]:
    """Medians of one shape; the drafts of both are compared."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 400, (batch, context))
    tokens = torch.from_numpy(ids.astype(np.int32)).to(device)
    lengths = torch.full((batch,), context, device=device)
    drafts, counts = window(tokens, lengths)
    device_s = statistics.median(timed(lambda: window(tokens, lengths), device) for _ in range(9))
    graph_s = None
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            window(tokens, lengths)
        graph.replay()
        graph_s = statistics.median(timed(graph.replay, device) for _ in range(9))
    proposer, k, _ = proposer_of(parse_source("ngram:min=2,max=5,k=3"))
    names = [str(i) for i in range(batch)]
    for name, row in zip(names, ids, strict=True):
        proposer.start_request(name, row.tolist())
    found = proposer.propose_batch(names, [k] * batch)
    for ours, draft, n in zip(found, drafts.tolist(), counts.tolist(), strict=True):
        if list(ours.tokens) != draft[:n]:
            raise SpecplanError(f"host and device draft differently: {list(ours.tokens)} and {draft[:n]}")
    host = torch.device("cpu")
    host_s = []
    for _ in range(9):
        for name in names:
            proposer.extend(name, [int(rng.integers(0, 400))])
        host_s.append(timed(lambda: proposer.propose_batch(names, [k] * batch), host))
    return {
        "batch": batch,
        "context": context,
        "device_s": device_s,
        "graph_s": graph_s,
        "host_s": statistics.median(host_s),
    }


def verifiers_section(check: Check, budget: float) -> dict[str, Any]:
    """The batched rules as multiples of a softmax, by ``benchmarks/verifiers.py``."""
    began = time.perf_counter()
    spec = importlib.util.spec_from_file_location("verifiers_bench", Path(__file__).with_name("verifiers.py"))
    if spec is None or spec.loader is None:
        raise SpecplanError("benchmarks/verifiers.py is not beside this script")
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    vocab, repeats = (256, 1) if check.small else (128_256, 9)
    rows = bench.chain_rows(check.device, vocab, repeats)
    skipped = []
    for branching in (1, 4, 8):
        if time.perf_counter() - began > budget:
            skipped.append(f"trees of {branching} children")
            continue
        rows += bench.tree_rows(branching, check.device, vocab, repeats)
    print(f"{'rule':<28} {'shape':<32} {'softmax ms':>11} {'rule ms':>9} {'ratio':>7} {'limit':>6}")
    for row in rows:
        limit = "" if row["limit"] is None else f"{row['limit']:.1f}"
        times = f"{1e3 * row['softmax_s']:>11.3f} {1e3 * row['rule_s']:>9.3f}"
        print(f"{row['rule']:<28} {row['shape']:<32} {times} {row['ratio']:>7.2f} {limit:>6}")
    return {"vocab": vocab, "rows": rows, "skipped": skipped}


def judged(sections: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Each figure that has a limit, with whether it holds: share of the floor, memory, and rules over a softmax.

    A decode pass is the compiled one where there is one, as an engine runs it.
    """
    found: list[dict[str, Any]] = []

    def note(what: str, value: float, limit: float, *, at_least: bool) -> None:
        holds = value >= limit if at_least else value <= limit
        found.append({"what": what, "value": value, "limit": limit, "at_least": at_least, "holds": bool(holds)})

    for model in sections.get("passes", {}).get("models", []):
        name = f"{model['model']} on {model['tensor_parallel_size']}"
        if model["decode"]:
            decode = model["decode"][-1]
            what = f"{name}: share of the bandwidth floor, layers {decode['layers']}"
            note(what, decode["decode_floor_fraction"], FLOOR_LIMIT, at_least=True)
        for memory in model["memory"]:
            note(f"{name}: {memory['what']} over their prediction", memory["ratio"], MEMORY_LIMIT, at_least=False)
    for row in sections.get("verifiers", {}).get("rows", []):
        if row["limit"] is not None:
            note(f"{row['rule']}, {row['shape']}: over a softmax", row["ratio"], row["limit"], at_least=False)
    return found


def print_judged(limits: list[dict[str, Any]]) -> None:
    """The limits, those that are missed first."""
    print("\n== limits")
    for one in sorted(limits, key=lambda one: one["holds"]):
        sign = ">=" if one["at_least"] else "<="
        print(f"{'holds ' if one['holds'] else 'MISSED'} {one['value']:8.3f} {sign} {one['limit']:.2f}  {one['what']}")


SECTIONS: tuple[tuple[str, float, Callable[[Check, float], dict[str, Any]]], ...] = (
    ("device", 0.10, device_section),
    ("passes", 0.50, passes_section),
    ("alpha", 0.25, alpha_section),
    ("ngram", 0.08, ngram_section),
    ("verifiers", 0.07, verifiers_section),
)


def default_output(place: dict[str, Any]) -> Path:
    """``measurements/`` of the checkout, by card and day."""
    card = "-".join("".join(c if c.isalnum() else " " for c in place["card"].lower()).split())
    return Path(__file__).resolve().parents[1] / "measurements" / f"gpu-check-{card}-{place['date'][:10]}.json"


def main(argv: list[str] | None = None) -> int:
    """Run all sections; 1 where one failed, or a limit that counts was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None, help="of the passes; bfloat16, on a CPU float32")
    parser.add_argument(
        "--gpu", default=None, help="profile whose peaks bound the passes; by the card's name if absent"
    )
    parser.add_argument("--seconds", type=float, default=280.0, help="of all sections together")
    parser.add_argument("--small", action="store_true", help="small shapes and a random model")
    parser.add_argument("--strict", action="store_true", help="a missed limit counts on a CPU too")
    parser.add_argument("-o", "--output", type=Path, default=None)
    args = parser.parse_args(argv)
    check_device(args.device)
    device = torch.device(args.device)
    place = environment(device)
    card = load_accelerator(args.gpu) if args.gpu else None
    if card is None and device.type == "cuda":
        card = datasheet(place["card"], float(torch.cuda.get_device_properties(device).total_memory))
    output = args.output or default_output(place)
    output.parent.mkdir(parents=True, exist_ok=True)
    for key, value in place.items():
        print(f"{key:>12}: {value}")
    print(f"{'peaks':>12}: {'as measured' if card is None else card.name}")
    document = {
        "command": "gpu_check",
        "environment": place,
        "inputs": {"device": args.device, "small": args.small, "seconds": args.seconds, "gpu": card and card.name},
        "provenance": {"seconds": "measured", "alpha": "measured", "floor_s": "derived", "v_derived": "derived"},
        "sections": {},
    }
    check = Check(
        device=device,
        dtype=args.dtype or ("bfloat16" if device.type == "cuda" else "float32"),
        small=args.small,
        card=card,
        seconds=args.seconds,
        output=output,
        document=document,
    )
    for name, share, run in SECTIONS:
        check.section(name, share, run)
    document["limits"] = judged(document["sections"])
    check.write()
    print_judged(document["limits"])
    counts = args.strict or device.type == "cuda"
    missed = counts and not all(one["holds"] for one in document["limits"])
    failed = [name for name, found in document["sections"].items() if "failed" in found or found.get("notes")]
    print(f"\nwrote {output}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    print(json.dumps(json.loads(render(document))))
    return 1 if failed or missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SpecplanError as error:
        sys.exit(f"gpu_check: {error}")
