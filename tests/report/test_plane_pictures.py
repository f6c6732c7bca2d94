"""Pictures of planes and sweeps: nothing covers anything else, all is said in words, and files come out by suffix."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from drawn import all_texts
from drawn import drawn as source
from matplotlib import image as mpimg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from specplan.decide.plane import plane
from specplan.decide.pricing import Setting
from specplan.decide.sweep import default_axis, sweep
from specplan.errors import InputError
from specplan.report.label_placement import lanes, overlapping
from specplan.report.picture import DARK, LOOKS, LOSE, WIN, save
from specplan.report.plane_plot import draw_planes
from specplan.report.sweep_plot import draw_sweep

DENSE_8B = source(name="llama3.2-1b", target="llama3-8b", kappa=3, c=0.164664, alpha=0.7, c_origin="derived")
DENSE_70B = source(name="llama3.2-1b", target="llama3-70b", kappa=3, c=0.01778, alpha=0.7, c_origin="derived")
NGRAM = source(
    name="ngram",
    kappa=3,
    c=0.0,
    alpha=0.8,
    alpha_low=0.74,
    alpha_high=0.85,
    coverage=0.35,
    alpha_origin="measured",
)
SUFFIX = source(name="suffix", kappa=8, c=0.0, hit=0.45, continuation=0.85, coverage=0.7, verify=1.05)
TREE = source(name="sglang-ngram", kappa=4, c=0.0, alpha=0.6, coverage=0.6, nodes=8)
FREE_8B = source(name="llama3.2-1b", target="llama3-8b", kappa=3, c=0.164664)
FREE_70B = source(name="llama3.2-1b", target="llama3-70b", kappa=3, c=0.01778)
LOSER = source(name="loser", kappa=3, c=0.15, alpha=0.05)

SCENES: dict[str, list[Any]] = {
    "free acceptance": [plane([FREE_8B, FREE_70B], kappa=3)],
    "points": [plane([DENSE_8B, DENSE_70B, NGRAM, SUFFIX], kappa=3)],
    "crowded": [plane([DENSE_8B, DENSE_70B, NGRAM, SUFFIX, TREE, FREE_8B, LOSER], kappa=3)],
    "log axis": [plane([DENSE_8B, DENSE_70B, NGRAM, SUFFIX], kappa=3, scale="log")],
    "long drafts": [plane([DENSE_70B, SUFFIX], kappa=16)],
    "empty": [plane([], kappa=1)],
    "two panels": [
        plane([DENSE_8B, NGRAM], kappa=5, verify=1.1, batch=64, ridge=295.0, title="llama3-8b"),
        plane([DENSE_70B, NGRAM], kappa=5, verify=1.3, batch=64, ridge=295.0, title="llama3-70b"),
    ],
    "four panels": [plane([DENSE_8B], kappa=3, verify=1 + i / 10, ridge=295.0, title=f"target {i}") for i in range(4)],
}


def swept(kind: str) -> Any:
    sources = [(s, Setting(ridge=295.0)) for s in (DENSE_8B, NGRAM, SUFFIX, TREE)]
    return sweep(kind, sources, xs=default_axis(kind), batch=1 if kind == "batch" else 8)  # type: ignore[arg-type]


def pictures() -> dict[str, Figure]:
    planes = {name: draw_planes(scene) for name, scene in SCENES.items()}
    figures = planes | {kind: draw_sweep(swept(kind)) for kind in ("kappa", "batch", "coverage", "context")}
    for figure in figures.values():
        figure.canvas.draw()  # axis labels find their place when they are drawn
    return figures


@pytest.fixture(scope="module")
def drawn() -> dict[str, Figure]:
    return pictures()


NAMES = [*SCENES, "kappa", "batch", "coverage", "context"]


@pytest.mark.parametrize("name", NAMES)
def test_no_label_covers_another(drawn: dict[str, Figure], name: str) -> None:
    figure = drawn[name]
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    assert overlapping(all_texts(figure), renderer) == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_cut_off_at_the_edge(drawn: dict[str, Figure], name: str) -> None:
    figure = drawn[name]
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    width, height = figure.get_size_inches() * figure.dpi
    for text in all_texts(figure):
        box = text.get_window_extent(renderer)
        assert box.x0 >= 0, text.get_text()
        assert box.x1 <= width, text.get_text()
        assert box.y0 >= 0, text.get_text()
        assert box.y1 <= height, text.get_text()


@pytest.mark.parametrize("name", NAMES)
def test_labels_stay_off_markers(drawn: dict[str, Figure], name: str) -> None:
    figure = drawn[name]
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    for axes in figure.axes:
        if not axes.axison:
            continue
        centres = [
            axes.transData.transform(xy)
            for line in axes.lines
            if line.get_marker() not in ("None", "", None) and line.get_markersize() > 5
            for xy in line.get_xydata()
        ]
        for text in axes.texts:
            box = text.get_window_extent(renderer)
            for x, y in centres:
                assert not (box.x0 < x < box.x1 and box.y0 < y < box.y1), text.get_text()


def test_labels_in_lanes_leave_each_other_and_their_leaders_alone() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        n = int(rng.integers(1, 8))
        anchors, widths = (8 * rng.random(n)).tolist(), (0.4 + 1.4 * rng.random(n)).tolist()
        laid = lanes(anchors, widths, 8.0)
        assert len(laid) == n
        for i in range(n):
            assert 0 <= laid[i].left <= 8 - widths[i]
            for j in range(n):
                if i != j and laid[i].lane == laid[j].lane:
                    apart = laid[i].left + widths[i] <= laid[j].left or laid[j].left + widths[j] <= laid[i].left
                    assert apart
                if laid[i].lane < laid[j].lane:  # the leader of the deeper label passes beside the nearer one
                    assert not laid[i].left < anchors[j] < laid[i].left + widths[i]


@pytest.mark.parametrize("seed", range(6))
def test_no_label_covers_another_for_any_sources(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ("llama3.2-1b", "qwen3-0.6b", "eagle", "ngram", "suffix", "sglang-ngram", "lookup")
    sources = [
        source(
            name=name,
            target="llama3-70b" if i < 3 else "",
            kappa=int(rng.integers(1, 9)),
            c=float(0.3 * rng.random() ** 2) if i < 3 else 0.0,
            alpha=float(rng.random()),
            coverage=1.0 if i < 3 else float(0.1 + 0.9 * rng.random()),
            verify=float(1 + 0.3 * rng.random()),
        )
        for i, name in enumerate(names)
    ]
    figure = draw_planes([plane(sources, kappa=int(rng.integers(1, 9)), scale="log" if seed % 2 else "linear")])
    figure.canvas.draw()
    assert overlapping(all_texts(figure), figure.canvas.get_renderer()) == []  # type: ignore[attr-defined]


def words(figure: Figure) -> str:
    return "\n".join(t.get_text() for t in all_texts(figure))


def test_the_picture_says_what_it_shows(drawn: dict[str, Figure]) -> None:
    said = words(drawn["points"])
    for expected in (
        "κ = 3",
        "α, acceptance",
        "(probability)",
        "c, cost of one draft step (target steps)",
        "1× break-even",
        "slower than\nplain decoding",
        "faster than\nplain decoding",
        "α† = 0.430",
        "α† = 0.666",
        "llama3.2-1b → llama3-8b 1.70×",
        "llama3.2-1b → llama3-70b 2.40×",
        "0.8 [0.74, 0.85] measured",
        "0.1647 derived",
        "0.45 first, then 0.85, assumed",
        "35% of steps",
        "0 (no weights)",
    ):
        assert expected in said
    assert "pays above α = 0.340" in words(drawn["free acceptance"])
    assert "loses" in words(drawn["crowded"])
    assert "crosses the ridge" not in said
    assert "ridge at batch 49" in words(drawn["two panels"])
    assert "cross the ridge (295)" in words(drawn["batch"])


def test_every_level_is_labelled(drawn: dict[str, Figure]) -> None:
    said = words(drawn["points"])
    for contour in SCENES["points"][0].contours:
        assert f"{contour.speedup:g}×" in said


def lightness(colour: str) -> float:
    r, g, b = to_rgb(colour)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_bands_order_themselves_in_greyscale() -> None:
    shades = [lightness(c) for c in WIN]
    assert shades == sorted(shades, reverse=True)
    assert min(a - b for a, b in pairwise(shades)) > 0.02


def contrast(a: str, b: str) -> float:
    """WCAG contrast ratio."""

    def luminance(colour: str) -> float:
        parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return float(np.dot(parts, (0.2126, 0.7152, 0.0722)))

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_sources_are_told_apart_without_colour_and_read_on_every_band() -> None:
    assert len({look.marker for look in LOOKS}) == len(LOOKS)
    assert len({str(look.dash) for look in LOOKS}) == len(LOOKS)
    for look in LOOKS:
        assert contrast(look.colour, "#ffffff") >= 4.5  # WCAG AA for text; labels carry a white halo
        assert min(contrast(look.colour, band) for band in (*WIN, LOSE)) >= 2.0
        on_black = DARK[look.colour.lower()]
        assert contrast(on_black, DARK[WIN[0]]) >= 4.5
        assert min(contrast(on_black, DARK[band]) for band in (*WIN, LOSE)) >= 2.0


def test_an_empty_title_leaves_the_heading_out() -> None:
    said, without = words(draw_planes(SCENES["points"])), words(draw_planes(SCENES["points"], title=""))
    assert "Equal-speedup" in said
    assert "Equal-speedup" not in without
    assert "mine" in words(draw_planes(SCENES["points"], title="mine"))


def test_a_best_source_is_named_only_among_those_of_one_target() -> None:
    def said(*sources: Any) -> str:
        pairs = [(s, Setting(ridge=295.0)) for s in sources]
        return words(draw_sweep(sweep("batch", pairs, xs=default_axis("batch"))))

    assert "best source there" in said(DENSE_8B, NGRAM)
    assert "best source there" not in said(DENSE_8B, DENSE_70B, NGRAM)


def test_looks_are_told_by_the_page() -> None:
    scene = SCENES["points"]
    assert "0.1647 derived" not in words(draw_planes(scene, legend="inline"))
    assert "llama3.2-1b → llama3-8b" in words(draw_planes(scene, legend="inline"))
    assert "llama3.2-1b" not in words(draw_planes(scene, legend="none"))
    assert draw_planes(scene, style="slide").get_size_inches()[0] == pytest.approx(13.33)
    assert draw_planes(scene, width=3.4, font_size=7.5).axes[0].xaxis.label.get_fontsize() == pytest.approx(
        10 * 7.5 / 9.5
    )


@pytest.mark.parametrize(
    ("suffix", "magic"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF"), (".pgf", b"%% Creator")]
)
def test_files_by_suffix_and_equal_bytes_for_equal_inputs(tmp_path: Path, suffix: str, magic: bytes) -> None:
    written = []
    for i in range(2):
        path = tmp_path / f"{i}{suffix}"
        save(draw_planes(SCENES["free acceptance"]), path, "a title")
        written.append(path.read_bytes())
    assert written[0].startswith(magic)
    assert written[0] == written[1]


def test_latex_code_is_balanced_and_names_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "plane.pgf"
    save(draw_planes([plane([source(name="my_draft{50%", kappa=3, c=0.1, alpha=0.7)], kappa=3)]), path, "")
    code = path.read_text(encoding="utf-8")
    assert r"my\_draft\{50" in code
    assert code.count(r"\begin{pgfscope}") == code.count(r"\end{pgfscope}") > 20
    bare = re.sub(r"\\.", "", "\n".join(line for line in code.splitlines() if not line.startswith("%")))
    assert bare.count("{") == bare.count("}")


def test_svg_keeps_its_text_as_text(tmp_path: Path) -> None:
    path = tmp_path / "plane.svg"
    save(draw_planes(SCENES["points"]), path, "a title")
    root = ET.parse(path).getroot()  # noqa: S314 - our own file
    said = " ".join("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
    assert "α† = 0.430" in said
    assert "a title" in path.read_text(encoding="utf-8")
    assert not re.search(r"20\d\d-\d\d-\d\dT", path.read_text(encoding="utf-8"))


def test_png_has_print_resolution_and_the_right_shades(tmp_path: Path) -> None:
    path = tmp_path / "plane.png"
    save(draw_planes(SCENES["empty"]), path, "a title")
    pixels = mpimg.imread(path)
    assert pixels.shape[1] == 9 * 200
    # just right of the axis at mid height the plane loses; near alpha 1 at low c it wins
    grey = pixels[..., :3] @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.abs(pixels[..., :3] - np.array(to_rgb(LOSE))).max(axis=-1) < 0.01).mean() > 0.02
    assert grey.min() < 0.2


def test_unwritable_files_are_named(tmp_path: Path) -> None:
    figure = draw_planes(SCENES["empty"])
    with pytest.raises(InputError, match="must end in"):
        save(figure, tmp_path / "plane.bmp", "")
    with pytest.raises(InputError, match="does not exist"):
        save(figure, tmp_path / "no" / "plane.svg", "")
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        save(figure, tmp_path / "folder.svg", "")
