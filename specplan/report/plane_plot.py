"""The (alpha, c) plane as a picture: bands of equal speedup, sources as lines and points, ties at c = 0."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from specplan.decide.plane import Line, Plane, Point
from specplan.decide.source import Placed
from specplan.report.drawing import Drawing
from specplan.report.key import Row
from specplan.report.label_placement import LEADER, Laid, Placer, lanes
from specplan.report.lettering import fitting, inches
from specplan.report.picture import CLEAR, HATCH, INK, LOSE, MUTED, WIN, Look, look, style
from specplan.report.sheet import Panel, Sheet, shown_rows
from specplan.report.source_words import acceptance_text, cost_text, name_text

BELOW_FONT, LANE = 8.8, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """An axes being drawn: its plane, what is on it, and what names sources on it."""

    on: Panel
    plane: Plane
    placer: Placer
    names: list[str]
    is_named: bool
    unlabelled: list[str]

    @property
    def axes(self) -> Axes:
        """Where it is drawn."""
        return self.on.axes

    def look(self, source: Placed) -> Look:
        """How a source is drawn: the same in every panel."""
        return look(self.names.index(source.label))

    def name(self, source: Placed, texts: Sequence[str], x: float, y: float, **style: Any) -> None:
        """Write the longest of some names of a source that finds room; a source without one is for the key."""
        if self.is_named and not any(
            self.placer.label(
                text, x, y, fontsize=9, color=self.look(source).colour, fontweight="bold", bbox=CLEAR, **style
            )
            for text in texts
        ):
            self.unlabelled.append(source.label)


def draw_planes(planes: Sequence[Plane], **given: Any) -> Figure:
    """One picture; several planes (different verify factors) stand side by side with one key.

    Parameters
    ----------
    planes : sequence of Plane
        At least one.
    **given
        See `specplan.report.drawing.Drawing`.
    """
    drawing, names = Drawing(**given), _names(planes)
    rows, notes = _rows(planes, names), _notes(planes)
    unlabelled: list[str] = []
    for _ in range(2):  # in line, the key of the second holds what found no room in the first
        wanted = shown_rows(drawing, rows, unlabelled)
        with style():
            sheet = Sheet(
                drawing=drawing,
                headings=[
                    f"Equal-speedup contours at κ = {planes[0].kappa} drafted tokens per step",
                    f"Equal-speedup contours, κ = {planes[0].kappa}",
                    f"Equal speedup, κ = {planes[0].kappa}",
                ],
                conditions=[_conditions(plane) for plane in planes],
                rows=wanted,
                columns=_COLUMNS,
                notes=notes if drawing.legend == "table" else (),
            )
            unlabelled = []
            for plane, on in zip(planes, sheet.panels, strict=True):
                named = drawing.legend != "none"
                _draw(_Panel(on=on, plane=plane, placer=Placer(on.axes), names=names, is_named=named,
                             unlabelled=unlabelled))  # fmt: skip
        if drawing.legend != "inline" or not unlabelled:
            break
    return sheet.done()


def _names(planes: Sequence[Plane]) -> list[str]:
    found: list[str] = []
    for plane in planes:
        for source in (*(x.source for x in plane.lines), *(x.source for x in plane.points)):
            if source.label not in found:
                found.append(source.label)
    return found


def _conditions(plane: Plane) -> str:
    """What the contours were drawn for, in one line."""
    parts = [plane.title] if plane.title else []
    if plane.ridge is not None:
        parts.append(f"batch {plane.batch}")
    if plane.context_len:
        parts.append(f"context {plane.context_len:,}")
    parts.append(f"verify pass / plain pass v = {plane.verify:.3g}")
    if plane.ridge_batch is not None:
        parts.append(f"ridge at batch {plane.ridge_batch:.0f}")
    return ", ".join(parts)


def _draw(panel: _Panel) -> None:
    axes, plane, placer, body = panel.axes, panel.plane, panel.placer, panel.on.height
    top = float(plane.c[-1])
    below = _strip_labels(panel, body)
    strip = 0.14 if not below else 0.24 + LANE * (1 + max(label.lane for label in below))
    _set_axes(panel, top, strip / body)
    _bands(axes, plane, top)
    axes.axhline(0.0, color=INK, lw=1.0, zorder=3)
    placer.add_line([0, 1], [0, 0])
    for line in plane.lines:
        _line(panel, line)
    for contour in plane.contours:
        axes.plot(contour.alpha, contour.c, color=INK, lw=1.9 if contour.speedup == 1.0 else 0.8, zorder=4)
        placer.add_line(contour.alpha, contour.c)
    for point in plane.points:
        _curve(panel, point)
    for point in plane.points:
        _marks(panel, point)
    for label in below:
        _write_below(panel, label, strip / body, body)
    for point in plane.points:
        if point.source.c > 0:
            _point_label(panel, point)
    for line in plane.lines:
        _line_label(panel, line)
    for contour in plane.contours:
        is_one = contour.speedup == 1.0
        look_of = {"fontsize": 8.5, "fontweight": "bold" if is_one else "normal", "bbox": CLEAR}
        for text in ("1× break-even", "1×") if is_one else (f"{contour.speedup:g}×",):
            if placer.label_on_line(text, contour.alpha, contour.c, **look_of):
                break
    _region_names(panel)


def _set_axes(panel: _Panel, top: float, strip: float) -> None:
    axes, plane = panel.axes, panel.plane
    axes.set_xlim(0.0, 1.0)
    if plane.scale == "log":
        axes.set_yscale("symlog", linthresh=float(plane.c[1]), linscale=0.35)
        ticks = [0.0, *_decades(float(plane.c[1]), top)]
    else:
        ticks = [t for t in axes.yaxis.get_major_locator().tick_values(0.0, top) if 0.0 <= t <= top]
    y0, y1 = (axes.transScale.transform((0.0, y))[1] for y in (0.0, top))
    low = axes.transScale.inverted().transform((0.0, y0 - strip / (1 - strip) * (y1 - y0)))[1]
    axes.set_ylim(low, top)
    axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.spines["left"].set_bounds(0.0, top)
    axes.set_xticks(np.linspace(0, 1, 6 if panel.on.is_narrow else 11))
    wide, high = panel.on.width, panel.on.height
    axes.set_xlabel(fitting(_ALPHA, 10, wide))
    if panel.on.is_leftmost:
        axes.set_ylabel(fitting(_C, 10, high))


_ALPHA: Final = (
    "α, acceptance of a drafted token, those before accepted (probability)",
    "α, acceptance per drafted token (probability)",
    "α, acceptance (probability)",
)
_C: Final = ("c, cost of one draft step (target steps)", "c, draft step (target steps)", "c (target steps)")


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between the ends; only the powers where that would be many."""
    every = [m * 10.0**e for e in range(-6, 3) for m in (1, 2, 5) if low <= m * 10.0**e <= high * 1.0001]
    return every if len(every) <= 9 else [t for t in every if f"{t:e}"[0] == "1"]


def _bands(axes: Axes, plane: Plane, top: float) -> None:
    """Shade between contours: the area under each contour is at least its speedup."""
    axes.axhspan(0.0, top, facecolor=LOSE, hatch="///", edgecolor=HATCH, lw=0, zorder=0)
    winning = [c for c in plane.contours if c.speedup >= 1.0]
    for i, contour in enumerate(winning):
        c = np.minimum(np.nan_to_num(contour.c, nan=0.0), top)
        shade = WIN[round(i * (len(WIN) - 1) / max(len(winning) - 1, 1))]
        axes.fill_between(contour.alpha, 0.0, c, where=(c > 0).tolist(), color=shade, lw=0, zorder=1)


def _line(panel: _Panel, line: Line) -> None:
    c, lk = line.source.c, panel.look(line.source)
    panel.axes.plot([0, 1], [c, c], color=lk.colour, lw=1.7, ls=lk.dash, zorder=5)
    panel.placer.add_line([0, 1], [c, c])
    for s, alpha in line.reaches:
        if s == 1.0 and not np.isnan(alpha):
            panel.axes.plot([alpha], [c], marker="|", ms=14, mew=2.4, color=lk.colour, zorder=7)
            panel.placer.add_marker(alpha, c, 12)
        elif not np.isnan(alpha):
            panel.axes.plot([alpha], [c], marker="o", ms=3.4, color=lk.colour, zorder=7)


def _line_label(panel: _Panel, line: Line) -> None:
    never, label = np.isnan(line.break_even), line.source.label
    panel.name(
        line.source,
        (f"{label}: " + ("never pays" if never else f"pays above α = {line.break_even:.3f}"), label, line.source.name),
        0.5 if never else min(max(line.break_even, 0.05), 0.6),
        line.source.c,
        directions=((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1)),
    )


def _curve(panel: _Panel, point: Point) -> None:
    lk, c = panel.look(point.source), point.source.c
    if c > 0:
        panel.axes.plot([0, 1], [c, c], color=lk.colour, lw=0.7, ls=(0, (1, 3)), zorder=3)
    if point.curve is not None and c > 0:
        panel.axes.plot(point.curve.alpha, point.curve.c, color=lk.colour, lw=2.0, ls=lk.dash, zorder=6)
        panel.placer.add_line(point.curve.alpha, point.curve.c)


def _marks(panel: _Panel, point: Point) -> None:
    axes, placer, s, lk = panel.axes, panel.placer, point.source, panel.look(point.source)
    a = s.source.alpha
    if a is not None and a.is_range:
        reach = [[a.best - a.low], [a.high - a.best]]
        axes.errorbar(
            [a.best], [s.c], xerr=reach, color=lk.colour, lw=1.6, capsize=4, capthick=1.6, zorder=7, clip_on=False
        )
        placer.add_line([a.low, a.high], [s.c, s.c])
    if s.alpha is not None and not point.is_exact:
        _hollow(panel, s.alpha, s.c, lk)
        if not np.isnan(point.alpha) and abs(point.alpha - s.alpha) > 0.03:
            _arrow(panel, s.alpha, point.alpha, s.c, lk)
    if not np.isnan(point.alpha):
        axes.plot(
            [point.alpha],
            [s.c],
            marker=lk.marker,
            ms=8.5,
            color=lk.colour,
            mec="white",
            mew=0.8,
            zorder=9,
            clip_on=False,
        )
        placer.add_marker(point.alpha, s.c, 9)
    if s.c > 0 and not np.isnan(point.alpha_dagger):
        _hollow(panel, point.alpha_dagger, 0.0, lk)


def _hollow(panel: _Panel, x: float, y: float, lk: Look) -> None:
    panel.axes.plot([x], [y], marker=lk.marker, ms=7.5, mfc="white", mec=lk.colour, mew=1.6, zorder=8, clip_on=False)
    panel.placer.add_marker(x, y, 9)


def _arrow(panel: _Panel, start: float, end: float, y: float, lk: Look) -> None:
    """From what a source accepts to where it stands: bent upwards, clear of its interval."""
    bend = 0.22 if end < start else -0.22
    arrow = FancyArrowPatch(
        (start, y),
        (end, y),
        connectionstyle=f"arc3,rad={bend}",
        arrowstyle="-|>",
        mutation_scale=11,
        color=lk.colour,
        lw=1.3,
        shrinkA=6,
        shrinkB=6,
        zorder=7,
    )
    panel.axes.add_patch(arrow)
    (x0, y0), (x1, _) = panel.axes.transData.transform([(start, y), (end, y)])
    t = np.linspace(0.1, 0.9, 17)
    panel.placer.add_leader(np.column_stack([x0 + t * (x1 - x0), y0 - 2 * t * (1 - t) * bend * (x1 - x0)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Below:
    """A label below c = 0: a tie, or the name of a free source."""

    text: str
    alpha: float
    colour: str
    lane: int
    centre: float


def _strip_labels(panel: _Panel, body: float) -> list[_Below]:
    """Labels of what lies on c = 0, laid in lanes below it so that nothing crosses; else without the widest of them."""
    wanted: list[tuple[str, float, Placed]] = []
    for point in panel.plane.points:
        where = point.alpha if not np.isnan(point.alpha) else point.source.alpha
        if point.source.c == 0 and where is not None and panel.is_named:
            wanted.append((f"{point.source.label} {point.speedup:.2f}×", where, point.source))
        elif point.source.c > 0 and not np.isnan(point.alpha_dagger):
            wanted.append((f"α† = {point.alpha_dagger:.3f}", point.alpha_dagger, point.source))
    span = panel.on.width
    while True:
        widths = [inches(text, BELOW_FONT, is_bold=True) for text, _, _ in wanted]
        most = max(1, int(0.55 * body / LANE))
        laid: list[Laid] = lanes([alpha * span for _, alpha, _ in wanted], widths, span, most=most)
        if laid or not wanted:
            break
        _, _, dropped = wanted.pop(int(np.argmax(widths)))
        panel.unlabelled.append(dropped.label)
    return [
        _Below(text=text, alpha=alpha, colour=panel.look(source).colour, lane=at.lane,
               centre=(at.left + width / 2) / span)
        for (text, alpha, source), width, at in zip(wanted, widths, laid, strict=True)
    ]  # fmt: skip


def _write_below(panel: _Panel, label: _Below, strip: float, body: float) -> None:
    y = strip - (0.21 + LANE * label.lane) / body
    axes = panel.axes
    drawn = axes.text(
        label.centre,
        y,
        label.text,
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=BELOW_FONT,
        fontweight="bold",
        color=label.colour,
        zorder=9,
    )
    box = drawn.get_window_extent(panel.placer.renderer)
    panel.placer.boxes.append(box)
    x0, x1 = axes.transAxes.inverted().transform([(box.x0, 0), (box.x1, 0)])[:, 0]
    if label.lane > 0 or not x0 <= label.alpha <= x1:
        end = (float(np.clip(label.alpha, x0, x1)), y + 0.09 / body)
        xs, ys = [label.alpha, end[0]], [strip, end[1]]
        axes.plot(xs, ys, transform=axes.transAxes, color=label.colour, lw=0.8, zorder=5, label=LEADER)
        panel.placer.add_leader(axes.transAxes.transform(np.column_stack([xs, ys])))


def _point_label(panel: _Panel, point: Point) -> None:
    where = point.alpha if not np.isnan(point.alpha) else point.source.alpha
    if where is None:
        return
    panel.name(
        point.source,
        (f"{point.source.label} {point.speedup:.2f}×", point.source.label, point.source.name),
        where,
        point.source.c,
        directions=((1, -1), (1, 1), (-1, 1), (1, 0), (-1, -1), (0, 1), (0, -1), (-1, 0)),
    )


def _region_names(panel: _Panel) -> None:
    """Say in words which side wins, inside that side and where there is room, and what the strip below is."""
    look_of = {"ha": "center", "va": "center", "fontsize": 9.5, "color": MUTED, "style": "italic", "bbox": CLEAR}
    axes, plane = panel.axes, panel.plane
    even = next((contour for contour in plane.contours if contour.speedup == 1.0), None)
    bottom = axes.transLimits.transform(axes.transScale.transform((0.0, 0.0)))[1]
    if even is not None:
        edge = np.column_stack([even.alpha, np.nan_to_num(even.c, nan=0.0)])
        along = axes.transAxes.inverted().transform(axes.transData.transform(edge))
        rises: list[tuple[str, bool]] = [("slower than\nplain decoding", True), ("faster than\nplain decoding", False)]
        for text, is_above in rises:
            panel.placer.add_text_within(text, along, bottom, is_above=is_above, **look_of)
    if bottom > 0.06:
        words = look_of | {"fontsize": 8.5, "ha": "left"}
        panel.placer.add_text(0.005, bottom / 2, "c = 0:\nfree drafts", transform=axes.transAxes, zorder=6, **words)


_COLUMNS: Final = ("source", "c", "α", "speedup", "α†")


def _rows(planes: Sequence[Plane], names: list[str]) -> list[Row]:
    """A row for each source of each plane; the plane is named where several are drawn."""
    rows: list[Row] = []
    for plane in planes:
        for texts, source in (
            *((_line_texts(line), line.source) for line in plane.lines),
            *((_point_texts(plane, point), point.source) for point in plane.points),
        ):
            on = f" [{plane.title}]" if len(planes) > 1 and not source.target else ""
            lk = look(names.index(source.label))
            rows.append(Row(look=lk, label=source.label, texts=(texts[0] + on, *texts[1:])))
    return rows


def _line_texts(line: Line) -> tuple[str, ...]:
    reached = [f"{s:g}× at {a:.3f}" for s, a in line.reaches if s > 1 and not np.isnan(a)]
    even = "free, never pays" if np.isnan(line.break_even) else f"free, pays above {line.break_even:.3f}"
    return (
        name_text(line.source, kappa=line.source.kappa),
        cost_text(line.source),
        even,
        (reached[1:2] or [""])[0],
        "",
    )


def _point_texts(plane: Plane, point: Point) -> tuple[str, ...]:
    s = point.source
    tie = point.untied if np.isnan(point.alpha_dagger) else f"{point.alpha_dagger:.3f}"
    name = name_text(s, kappa=plane.kappa, verify=plane.verify)
    return (name, cost_text(s), acceptance_text(s), f"{point.speedup:.2f}×", tie)


def _notes(planes: Sequence[Plane]) -> list[str]:
    points = [point for plane in planes for point in plane.points]
    found = []
    if any(p.source.c > 0 and not np.isnan(p.alpha_dagger) for p in points):
        found.append(
            "Thick curve: worth as much as that source. It meets c = 0 at α†, where a free draft ties with it."
        )
    if len(planes) > 1:
        found.append("v: cost of a verify pass in plain passes. Ridge: where verified positions become compute-bound.")
    if any(not p.is_exact and not np.isnan(p.alpha) for p in points):
        found.append(
            f"Solid marker: worth as much as a source there that drafts {planes[0].kappa} tokens in every step; "
            "open marker: its own acceptance."
        )
    return found
