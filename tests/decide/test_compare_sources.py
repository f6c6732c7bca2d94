"""Comparison of sources: verdicts, crossovers, what binds, capacity, and what moves the answer."""

import math
from dataclasses import replace

import numpy as np
import pytest

from specplan.decide.compare import Cell, CompareReport, compare, pays_ranges
from specplan.decide.cost import cost
from specplan.decide.sensitivity import sensitivity
from specplan.decide.step_setting import Setting, best_kappa, times
from specplan.decide.step_source import loads, on_engine, step_time
from specplan.errors import InputError
from specplan.formulas.parameters import experts_touched
from specplan.memory.vllm import VllmFlags, predict_vllm
from specplan.propose.spelling import read_source
from specplan.specs.catalog import load_model, load_target
from specplan.specs.hardware import load_accelerator
from specplan.timing.measured_steps import measured_table
from specplan.timing.step_time import machine
from specplan.timing.trust import ASSUMED, BORROWED, SPEEDUPS
from specplan.values.source import NO_SOURCE, Source

BIG, SMALL, DRAFT = (load_model(name) for name in ("llama3-70b", "llama3.1-8b", "llama3.2-1b"))
H100 = load_accelerator("h100-sxm")
NGRAM = read_source("ngram:coverage=.4,alpha=.8")


def draft(text: str) -> Source:
    return replace(read_source(text), model=DRAFT)


def cells_of(report: CompareReport, source: str) -> list[Cell]:
    return [c for c in report.cells if c.source == source]


@pytest.fixture(scope="module")
def big() -> CompareReport:
    sources = [NGRAM, draft("llama3.2-1b:alpha=.7"), read_source("eagle:alpha=.6..0.8")]
    return compare(BIG, H100, sources, tp=4, batches=[1, 8, 32, 64], contexts=[2048, 8192], price_per_hour=3.0)


def test_every_source_and_none_has_a_cell_at_every_batch_and_context(big: CompareReport):
    assert len(big.cells) == 4 * 4 * 2
    assert {c.source for c in big.cells} == {
        "none",
        "ngram:coverage=.4,alpha=.8",
        "llama3.2-1b:alpha=.7",
        "eagle:alpha=.6..0.8",
    }


def test_a_cells_figures_hang_together(big: CompareReport):
    for c in big.cells:
        assert c.step_s == pytest.approx(c.draft_s + c.verify_s + c.host_s)
        assert c.per_token_s == pytest.approx(c.step_s / c.emitted)
        assert c.tokens_s_request == pytest.approx(1 / c.per_token_s)
        assert c.tokens_s_gpu == pytest.approx(c.batch / c.per_token_s / 4)
        assert c.speedup == pytest.approx(c.plain_s / c.per_token_s)
        assert c.speedup_low <= c.speedup <= c.speedup_high
        assert c.per_token_low_s <= c.per_token_s <= c.per_token_high_s
        assert c.emitted_low <= c.emitted <= c.emitted_high
        assert c.cost_per_million == pytest.approx(3.0 / 3600 / c.tokens_s_gpu * 1e6)
        assert c.joules_per_token == pytest.approx(700 / c.tokens_s_gpu)


def test_without_a_source_the_speedup_is_one(big: CompareReport):
    assert {(c.speedup, c.emitted, c.draft_s, c.verdict) for c in cells_of(big, "none")} == {(1.0, 1.0, 0.0, "")}


def test_the_error_band_and_the_sources_range_widen_the_speedup(big: CompareReport):
    one = cells_of(big, "llama3.2-1b:alpha=.7")[0]
    assert one.speedup_high / one.speedup == pytest.approx(SPEEDUPS["vllm"].high)
    assert one.speedup_low / one.speedup == pytest.approx(SPEEDUPS["vllm"].low)
    ranged = cells_of(big, "eagle:alpha=.6..0.8")[0]
    assert ranged.speedup_high / ranged.speedup > SPEEDUPS["vllm"].high


def test_a_plain_step_is_what_step_time_says(big: CompareReport):
    on = machine(H100, tp=4)
    plain = step_time(on, NO_SOURCE, loads(BIG, NO_SOURCE, 4), 8, 2048, 0)
    assert {c.plain_s for c in big.cells if (c.batch, c.context_len) == (8, 2048)} == {float(plain.step_s)}


def test_the_best_draft_length_is_the_best_of_all(big: CompareReport):
    source = draft("llama3.2-1b:alpha=.7")
    setting = Setting(target=BIG, on=machine(H100, tp=4))
    of = loads(BIG, source, 4)
    for c in cells_of(big, source.text):
        every = [float(times(setting, source, of, c.batch, c.context_len, k).per_token_s) for k in range(1, 9)]
        assert c.per_token_s == pytest.approx(min(every), rel=1e-12)
        assert c.kappa == 1 + int(np.argmin(every))


def test_a_fixed_draft_length_is_kept():
    report = compare(SMALL, H100, [draft("llama3.2-1b:alpha=.7,k=6")], batches=[1, 128])
    assert {c.kappa for c in cells_of(report, "llama3.2-1b:alpha=.7,k=6")} == {6}


def test_verdicts_follow_from_the_ends_of_the_speedup():
    sources = [draft("llama3.2-1b:alpha=.9"), draft("llama3.2-1b:alpha=.05"), draft("llama3.2-1b:alpha=.25")]
    report = compare(SMALL, H100, sources)
    verdicts = {c.source: c.verdict for c in report.cells if c.verdict}
    assert list(verdicts.values()) == ["pays", "does not pay", "uncertain"]
    for c in report.cells:
        if c.verdict:
            assert (c.verdict == "pays") == (c.speedup_low > 1)
            assert (c.verdict == "does not pay") == (c.speedup_high < 1)
    assert report.pays
    assert not compare(SMALL, H100, sources[1:]).pays


def test_a_verdict_asks_that_some_source_pays_at_every_batch():
    eager_to_lose = [read_source("ngram:alpha=.3,k=8")]
    assert compare(SMALL, H100, eager_to_lose, batches=[1]).pays
    assert not compare(SMALL, H100, eager_to_lose, batches=[1, 200]).pays


def test_the_crossover_is_where_the_speedup_passes_one():
    source = read_source("ngram:coverage=.4,alpha=.8,k=8")
    report = compare(SMALL, H100, [source], contexts=[512])
    found = next(c for c in report.capacities if c.source == source.text)
    assert found.crossover_batch is not None
    assert found.pays_batches == ((1, found.crossover_batch - 1),)
    around = compare(SMALL, H100, [source], contexts=[512], batches=[found.crossover_batch - 1, found.crossover_batch])
    before, after = (c.speedup for c in cells_of(around, source.text))
    assert before > 1 >= after


def test_verifying_experts_is_dear_at_first_cheap_between_and_dear_again_past_the_ridge():
    # One request touches two experts of eight, a wide pass more; soon any pass reads all, and at last it computes.
    experts = load_model("mixtral-8x7b")
    source = read_source("ngram:alpha=.5,k=2")
    setting = Setting(target=experts, on=machine(H100, tp=2))
    batch, of = np.arange(1, 257), loads(experts, source, 2)
    ratio = times(setting, source, of, batch, 512, 2).verify_s / times(setting, NO_SOURCE, of, batch, 512, 0).verify_s
    cheapest = int(ratio.argmin())
    assert ratio[0] > 1.5
    assert cheapest < 40
    # From where a plain pass reads nearly all of them.
    assert experts_touched(8, 2, batch[cheapest]) > 0.95 * 8
    assert ratio[cheapest] < 1.1
    by_bytes = replace(setting, on=replace(setting.on, laws=None))  # measured kernels rise a little with each expert
    additive = (
        times(by_bytes, source, of, batch, 512, 2).verify_s / times(by_bytes, NO_SOURCE, of, batch, 512, 0).verify_s
    )
    assert additive.min() < 1.05
    assert ratio[-1] > 1.2
    assert pays_ranges(setting, source, of, 512, 256) == ((1, 256),)


def test_what_binds_is_what_costs_most():
    def binding(source: Source, target=SMALL, **where) -> str:
        return next(c.binding for c in compare(target, H100, [source], **where).cells if c.source == source.text)

    assert binding(draft("llama3.2-1b:alpha=.7,k=5")) == "draft cost"
    assert binding(read_source("ngram:coverage=.1,alpha=.9,k=3")) == "coverage"
    assert binding(read_source("ngram:alpha=.9,k=8"), batches=[150]) == "verify width"
    # What a drafted step adds on the host is a small share of a large model's step.
    assert binding(read_source("ngram:alpha=.5,k=3"), load_model("qwen2.5-32b"), batches=[1]) == "acceptance"
    assert binding(read_source("ngram-host:alpha=.9,k=3"), contexts=[131072], batches=[64]) == "KV capacity"
    # At 8 requests of 32k tokens the draft's own cache outweighs its weights and launches.
    assert binding(draft("llama3.2-1b:alpha=.8,k=3"), batches=[8], contexts=[1024]) == "draft cost"
    assert binding(draft("llama3.2-1b:alpha=.8,k=3"), batches=[8], contexts=[32768]) == "KV read"
    plain = compare(SMALL, H100, [NGRAM], contexts=[2048, 32768], batches=[1, 8]).cells
    named = {(c.context_len, c.batch): c.binding for c in plain if c.source == "none"}
    assert named[2048, 1] == "weights read"
    assert named[32768, 8] == "KV read"


def test_drafts_leave_less_room_and_matchers_hardly_any():
    report = compare(BIG, H100, [NGRAM, draft("llama3.2-1b:alpha=.7,k=3")], tp=4, contexts=[8192])
    none, ngram, model = report.capacities
    assert none.sequences_lost == 0
    assert none.throughput_ratio == pytest.approx(1)
    assert 0 <= ngram.sequences_lost <= 1
    # The same pool as `cost` and `blocks`, block by block.
    priced = cost(BIG, H100, draft=DRAFT, tp=4, kappa=3, max_model_len=8192, engine="vllm")
    assert priced.engine is not None
    assert priced.engine.pool_with_draft is not None
    assert none.sequences == priced.engine.pool.requests
    assert model.sequences == priced.engine.pool_with_draft.requests
    assert int(predict_vllm(BIG, H100, VllmFlags(tp=4, max_model_len=8192)).concurrency.best) == none.sequences


def test_a_model_that_does_not_fit_serves_nothing():
    report = compare(BIG, H100, [NGRAM])
    assert {c.sequences for c in report.capacities} == {0}
    assert all(math.isnan(c.throughput_ratio) for c in report.capacities)
    assert not any(c.fits for c in report.cells)


def test_sensitivity_is_sorted_by_what_moves_the_answer_most(big: CompareReport):
    widths = [s.width for s in big.sensitivity]
    assert widths == sorted(widths, reverse=True)
    by_name = {s.name: s for s in big.sensitivity}
    assert (by_name["alpha"].low, by_name["alpha"].high) == (0.6, 0.8)
    assert by_name["alpha"].speedup_low < by_name["alpha"].speedup_high
    assert all(s.low <= s.best <= s.high for s in big.sensitivity)
    assert "eagle" in big.sensitivity_of


def test_the_ends_of_a_swing_are_the_speedups_at_the_ends():
    setting = Setting(target=SMALL, on=machine(H100))
    at = {alpha: read_source(f"eagle:alpha={alpha}") for alpha in (0.65, 0.7, 0.75)}

    def speedup(source: Source, context: int = 2048) -> float:
        priced = on_engine(source, SMALL, setting.on.engine.name)
        plain = times(setting, NO_SOURCE, loads(SMALL, NO_SOURCE, 1), 4, context, 0).step_s
        return float(plain / times(setting, priced, loads(SMALL, priced, 1), 4, context, 3).per_token_s)

    source = on_engine(at[0.7], SMALL, setting.on.engine.name)
    swings = {s.name: s for s in sensitivity(setting, source, loads(SMALL, source, 1), 4, 2048, 3)}
    alpha, context = swings["alpha"], swings["context"]
    assert (alpha.low, alpha.best, alpha.high) == pytest.approx((0.65, 0.7, 0.75))
    assert (alpha.speedup_low, alpha.speedup_high) == pytest.approx((speedup(at[0.65]), speedup(at[0.75])))
    assert (context.speedup_low, context.speedup_high) == pytest.approx(
        (speedup(at[0.7], 1024), speedup(at[0.7], 4096))
    )
    for s in swings.values():
        assert s.low < s.best < s.high or s.best == 1, s.name


def test_one_card_has_no_collective_to_be_sensitive_to():
    report = compare(SMALL, H100, [NGRAM])
    assert "collective_latency_s" not in {s.name for s in report.sensitivity}


def test_in_the_bound_the_ends_are_the_two_bounds_and_nothing_has_a_host():
    source = draft("llama3.2-1b:alpha=.7,k=3")
    report = compare(SMALL, H100, [source], layer="roofline", batches=[1, 64])
    assert report.error_band is None
    assert not report.pays
    for c in cells_of(report, source.text):
        assert c.verdict == "uncertain"
        assert c.host_s == 0
        assert c.speedup_low <= c.speedup <= c.speedup_high
    modelled = compare(SMALL, H100, [source], batches=[1, 64])
    for bound, real in zip(report.cells, modelled.cells, strict=True):
        assert bound.step_s < real.step_s


def test_measured_tables_replace_the_law():
    source = draft("llama3.2-1b:alpha=.7,k=2")
    tables = {
        SMALL.name: measured_table([(1, 1, 0, 0.010), (1, 3, 0, 0.012)], "target"),
        "llama3.2-1b": measured_table([(1, 1, 0, 0.002)], "draft"),
    }
    report = compare(SMALL, H100, [source], layer="measured", tables=tables)
    cell = cells_of(report, source.text)[0]
    assert (cell.plain_s, cell.verify_s) == (pytest.approx(0.010), pytest.approx(0.012))
    assert cell.draft_s == pytest.approx(0.004)
    assert any("rows" in text for text in report.assumptions)


def test_borrowed_and_assumed_cards_have_wider_bands():
    bands = [compare(SMALL, load_accelerator(card), [NGRAM]).error_band for card in ("h100-sxm", "h100-pcie", "mi355x")]
    own = SPEEDUPS["vllm"].worst
    assert bands == pytest.approx([own, own + BORROWED, ASSUMED.worst])


def test_padding_and_foreign_vocabularies_are_warned_of():
    report = compare(SMALL, H100, [NGRAM, replace(draft("x:alpha=.5"), model=replace(DRAFT, vocab_size=32000))])
    assert any("misses cost width" in w for w in report.warnings)
    suffix = compare(SMALL, H100, [read_source("suffix:alpha=.6")], max_kappa=32)
    assert any("without drafted" in w for w in suffix.warnings)
    assert max(c.kappa for c in suffix.cells) <= 12
    assert any("vocabularies differ" in w and "32000" in w for w in report.warnings)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"batches": [0]}, "--batch 0"),
        ({"batches": []}, "--batch"),
        ({"contexts": [-1]}, "--context -1"),
        ({"max_kappa": 0}, "--max-k 0"),
        ({"max_kappa": 1000}, "--max-k 1000"),
        ({"gpu_memory_utilization": 1.5}, "--gpu-memory-utilization 1.5"),
        ({"gpu_memory_utilization": math.nan}, "--gpu-memory-utilization nan"),
        ({"price_per_hour": -1.0}, "--price -1"),
        ({"price_per_hour": math.nan}, "--price nan"),
        ({"tp": 3}, "does not divide the 32 attention heads"),
        ({"engine": "x"}, "unknown engine"),
        ({"layer": "x"}, "unknown layer"),
        ({"layer": "measured"}, "needs a table of step times"),
    ],
)
def test_bad_settings_are_one_line(wrong: dict, expected: str):
    with pytest.raises(InputError, match=expected) as caught:
        compare(SMALL, H100, [NGRAM], **wrong)
    assert "\n" not in str(caught.value)


def test_a_whole_grid_equals_its_single_cells():
    source = on_engine(NGRAM, SMALL, "vllm")
    grid = compare(SMALL, H100, [source], batches=[1, 16, 128], contexts=[512, 4096])
    for c in grid.cells:
        alone = compare(SMALL, H100, [source], batches=[c.offered], contexts=[c.context_len])
        assert c in alone.cells
    setting = Setting(target=SMALL, on=machine(H100))
    assert best_kappa(setting, source, loads(SMALL, source, 1), [1, 16], 512).shape == (2,)


def test_a_draft_that_leaves_no_room_is_no_answer_however_fast():
    # On 16 GiB an 8B model in 8 bits has room for its cache; with an 1B draft of 16 bits and its cache it has none.
    card = replace(load_accelerator("l40s"), name="small", memory_driver_bytes=None, memory_torch_bytes=13.2 * 2**30)
    target = load_target("llama3.1-8b", "fp8")
    report = compare(target, card, [draft("llama3.2-1b:alpha=.99,k=3")], contexts=[8192], batches=[1])
    plain, drafted = report.capacities
    assert plain.sequences >= 1 > drafted.sequences
    cell = next(c for c in report.cells if c.source != "none")
    assert not cell.fits
    assert "fit" in cell.verdict
