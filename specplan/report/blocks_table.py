"""`BlocksReport` and a log's comparison as JSON documents and as tables."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specplan.memory.blocks import BlocksReport, DraftPrice
from specplan.memory.prediction import PoolPrediction, RankTerms, Span
from specplan.memory.startup_check import StartupCheck
from specplan.memory.vllm_memory import Estimate
from specplan.report.json_document import whole
from specplan.units import GIB, format_bytes, format_gib

SOURCES: Final = {
    "weights_bytes": "derived",
    "activation_peak_bytes": "modelled",
    "non_torch_bytes": "modelled",
    "cuda_graph_bytes": "modelled",
    "kv_available_bytes": "derived",
    "num_gpu_blocks": "derived",
    "kv_tokens": "derived",
    "max_concurrency": "derived",
}


def _estimate(e: Estimate) -> dict[str, Any]:
    return {"low": whole(round(e.low)), "best": whole(round(e.best)), "high": whole(round(e.high)), "source": e.source}


def _figure(span: Span | None) -> dict[str, float] | None:
    return None if span is None else {"low": whole(span.low), "best": whole(span.best), "high": whole(span.high)}


def _pool(p: PoolPrediction) -> dict[str, Any]:
    rank = p.rank
    return {
        "total_bytes": _estimate(p.total),
        "requested_bytes": _estimate(p.requested),
        "weights_bytes": whole(round(rank.weights.best)),
        "activation_peak_bytes": _estimate(rank.activation_peak),
        "non_torch_bytes": _estimate(rank.non_torch),
        "cuda_graph_bytes": _estimate(rank.cuda_graph),
        "buffers_bytes": {name: whole(round(size)) for name, size in rank.buffers.items()},
        "kv_available_bytes": _estimate(rank.available),
        "kv_available_bytes_per_stage": [whole(round(r.available.best)) for r in p.ranks],
        "num_gpu_blocks": None if p.blocks is None else int(p.blocks.best),
        "kv_tokens": None if p.tokens is None else int(p.tokens.best),
        "max_concurrency": None if p.concurrency is None else p.concurrency.best,
        "bounds": {
            "num_gpu_blocks": _figure(p.blocks),
            "kv_tokens": _figure(p.tokens),
            "max_concurrency": _figure(p.concurrency),
        },
        "log_line": "\n".join(p.log_lines) if p.log_lines else None,
        "refusal": p.refusal,
        "max_model_len": p.max_model_len,
        "longest_max_model_len": p.longest,
        "kv_bytes_per_token": p.bytes_per_token,
        "weights_by_component_bytes": {
            "target": {name: whole(round(size)) for name, size in rank.target_weights.items()},
            "draft": {name: whole(round(size)) for name, size in rank.draft_weights.items()},
        },
        "groups": _groups(p),
        "extra": dict(p.extra),
    }


def _groups(p: PoolPrediction) -> list[dict[str, Any]]:
    if p.plan is None:
        return []
    return [
        {
            "layers": len(group.layers),
            "draft_layers": sum(layer.draft for layer in group.layers),
            "kind": group.layers[0].kind.value,
            "block_size": group.layers[0].block_size,
            "page_bytes": group.layers[0].page_bytes,
        }
        for group in p.plan.groups
    ]


def blocks_document(r: BlocksReport) -> dict[str, Any]:
    """The document that ``specplan blocks --json`` prints."""
    price = r.price
    return {
        "command": "blocks",
        "inputs": {
            "target": r.target,
            "draft": r.draft,
            "gpu": r.card,
            "engine": r.plain.engine,
            "engine_version": r.plain.version,
            "settings": dict(r.decided.settings),
        },
        "provenance": dict(SOURCES),
        "without_draft": _pool(r.plain),
        "with_draft": None if r.speculative is None else _pool(r.speculative),
        "draft_price": None
        if price is None
        else {
            "blocks": price.blocks,
            "tokens": price.tokens,
            "sequences": price.sequences,
            "share": price.share,
            "equivalent_bytes": whole(round(price.equivalent_bytes)),
            "memory_bytes": whole(round(price.memory_bytes)),
            "layout_bytes": whole(round(price.layout_bytes)),
        },
        "requests_together": {
            "length": r.decided.max_model_len,
            "slots": r.slots,
            "without_draft": r.together[0],
            "with_draft": None if r.speculative is None else r.together[1],
        },
        "binding_constraint": r.binding,
        "alternatives": [
            {
                "change": a.change,
                "num_gpu_blocks": a.blocks,
                "kv_tokens": a.tokens,
                "max_concurrency": a.concurrency,
                "tokens_back": a.tokens_back,
            }
            for a in r.alternatives
        ],
        "starts": r.starts,
        "assumptions": list(r.decided.assumptions),
        "not_modeled": list(r.decided.not_modeled),
    }


def print_blocks(r: BlocksReport, console: Console) -> None:
    """The table for people: each subtraction from budget to blocks, without and with the draft."""
    pools = [r.plain] if r.speculative is None else [r.plain, r.speculative]
    names = ["without draft"] if r.speculative is None else ["without draft", f"with {r.draft}"]
    title = escape(f"{r.target} on {r.card}, {r.plain.engine} {r.plain.version}")
    table = Table(title=title, title_justify="left")
    table.add_column("per rank, GiB")
    for name in names:
        table.add_column(escape(name), justify="right")
    table.add_column("source")
    origins: dict[str, None] = {}
    for label, cells, source in _rows(pools):
        kind, _, detail = source.partition(": ")
        table.add_row(label, *cells, escape(kind))
        if detail and kind in ("modelled", "assumed"):
            origins[f"{kind}: {detail}"] = None
    console.print(table)
    for pool, name in zip(pools, map(escape, names), strict=True):
        for line in pool.log_lines:
            console.print(f"{name}: [bold]{escape(line)}[/bold]", soft_wrap=True, highlight=False)
        if pool.refusal:
            console.print(f"{name}: [bold red]refused[/bold red]: {escape(pool.refusal)}", soft_wrap=True)
        if pool.refusal or pool.longest < pool.max_model_len:
            console.print(f"{name}: the largest max_model_len that starts is {pool.longest:,}")
    console.print(f"binding: {escape(r.binding)}")
    if r.speculative is not None:
        console.print(
            f"decoding together: {r.together[0]:,} requests without, {r.together[1]:,} with the draft, whose "
            f"{r.slots} slots each owns behind its tokens"
        )
    if r.price is not None:
        console.print(_price(r.price), soft_wrap=True)
    for a in r.alternatives:
        console.print(
            f"{escape(a.change)}: {a.blocks:,} blocks, {a.tokens:,} tokens ({a.tokens_back:+,}), "
            f"{a.concurrency:.2f} requests",
            soft_wrap=True,
        )
    for note in (*origins, *(f"assumed: {note}" for note in r.decided.assumptions)):
        console.print(f"[dim]{escape(note)}[/dim]", soft_wrap=True)
    console.print(f"[dim]not counted: {escape('; '.join(r.decided.not_modeled))}[/dim]", soft_wrap=True)


def _price(p: DraftPrice) -> str:
    if p.tokens < 0:
        # n-gram drafts turn asynchronous scheduling off (windows then reserve one batch); SGLang caps what runs.
        return (
            f"with the draft {-p.tokens:,} more tokens fit ({-p.share:.1%}), {-p.sequences:.2f} more requests of full "
            f"length, though it takes {format_gib(p.memory_bytes)} of memory: requests reserve less (fewer batches in "
            "flight, or fewer recurrent states)"
        )
    return (
        f"the draft costs {p.blocks:,} blocks = {p.tokens:,} tokens ({p.share:.1%}), {p.sequences:.2f} requests of "
        f"full length; worth {format_gib(p.equivalent_bytes)} of cache: {format_gib(p.memory_bytes)} of memory, "
        f"{format_gib(p.layout_bytes)} of layout"
    )


def _bounded(e: Estimate, sign: str = "") -> str:
    best = f"{sign}{e.best / GIB:,.2f}"
    return best if e.low == e.high else f"{best} ({e.low / GIB:.2f}-{e.high / GIB:.2f})"


def _count(span: Span | None, digits: int = 0) -> str:
    if span is None:
        return "refused"
    best = f"{span.best:,.{digits}f}"
    return best if span.low == span.high else f"{best} ({span.low:,.{digits}f}-{span.high:,.{digits}f})"


def _rows(pools: list[PoolPrediction]) -> Iterator[tuple[str, list[str], str]]:
    first = pools[-1]
    rank = first.rank
    if not rank.available.source.startswith("exact"):  # an explicit pool is subtracted from nothing
        yield from _subtractions(pools)
    yield "= for the cache", [_bounded(p.rank.available) for p in pools], rank.available.source
    for name in first.extra:
        if name.endswith("_bytes") and any(p.extra.get(name) for p in pools):
            yield name.removesuffix("_bytes").replace("_", " "), [format_bytes(p.extra[name]) for p in pools], "derived"
    if first.plan is not None or pools[0].plan is not None:
        layouts = [
            "refused"
            if p.plan is None
            else f"{max(p.plan.bytes_per_block):,}"
            + (f" in {len(p.plan.groups)} groups" if len(p.plan.groups) > 1 else "")
            for p in pools
        ]
        yield "bytes per block", layouts, "exact"
        per = ["refused" if p.plan is None else f"{p.plan.blocks_per_request:,}" for p in pools]
        yield f"blocks for {first.max_model_len:,} tokens", per, "exact"
    else:
        yield "bytes per token", [f"{p.bytes_per_token:,.0f} B" for p in pools], "exact"
    yield "blocks", [_count(p.blocks) for p in pools], "derived"
    yield "tokens", [_count(p.tokens) for p in pools], "derived"
    yield "requests of full length", [_count(p.concurrency, 2) for p in pools], "derived"


def _subtractions(pools: list[PoolPrediction]) -> Iterator[tuple[str, list[str], str]]:
    first = pools[-1]
    rank = first.rank
    yield "device memory", [_bounded(p.total) for p in pools], first.total.source
    yield "budget", [_bounded(p.requested) for p in pools], first.requested.source
    if rank.weights.source == "given":
        yield "- weights", [_bounded(p.rank.weights, "-") for p in pools], "given"
    else:
        yield "- target weights", [_total(p.rank.target_weights) for p in pools], "derived"
        if rank.draft_weights:
            yield "- draft weights", [_total(p.rank.draft_weights) for p in pools], "derived"
    for name in rank.buffers:
        yield f"- {name}", [_total({name: p.rank.buffers.get(name, 0.0)}) for p in pools], "exact"
    modelled: tuple[tuple[str, Callable[[RankTerms], Estimate]], ...] = (
        ("- activation peak", lambda r: r.activation_peak),
        ("- non-torch", lambda r: r.non_torch),
        ("- CUDA graphs", lambda r: r.cuda_graph),
    )
    for label, pick in modelled:
        terms = [pick(p.rank) for p in pools]
        if any(e.best for e in terms):
            yield label, [_bounded(e, "-") for e in terms], terms[-1].source


def _total(parts: Mapping[str, float]) -> str:
    size = sum(parts.values())
    return f"-{size / GIB:,.2f}" if size else "0"


def check_document(c: StartupCheck) -> dict[str, Any]:
    """The document that ``specplan blocks --from-log --json`` prints."""
    return {
        "command": "blocks",
        "inputs": {"log": c.source, "settings": dict(c.settings)},
        "engine": c.engine,
        "engine_version": c.version,
        "terms": [
            {
                "term": t.term,
                "what": t.what,
                "printed": t.printed,
                "printed_step": t.step,
                "predicted": t.predicted,
                "difference": t.difference,
                "by_rank": dict(t.by_rank),
                "verdict": t.verdict,
            }
            for t in c.terms
        ],
        "largest_difference": c.largest,
        "refusals": list(c.refusals),
        "would_start_with": list(c.alternatives),
        "notes": list(c.notes),
        "lines": c.lines,
        "assumptions": list(c.assumptions),
        "not_modeled": list(c.not_modeled),
    }


def print_check(c: StartupCheck, console: Console) -> None:
    """Predicted beside printed, term by term."""
    title = f"{c.source}: {c.engine} {c.version or '(version not printed)'}, {c.lines:,} lines"
    table = Table(title=escape(title), title_justify="left")
    for name in ("term", "printed", "predicted", "difference", "verdict"):
        table.add_column(name, justify="left" if name in ("term", "verdict") else "right")
    for t in c.terms:
        is_bytes = t.term.endswith("_bytes")
        shown = [_value(v, is_bytes) for v in (t.printed, t.predicted)]
        gap = "" if t.difference is None else (_value(t.difference, is_bytes, signed=True))
        table.add_row(t.what, *shown, gap, t.verdict)
    console.print(table)
    for words in c.refusals:
        console.print(f"[bold red]refused[/bold red]: {escape(words)}", soft_wrap=True)
    for way in c.alternatives:
        console.print(f"would start with {escape(way)}", soft_wrap=True)
    if c.largest:
        console.print(f"largest difference: {escape(c.largest)}", soft_wrap=True)
    for note in (*c.notes, *c.assumptions):
        console.print(f"[dim]{escape(note)}[/dim]", soft_wrap=True)


def _value(value: float | None, is_bytes: bool, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    sign = "+" if signed else ""
    if is_bytes:
        return f"{value / GIB:{sign},.2f} GiB"
    return f"{value:{sign},.0f}" if float(value).is_integer() else f"{value:{sign},.2f}"
