"""What a person on call asks of two pages, a dated log and a page of another model."""

from pathlib import Path

import pytest

from specplan.decide.change import alert, break_in, changes
from specplan.decide.measured import summarise
from specplan.decide.pricing import Pair
from specplan.errors import InputError
from specplan.records.means import Means
from specplan.report.alert_rules import alert_rules
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.telemetry.logs import read_log
from specplan.telemetry.read import read_origin
from specplan.telemetry.summary import Ingested, ingested


def page(
    drafts: int, at: list[int], steps: int, seconds: float, model: str = "Qwen/Qwen3-32B", waiting: int = 0
) -> str:
    labels = f'engine="0",model_name="{model}"'
    counts = {"drafts": drafts, "draft_tokens": drafts * len(at), "accepted_tokens": sum(at)}
    lines = [f"vllm:spec_decode_num_{name}_total{{{labels}}} {n}" for name, n in counts.items()]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{i}"}} {n}' for i, n in enumerate(at)
    ]
    lines.append(f"vllm:inter_token_latency_seconds_count{{{labels}}} {steps}")
    lines.append(f"vllm:inter_token_latency_seconds_sum{{{labels}}} {seconds}")
    lines.append(f"vllm:num_requests_running{{{labels}}} 8")
    lines.append(f"vllm:num_requests_waiting{{{labels}}} {waiting}")
    lines.append(f"vllm:kv_cache_usage_perc{{{labels}}} 0.97")
    return "\n".join(lines) + "\n"


GOOD = (10000, [7200, 5180, 3720])
BAD = (10000, [2300, 530, 140])


def one(tmp_path: Path, first: str | None, second: str, pair: Pair | None = None, batch: int | None = None) -> Ingested:
    (tmp_path / "b.txt").write_text(second)
    if first is not None:
        (tmp_path / "a.txt").write_text(first)
    (seen,) = read_origin(str(tmp_path / "b.txt"), before=None if first is None else str(tmp_path / "a.txt"))
    (found,) = ingested([seen], pair=pair, batch=batch)
    return found


def pair() -> Pair:
    return Pair(target=load_model("qwen3-32b"), accelerator=load_accelerator("h100-sxm"))


def test_a_fall_between_two_pages_is_named_with_intervals(tmp_path: Path) -> None:
    both = (20000, [a + b for a, b in zip(GOOD[1], BAD[1], strict=True)])
    found = one(tmp_path, page(*GOOD, 10100, 300.0), page(*both, 20200, 600.0))
    assert found.earlier is not None
    named = {c.name: c for c in changes(found.earlier, found.measured)}
    assert named["alpha"].direction == named["acceptance length"].direction == "fell"
    assert named["coverage"].direction == "held"
    assert named["waste"].direction == "rose"
    assert named["alpha"].before.value == pytest.approx(0.719, abs=5e-4)
    assert named["alpha"].after.value == pytest.approx(0.231, abs=5e-4)
    assert alert("20%").fires(found.measured, found.earlier, None) is not None
    assert alert("alpha<0.5").fires(found.measured, None, None) is not None
    assert alert("alpha<0.2").fires(found.measured, None, None) is None
    assert alert("waste>0.95").fires(found.measured, None, None) is None
    means = summarise(None, source="x", means=Means(tokens_per_step=2.0, tokens_per_drafted_step=2.0))
    with pytest.raises(InputError, match="a fall needs --before"):
        alert("20%").fires(means, None, None)


def test_a_page_of_another_model_and_a_step_below_the_byte_floor_are_said(tmp_path: Path) -> None:
    found = one(tmp_path, None, page(*GOOD, 10100, 30.3, model="HuggingFaceTB/SmolLM2-135M"), pair())
    assert any("SmolLM2-135M" in n and "not of what runs" in n for n in found.measured.notes)
    assert found.point is not None
    assert found.point.impossible
    assert not found.point.pays
    assert "below the byte floor" in found.point.sentence
    own = one(tmp_path, None, page(*GOOD, 10100, 303.0), pair())
    assert not any("caution" in n for n in own.measured.notes)
    assert own.point is not None
    assert not own.point.impossible


def test_the_observed_step_decides(tmp_path: Path) -> None:
    """A step of 80 ms emits 2.6 tokens: slower than a plain step of 19 ms, whatever is expected of it."""
    slow = one(tmp_path, None, page(*GOOD, 10100, 808.0), pair()).point
    assert slow is not None
    assert slow.expected_speedup > 1.5
    assert slow.speedup == pytest.approx(slow.measured.tokens_per_step * slow.plain_s / 0.08)  # type: ignore[operator]
    assert not slow.pays
    fast = one(tmp_path, None, page(*GOOD, 10100, 303.0), pair()).point
    assert fast is not None
    assert fast.pays


def test_the_load_of_a_page_is_used_and_contradicted(tmp_path: Path) -> None:
    found = one(tmp_path, None, page(*GOOD, 10100, 303.0, waiting=5), pair())
    assert found.point is not None
    assert found.point.place.batch == 8
    assert any("5 requests wait beside 8 running with 97% of the cache" in n for n in found.measured.notes)
    other = one(tmp_path, None, page(*GOOD, 10100, 303.0), pair(), batch=64)
    assert any("--batch 64 is priced, the engine ran 8.0" in n for n in other.measured.notes)


def test_a_dated_log_breaks_where_its_acceptance_does() -> None:
    lines = []
    for minute in range(20):
        at = (288, 198, 131) if minute < 12 else (90, 20, 5)
        lines.append(
            f"INFO 12-01 10:{minute:02d}:00 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: "
            f"{1 + sum(at) / 381:.2f}, Accepted: {sum(at)} tokens, Drafted: 1143 tokens, Per-position acceptance rate: "
            + ", ".join(f"{a / 381:.3f}" for a in at)
        )
    (seen,) = read_log(lines, "log")
    (found,) = ingested([seen])
    assert found.found_break is not None
    assert found.found_break.when.endswith("10:12:00")
    assert "fell from 2.62 to 1.30" in found.found_break.sentence
    assert alert("20%").fires(found.measured, None, found.found_break) is not None
    steady = [(f"{i}", 381, 617 + (i % 3) * 20) for i in range(20)]
    assert break_in(steady) is None


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
def test_alert_rules_are_yaml_of_prometheus(engine: str) -> None:
    import yaml

    (group,) = yaml.safe_load(alert_rules(engine))["groups"]
    assert group["rules"]
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["expr"].count("(") == rule["expr"].count(")")
    with pytest.raises(InputError, match="expected one of"):
        alert_rules("other")
