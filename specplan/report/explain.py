"""`specplan explain`: a symbol's formula, file and worked example, read from the docstring that documents it."""

import doctest
import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from specplan.errors import NotFoundError
from specplan.files.text import near_misses

SYMBOLS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    # symbol: (formulas module.function, other spellings)
    "E": ("emitted.expected_emitted", ("expected-emitted", "tokens-per-step", "tau")),
    "yield": ("emitted.mixture_yield", ("coverage", "mixture")),
    "speedup": ("speedup.speedup", ("s",)),
    "E-hazard": ("emitted.expected_emitted_hazard", ("hazard",)),
    "E-hit": ("emitted.expected_emitted_hit", ("hit-then-continue",)),
    "E-tree": ("tree.expected_emitted_tree", ("tree",)),
    "alpha": ("acceptance.overlap", ("acceptance",)),
    "mean-acceptance-length": ("acceptance.mean_acceptance_length", ("mal",)),
    "pooled-rate": ("acceptance.pooled_rate_of_alpha", ("accepted-per-drafted",)),
    "best-kappa": ("draft_length.best_kappa", ("kappa", "k")),
    "v": ("speedup.verify_factor", ("verify-factor",)),
    "alpha-break-even": ("indifference.break_even_alpha", ("break-even",)),
    "alpha-dagger": ("indifference.free_draft_tie", ("α†", "tie", "free-draft-tie")),
    "contour": ("indifference.contour_c", ("indifference",)),
    "c": ("roofline.cost_ratio", ("cost-ratio",)),
    "N-stream": ("parameters.streamed_params", ("streamed",)),
    "N-resident": ("parameters.resident_params", ("resident",)),
    "gathered": ("parameters.gathered_params", ()),
    "experts-touched": ("parameters.experts_touched", ("N(t)", "experts")),
    "floor": ("roofline.decode_floor_s", ("decode-floor",)),
    "ridge": ("roofline.ridge_positions", ()),
    "ridge-batch": ("speedup.ridge_batch", ()),
    "bound": ("step.bound_s", ("roofline",)),
    "step-time": ("step.pass_terms", ("pass-time",)),
    "kernels": ("pass_kernels.kernels_of", ("pass-kernels",)),
    "gemm": ("kernels.gemm_s", ("matmul",)),
    "attention-time": ("kernels.attention_s", ()),
    "experts-time": ("kernels.experts_s", ("fused-experts",)),
    "reduce": ("kernels.reduce_s", ()),
    "all-reduce": ("step.all_reduce_s", ("collective",)),
    "verified-positions": ("roofline.verified_positions", ("B(kappa+1)", "width")),
    "kv-per-token": ("kv_cache.kv_bytes_per_token", ("kv",)),
    "kv-stored": ("kv_cache.kv_bytes_stored", ()),
    "kv-read": ("kv_cache.kv_bytes_read", ()),
    "pool": ("kv_cache.kv_pool_bytes", ("kv-pool",)),
    "pool-tokens": ("kv_cache.pool_tokens", ("tokens",)),
    "sequences": ("kv_cache.pool_sequences", ("concurrency",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a docstring says of a symbol. `example` pairs each statement with what it prints."""

    symbol: str
    spellings: tuple[str, ...]
    function: str
    file: str
    line: int
    summary: str
    formula: str
    source: str
    example: tuple[tuple[str, str], ...]


_GREEK: Final = {"α†": "alpha-dagger", "α": "alpha", "κ": "kappa", "τ": "tau", "γ": "alpha"}
"""Letters that stand alone, as a symbol; gamma is what papers call acceptance."""
_HEADS: Final = {
    # column header or figure of a table: symbol
    "k": "best-kappa", "tokens/step": "E", "e drafted": "E-hit", "steps": "yield", "speedup": "speedup",
    "step": "step-time", "ms/token": "step-time", "tok/s req": "step-time", "tok/s gpu": "step-time",
    "draft": "c", "verify": "v", "verify pass": "v", "accepted/drafted": "pooled-rate", "ratio": "speedup",
    "fit": "sequences", "lost": "sequences", "pays at": "alpha-break-even", "stops at": "ridge-batch",
    "bound by": "bound", "kv/token": "kv-per-token", "total": "N-resident", "per token": "N-stream",
    "weights": "N-resident", "blocks": "pool", "plain step": "step-time", "batch": "verified-positions",
    "context": "kv-read", "coverage": "yield", "drafted": "pooled-rate", "accepted": "pooled-rate",
    "published alpha": "alpha", "alpha [95 %]": "alpha", "alpha by position (measured)": "alpha",
    "best k": "best-kappa", "best single k": "best-kappa", "speedup (derived)": "speedup", "speedup at low": "speedup",
    "at high": "speedup", "step cost": "step-time", "tokens/s": "step-time", "its mean": "speedup",
    "wasted": "pooled-rate", "floor of one pass": "floor", "requests": "sequences",
}  # fmt: skip
"""What the tables call a figure -> the symbol that explains it."""


WORDS: Final = {
    "source": "what drafts, as --source spells it; none is plain decoding",
    "run": "requests that run at a time: those offered, or what fits the cache",
    "verdict": "pays where the ratio is above 1 over its whole band, does not pay where below over all of it",
    "j/token": "energy per emitted token: board power of the cards over tokens per second (derived)",
    "per m": "price of a million emitted tokens at --price per card and hour (derived)",
    "input": "an input of the answer, moved from its low to its high end",
    "figure is": "exact, derived, modelled, measured or assumed: where a figure comes from",
    "needed": "value at which two sources are worth the same",
    "given": "value that the source states",
    "best at": "where on the axis the speedup is highest",
    "at the ends": "speedup at both ends of the axis",
    "mean": "speedup at the best length of each batch, over the batches",
    "batches": "batches that one draft length is best for",
    "tag": "group of requests, as the trace names it",
    "gb/s": "memory bandwidth of the card's datasheet, in 10^9 bytes per second",
    "16-bit tflop/s": "dense matrix rate of the card's datasheet in bfloat16 or float16",
    "tdp w": "board power of the card's datasheet, in watts",
    "driver": "memory that the driver reports",
    "torch": "memory that torch reports, which vLLM multiplies",
    "format": "how weights are stored",
    "aliases": "other names that are understood",
}
"""Columns that hold no formula, and what they say."""


def _key(symbol: str) -> str:
    return re.sub(r"[\s_]+", "-", symbol.strip().lower())


def explain_symbol(symbol: str) -> Explanation:
    """The explanation of `symbol` or one of its other spellings.

    Raises
    ------
    NotFoundError
        For a symbol that the table does not hold; the message lists those that it does.

    Examples
    --------
    >>> explain_symbol("alpha_dagger").function
    'specplan.formulas.indifference.free_draft_tie'
    """
    wanted = _key(_HEADS.get(symbol.strip().lower(), _GREEK.get(symbol.strip(), symbol)))
    for name, (path, spellings) in SYMBOLS.items():
        if wanted in {_key(name), *map(_key, spellings), path.rpartition(".")[2].replace("_", "-")}:
            return _read(name, path, spellings)
    known = [s for name, (_, others) in SYMBOLS.items() for s in (name, *others)]
    near = near_misses(symbol, [*known, *_HEADS, *WORDS])
    raise NotFoundError(f"no symbol {symbol!r}{near or ';'} all are listed by specplan explain: {', '.join(SYMBOLS)}")


_LETTERS: Final = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "kappa": "κ",
    "dagger": "†",
    "sum": "Σ",
    "prod": "Π",
    "cdot": "·",
    "le": "≤",
    "ge": "≥",
    "quad": " ",
    **dict.fromkeys(("left", "right", "bigl", "bigr", "Bigl", "Bigr"), ""),
}


_SOURCE: Final = re.compile(r"Source: (.+?)(?:\n\s*\n|\Z)", re.DOTALL)


def _readable(tex: str) -> str:
    r"""A formula as plain text.

    >>> _readable(r"\frac{E(\alpha, \kappa)}{1 + \kappa c}")
    '(E(α, κ)) / (1 + κ c)'
    """
    text = tex
    while (simpler := re.sub(r"\\t?frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1) / (\2)", text)) != text:
        text = simpler
    text = re.sub(r"\\mathrm\{([^{}]*)\}|\\text\{([^{}]*)\}", r"\1\2", text)
    text = re.sub(r"\\([A-Za-z]+)", lambda m: _LETTERS.get(m[1], m[1]), text)
    return " ".join(re.sub(r"\\[,;!]", " ", text).split())


def _read(name: str, path: str, spellings: tuple[str, ...]) -> Explanation:
    module_name, _, function_name = path.rpartition(".")
    module = importlib.import_module(f"specplan.formulas.{module_name}")
    function: Callable[..., Any] = getattr(module, function_name)
    doc = inspect.getdoc(function) or ""
    _, start = inspect.getsourcelines(function)
    formulas = re.findall(r"^\.\. math:: (.+(?:\n[ \t]+.+)*)", doc, re.MULTILINE)
    # A function that names no source of its own has its module's.
    source = next((m for text in (doc, inspect.getdoc(module) or "") if (m := _SOURCE.search(text))), None)
    examples = doctest.DocTestParser().get_examples(doc)
    return Explanation(
        symbol=name,
        spellings=spellings,
        function=f"{module.__name__}.{function_name}",
        file=f"specplan/formulas/{module_name}.py",
        line=start,
        summary=" ".join(doc.partition("\n\n")[0].split()),
        formula="; ".join(_readable(f) for f in formulas),
        source="" if source is None else " ".join(source[1].split()),
        example=tuple((e.source.rstrip(), e.want.rstrip()) for e in examples),
    )
