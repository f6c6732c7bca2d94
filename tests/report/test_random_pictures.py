"""Text boxes of pictures of random sources, widths and looks: apart, on the page, and no leader through one."""

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drawn import all_texts
from drawn import drawn as source
from matplotlib.figure import Figure

from specplan import capacity, compare, simulate
from specplan.decide.measured_speed import MeasuredSpeed
from specplan.decide.plane import Plane, plane
from specplan.decide.pricing import Setting
from specplan.decide.sweep import default_axis, sweep
from specplan.errors import InputError
from specplan.report.compare_plot import draw_speeds, draw_throughput
from specplan.report.drawing import LEGENDS, STYLES
from specplan.report.label_placement import LEADER
from specplan.report.picture import style
from specplan.report.plane_plot import draw_planes
from specplan.report.queue_plot import draw_pareto, draw_queue, draw_rates
from specplan.report.sweep_plot import draw_sweep

NAMES = ("llama3.2-1b", "qwen3-0.6b", "eagle", "ngram", "suffix", "sglang-ngram", "a-draft-of-my-own-with-a-long-name")
KINDS = ("plane", "planes", "kappa", "batch", "coverage", "context", "compare", "speeds", "queue", "pareto", "rates")


def sources(rng: np.random.Generator) -> list[Any]:
    chosen = rng.permutation(NAMES)[: int(rng.integers(1, 7))]
    return [
        source(
            name=str(name), target=str(rng.choice(["llama3-8b", "llama3-70b"])) if i % 2 else "",
            kappa=int(rng.integers(1, 9)), c=float(0.4 * rng.random() ** 2) if i % 2 else 0.0,
            alpha=float(rng.random()),
            coverage=1.0 if i % 2 else float(0.1 + 0.9 * rng.random()), verify=float(1 + 0.3 * rng.random()),
        )
        for i, name in enumerate(chosen)
    ]  # fmt: skip


@lru_cache(maxsize=1)
def served() -> Any:
    found = simulate("llama3-8b", sources=["none", "ngram:alpha=.6,k=3"], rate=9, input_len=300, output_len=30,
                              requests=60, keep="requests")  # fmt: skip
    return found._kept("requests")


@lru_cache(maxsize=1)
def reached() -> Any:
    return capacity("llama3-8b", sources=["none", "ngram:alpha=.6,coverage=.4,k=3"], rate=20, input_len=500,
                             output_len=30, ttft="p95=100ms", requests=60)  # fmt: skip


def measured(rng: np.random.Generator) -> list[MeasuredSpeed]:
    found = []
    for name in rng.permutation(NAMES)[: int(rng.integers(1, 7))]:
        s, width = float(0.4 + 2 * rng.random()), float(0.3 * rng.random())
        of: Any = SimpleNamespace(source=str(name), tag=str(rng.choice(["copy", "open", ""])))
        found.append(MeasuredSpeed(measured=of, kappa=3, tokens_per_s=s, plain_tokens_per_s=1.0, draft_s=0.0,
                                   verify_s=1.0,
                                   host_s=0.0, c=None, draft_step_ratio=0.0, v=1.0, widths=(),
                                   predicted_emitted=s * float(0.8 + 0.4 * rng.random()), predicted_step_s=1.0,
                                   speedup_low=s - width, speedup_high=s + width))  # fmt: skip
    return found


def picture(kind: str, rng: np.random.Generator, **look: Any) -> tuple[Figure, list[Plane]]:
    if kind in ("plane", "planes"):
        planes = [
            plane(sources(rng), kappa=int(rng.integers(1, 9)), scale=str(rng.choice(["linear", "log"])),  # type: ignore[arg-type]
                  verify=float(1 + rng.random() / 3), batch=64, ridge=295.0, title=f"target {i}")
            for i in range(1 if kind == "plane" else int(rng.integers(2, 5)))
        ]  # fmt: skip
        return draw_planes(planes, **look), planes
    if kind in ("kappa", "batch", "coverage", "context"):
        pairs = [(s, Setting(ridge=295.0)) for s in sources(rng)]
        return draw_sweep(sweep(kind, pairs, xs=default_axis(kind), batch=8 if kind == "kappa" else 1), **look), []  # type: ignore[arg-type]
    if kind == "compare":
        batches = sorted({int(b) for b in 2 ** rng.integers(0, 10, size=5)})
        found = compare("llama3-8b", sources=["ngram:coverage=.4,alpha=.6", "llama3.2-1b:alpha=.7"], batch=batches,
                                 context_len=[2048, 8192][: int(rng.integers(1, 3))])  # fmt: skip
        return draw_throughput(found, **look), []
    if kind == "speeds":
        return draw_speeds(measured(rng), **look), []
    if kind == "queue":
        return draw_queue(served(), **look), []
    return (draw_pareto if kind == "pareto" else draw_rates)(reached(), **look), []


def random_look(rng: np.random.Generator) -> dict[str, Any]:
    titles = [None, None, "", "A heading that says a good deal more than there is room for in one column of a paper"]
    return {
        "width": float(rng.choice([3.0, 3.4, 5.0, 6.0, 9.0, 12.0])) if rng.random() < 0.8 else None,
        "title": titles[int(rng.integers(4))],
        "legend": str(rng.choice(LEGENDS)),
        "style": str(rng.choice(STYLES)),
    }


def check(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind, look = KINDS[seed % len(KINDS)], random_look(rng)
    figure, planes = picture(kind, rng, **look)
    with style():
        measure(figure, planes, f"{kind} {look}: ", look["width"])


def measure(figure: Figure, planes: list[Plane], said: str, inches: float | None) -> None:
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in all_texts(figure)]
    width, height = figure.get_size_inches() * figure.dpi
    assert inches is None or width == pytest.approx(inches * figure.dpi)
    for i, (text, box) in enumerate(boxes):
        assert box.x0 >= -0.5, said + text
        assert box.y0 >= -0.5, said + text
        assert box.x1 <= width + 0.5, said + text
        assert box.y1 <= height + 0.5, said + text
        for other, second in boxes[i + 1 :]:
            assert not box.overlaps(second), f"{said}{text!r} over {other!r}"
    for axes in figure.axes:
        for line in axes.lines:
            if line.get_label() == LEADER:
                (x0, y0), (x1, y1) = line.get_transform().transform(np.asarray(line.get_xydata(), dtype=float))
                share = np.linspace(0.02, 0.96, 60)
                for text, box in boxes:
                    inside = (
                        (box.x0 < x0 + share * (x1 - x0)) & (x0 + share * (x1 - x0) < box.x1)
                        & (box.y0 < y0 + share * (y1 - y0)) & (y0 + share * (y1 - y0) < box.y1)
                    )  # fmt: skip
                    assert not inside.any(), f"{said}a leader runs through {text!r}"
    for drawn, axes in zip(planes, (a for a in figure.axes if a.axison), strict=False):
        even = next((c for c in drawn.contours if c.speedup == 1.0), None)
        for text in axes.texts:
            side = {"s": 1, "f": -1}.get(text.get_text()[:1]) if "than\nplain" in text.get_text() else None
            if side and even is not None:
                box = text.get_window_extent(renderer)
                corners = axes.transData.inverted().transform(
                    [(x, y) for x in (box.x0, box.x1) for y in (box.y0, box.y1)]
                )
                at = np.interp(corners[:, 0], even.alpha, np.nan_to_num(even.c))
                assert (side * (corners[:, 1] - at) > 0).all(), said + text.get_text()


@pytest.mark.parametrize("seed", range(11))
def test_texts_of_random_pictures_stay_apart_and_on_the_page(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(11, 211))
def test_texts_of_two_hundred_random_pictures_stay_apart_and_on_the_page(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize(
    ("look", "said"),
    [
        ({"width": 2.9}, "--width 2.9: a picture is 3 to 40 inches wide"),
        ({"legend": "below"}, "--legend below: expected table, inline or none"),
        ({"style": "poster"}, "--style poster: expected paper, slide or dark"),
        ({"font_size": 60.0}, "--font-size 60: expected 5 to 40 points"),
        ({"width": 3.4, "font_size": 12.0}, "at most 8.1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(look: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        draw_planes([plane([], kappa=1)], **look)
