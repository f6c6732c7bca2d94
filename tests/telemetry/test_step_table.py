"""A server's pages and benchmarks as a measured table: what ran comes back as it was timed."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import specplan
from specplan.cli.app import main
from specplan.errors import InputError
from specplan.telemetry.read import read_origin
from specplan.telemetry.step_table import served_point, step_table
from specplan.timing.measured_steps import load_measured_table

Page = Callable[..., Path]


def law(batch: float, width: float) -> float:
    """Seconds of a step of the server that the pages are of."""
    return 6e-3 + 4e-5 * batch * width + (2e-3 if width > 1 else 0.0)


@pytest.fixture
def page(tmp_path: Path) -> Page:
    """A metrics page of vLLM after 1,000 iterations of `batch` requests, drafting `kappa` tokens where above 0."""

    def written(batch: int, kappa: int = 0, *, timed: bool = True, counted: bool = True) -> Path:
        steps = 1000 * batch
        rows = {"time_to_first_token_seconds_count": 0, "num_requests_running": batch}
        if timed:
            rows |= {"inter_token_latency_seconds_sum": law(batch, kappa + 1) * steps,
                     "inter_token_latency_seconds_count": steps}  # fmt: skip
        if counted:
            rows["iteration_tokens_total_count"] = 1000
        if kappa:
            of = "spec_decode_num_"
            rows |= {f"{of}drafts_total": steps, f"{of}draft_tokens_total": kappa * steps,
                     f"{of}accepted_tokens_total": steps}  # fmt: skip
        path = tmp_path / f"{batch}-{kappa}-{timed}-{counted}.txt"
        path.write_text("".join(f'vllm:{name}{{model_name="m"}} {value}\n' for name, value in rows.items()))
        return path

    return written


def test_steps_of_pages_at_several_loads_come_back_as_the_server_took_them(page: Page, tmp_path: Path) -> None:
    pages = [page(batch, kappa) for batch in (1, 8, 64) for kappa in (0, 3)]
    out = tmp_path / "steps.json"
    with pytest.raises(SystemExit) as ended:
        main(["ingest", *map(str, pages), "--context", "1", "--step-table", str(out)])
    assert not ended.value.code
    table = load_measured_table(out)
    for batch in (1, 4, 30, 64):
        for width in (1, 4):
            assert float(table.time_s(batch, width, 1)) == pytest.approx(law(batch, width), rel=1e-6)
    found = specplan.compare(
        "llama3-8b", sources="llama3.2-1b:alpha=.5,k=3", layer="measured", measured=[f"llama3-8b={out}"],
        batch=[1, 16], context_len=1,
    )  # fmt: skip
    for cell in (c for c in found.cells if c.source != "none"):
        emitted = sum(0.5**i for i in range(4))
        expected = emitted * law(cell.batch, 1) / law(cell.batch, 4)  # nothing for the draft: it is inside
        assert cell.speedup == pytest.approx(expected, rel=1e-6)


def test_a_table_without_spare_rows_claims_no_band_of_its_own(page: Page, tmp_path: Path) -> None:
    observed = [o for batch in (8, 64) for o in read_origin(str(page(batch)))]
    out = tmp_path / "steps.json"
    out.write_text(json.dumps(step_table(observed)))
    assert np.isnan(load_measured_table(out).worst_residual)
    found = specplan.compare("llama3-8b", sources="ngram:alpha=.5,k=3", layer="measured", measured=[f"llama3-8b={out}"])
    assert any("an assumption: a measured table with no more rows than coefficients" in note
               for note in found.to_dict()["assumptions"])  # fmt: skip


BENCH = {"mean_itl_ms": 20.0, "mean_tpot_ms": 9.0, "max_concurrency": 16, "duration": 60.0, "output_throughput": 900.0}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (BENCH, "2.22 tokens per answer"),
        ({**BENCH, "mean_itl_ms": 9.1, "max_concurrency": None}, "no mean batch"),
        ({key: value for key, value in BENCH.items() if "itl" not in key}, "no mean time of a step"),
    ],
)
def test_what_a_benchmark_lacks_is_named(tmp_path: Path, result: dict[str, float], expected: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(result))
    (seen,) = read_origin(str(path))
    assert expected in str(served_point(seen))
    with pytest.raises(InputError, match="no step to write a table of"):
        step_table([seen])


def test_a_plain_benchmark_gives_a_plain_step(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({**BENCH, "mean_itl_ms": 9.1}))
    (row,) = step_table(read_origin(str(path)))["rows"]
    assert (row["batch"], row["width"], row["seconds"]) == (16, 1, pytest.approx(9.1e-3))


def test_pages_without_times_or_batches_are_left_out_by_name(page: Page) -> None:
    observed = [*read_origin(str(page(8, 3))), *read_origin(str(page(4, 3, timed=False)))]
    found = step_table(observed)
    assert len(found["rows"]) == 1
    assert "no mean time of a step" in found["left_out"][0]
    with pytest.raises(InputError, match="no spec_decode counters"):
        read_origin(str(page(8, timed=False)))


@pytest.mark.parametrize("count", [1e30, 0.5, 2**60])
def test_a_count_of_a_benchmark_is_whole_and_one_that_can_be(tmp_path: Path, count: float) -> None:
    path = tmp_path / "bench.json"
    counts = {"spec_decode_num_drafts": count, "spec_decode_draft_tokens": 30, "spec_decode_accepted_tokens": 10}
    path.write_text(json.dumps({**BENCH, **counts, "spec_decode_acceptance_length": 2.0}))
    with pytest.raises(InputError, match="spec_decode_num_drafts must be a whole number"):
        read_origin(str(path))
