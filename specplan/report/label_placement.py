"""Places labels on a picture so that none covers another, a marker, or more of a line than it must."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

FloatArray = npt.NDArray[np.float64]

LEADER: Final = "_leader"
"""Label of the lines that lead from a label to its place."""
DIRECTIONS: Final = ((1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
DISTANCES: Final = (7.0, 13.0, 21.0, 32.0, 46.0, 64.0, 88.0)
"""Points (1/72 inch) between an anchor and the near edge of its label, tried from the nearest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """A label in a lane: which lane (0 is the nearest), and where its left end is."""

    lane: int
    left: float


def lanes(
    anchors: Sequence[float], widths: Sequence[float], span: float, gap: float = 0.08, most: int | None = None
) -> list[Laid]:
    """Stack labels below a line so that none overlaps another and no leader crosses a label.

    Parameters
    ----------
    anchors, widths : sequence of float
        Where each label belongs on the line, and how wide it is; any one unit.
    span : float
        Length of the line; labels stay within it where they fit.
    gap : float
        Kept free between neighbours.
    most : int, optional
        Lanes at most; as many as labels if None.

    Returns
    -------
    list of Laid
        One for each label, in as few lanes as a search finds; empty where it finds none.

    Examples
    --------
    >>> [x.lane for x in lanes([1.0, 1.1, 5.0], [1.0, 1.0, 1.0], 8.0)]
    [0, 0, 0]
    >>> [x.lane for x in lanes([0.5, 0.6, 0.7], [1.0, 1.0, 1.0], 8.0)]
    [2, 1, 0]
    """
    order = sorted(range(len(anchors)), key=lambda i: anchors[i])
    if any(width > span for width in widths):
        return []
    for depth in range(1, 1 + min(len(anchors), len(anchors) if most is None else most)):
        placed: dict[int, Laid] = {}
        if _lay(order, anchors, widths, span, gap, depth, placed, [4000]):
            return [placed[i] for i in range(len(anchors))]
    return []


SHARES: Final = (0.5, 0.25, 0.75, 0.05, 0.95, -0.12, 1.12)
"""Where along a label its anchor may lie, the middle first; a little outside, the leader slants."""


def _lay(
    order: Sequence[int],
    anchors: Sequence[float],
    widths: Sequence[float],
    span: float,
    gap: float,
    depth: int,
    placed: dict[int, Laid],
    tries: list[int],
) -> bool:
    """Depth-first search over lanes and shifts of the remaining labels, bounded by a number of tries."""
    if not order:
        return True
    i, rest = order[0], order[1:]
    for lane in range(depth):
        for share in SHARES:
            left = float(np.clip(anchors[i] - share * widths[i], 0.0, max(span - widths[i], 0.0)))
            tries[0] -= 1
            if tries[0] < 0:
                return False
            if all(_fits(Laid(lane=lane, left=left), i, placed[j], j, anchors, widths, gap) for j in placed):
                placed[i] = Laid(lane=lane, left=left)
                if _lay(rest, anchors, widths, span, gap, depth, placed, tries):
                    return True
                del placed[i]
    return False


def _fits(a: Laid, i: int, b: Laid, j: int, anchors: Sequence[float], widths: Sequence[float], gap: float) -> bool:
    """Whether two labels leave each other and each other's leader alone."""
    if a.lane == b.lane:
        return a.left + widths[i] + gap <= b.left or b.left + widths[j] + gap <= a.left
    (upper, k), (lower, m) = ((a, i), (b, j)) if a.lane < b.lane else ((b, j), (a, i))
    x = anchors[m]
    end = min(max(x, lower.left), lower.left + widths[m])  # where the leader meets its label
    return max(x, end) <= upper.left - gap / 2 or min(x, end) >= upper.left + widths[k] + gap / 2


@dataclass(slots=True)
class Placer:
    """Keeps what is already on an axes, in pixels, and finds room for the next label.

    Attributes
    ----------
    axes : Axes
    boxes : list of Bbox
        Labels and markers: never to be covered.
    strokes : list of ndarray, shape (n, 2)
        Points along lines: better not covered.
    leaders : list of ndarray, shape (n, 2)
        Points along what leads from a label to its place: never to be covered.
    """

    axes: Axes
    boxes: list[Bbox] = field(default_factory=list)
    strokes: list[FloatArray] = field(default_factory=list)
    leaders: list[FloatArray] = field(default_factory=list)

    @property
    def renderer(self) -> Any:
        """What measures text."""
        return self.axes.figure.canvas.get_renderer()  # type: ignore[attr-defined]

    @property
    def _pixels_per_point(self) -> float:
        return float(self.axes.figure.dpi) / 72.0

    def add_line(self, x: npt.ArrayLike, y: npt.ArrayLike) -> None:
        """Take note of a drawn line (data coordinates; NaN breaks it)."""
        xy = np.column_stack([np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)])
        xy = xy[~np.isnan(xy).any(axis=1)]
        if len(xy):
            self.strokes.append(_dense(self.axes.transData.transform(xy)))

    def add_leader(self, ends: npt.ArrayLike) -> None:
        """Take note of a leader, by points along it in pixels."""
        self.leaders.append(_dense(np.asarray(ends, dtype=np.float64)))

    def add_marker(self, x: float, y: float, size: float = 8.0) -> None:
        """Take note of a marker of `size` points."""
        px, py = self.axes.transData.transform((x, y))
        half = size * self._pixels_per_point / 2 + 1
        self.boxes.append(Bbox.from_extents(px - half, py - half, px + half, py + half))

    def add_box(self, corners: npt.ArrayLike) -> None:
        """Keep a rectangle free, given by two corners in pixels."""
        (x0, y0), (x1, y1) = np.asarray(corners)
        self.boxes.append(Bbox.from_extents(x0, y0, x1, y1))

    def add_text(self, x: float, y: float, text: str, **style: Any) -> bool:
        """Write `text` at a data point if it covers nothing there; whether it did."""
        drawn = self.axes.text(x, y, text, **style)
        box = drawn.get_window_extent(self.renderer)
        if self._cost(box, strokes=()) > 0:
            drawn.remove()
            return False
        self.boxes.append(box)
        return True

    def add_text_within(
        self, text: str, edge: FloatArray, bottom: float, *, is_above: bool, **style: Any
    ) -> Any | None:
        """Write `text` on one side of a rising edge, where it covers least; None where no place is free.

        Parameters
        ----------
        edge : ndarray, shape (n, 2)
            Points along the edge, rising in x, in axes coordinates.
        bottom : float
            Lower end of that side of the axes.
        """
        drawn = self.axes.text(0, 0, text, zorder=6, **style)
        size = drawn.get_window_extent(self.renderer)
        page = self.axes.get_window_extent(self.renderer)
        half_x, half_y = 0.5 * size.width / page.width + 0.01, 0.5 * size.height / page.height + 0.012
        best: tuple[float, float, float, Bbox] | None = None
        across = np.linspace(half_x, 1 - half_x, 25)
        for rank_x, x in enumerate(across if is_above else across[::-1]):
            under = np.interp(np.linspace(x - half_x, x + half_x, 7), edge[:, 0], edge[:, 1])
            low, high = (max(float(under.max()), bottom), 1.0) if is_above else (bottom, min(float(under.min()), 1.0))
            for rank_y, y in enumerate(np.linspace(high - half_y, low + half_y, 9) if high - low > 2 * half_y else ()):
                box = _centred(page.x0 + x * page.width, page.y0 + y * page.height, size)
                cost = self._cost(box, strokes=self.strokes) + 0.4 * rank_x + 0.4 * rank_y
                if cost < 1e4 and (best is None or cost < best[0]):
                    best = (cost, float(x), float(y), box)
        if best is None:
            drawn.remove()
            return None
        _, x, y, box = best
        drawn.set_transform(self.axes.transAxes)
        drawn.set_position((x, y))
        self.boxes.append(box)
        return drawn

    def label(
        self,
        text: str,
        x: float,
        y: float,
        *,
        directions: Sequence[tuple[int, int]] = DIRECTIONS,
        is_near: bool = False,
        **style: Any,
    ) -> Any | None:
        """Write `text` near the data point (x, y), with a thin leader if it had to move away; None if none is free."""
        drawn = self.axes.text(0, 0, text, va="center", ha="center", transform=None, zorder=9, **style)
        size = drawn.get_window_extent(self.renderer)
        anchor = self.axes.transData.transform((x, y))
        cost, box, distance = self._best_around(anchor, size, directions)
        if cost >= 1e4 or (is_near and distance > DISTANCES[1] * self._pixels_per_point):
            drawn.remove()
            return None
        drawn.set_position(((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2))
        self._pin(drawn, box)
        self.boxes.append(box)
        if distance > DISTANCES[1] * 1.2 * self._pixels_per_point:
            self._leader(anchor, box, style.get("color", "0.3"))
        return drawn

    def label_on_line(self, text: str, x: FloatArray, y: FloatArray, **style: Any) -> Any | None:
        """Write `text` over a line, where most room is; None if no place on it is free."""
        xy = np.column_stack([x, y])
        xy = xy[~np.isnan(xy).any(axis=1)]
        if len(xy) < 2:
            return None
        drawn = self.axes.text(0, 0, text, va="center", ha="center", transform=None, zorder=6, **style)
        size = drawn.get_window_extent(self.renderer)
        # the line itself does not count against its label
        found = []
        inside = self.axes.get_window_extent(self.renderer)
        for px, py in _dense(self.axes.transData.transform(xy), 6.0):
            box = _centred(px, py, size)
            if not _within(box, inside):
                continue
            # prefer the middle of the picture's height, where contours are told apart best
            off_centre = abs((py - inside.y0) / inside.height - 0.62)
            found.append((self._cost(box, strokes=self.strokes, free=4.0) + 10 * off_centre, px, py, box))
        if not found:
            drawn.remove()
            return None
        cost, px, py, box = min(found, key=lambda f: f[0])
        if cost >= 1e4:
            drawn.remove()
            return None
        drawn.set_position((px, py))
        self._pin(drawn, box)
        self.boxes.append(box)
        return drawn

    def _pin(self, drawn: Any, box: Bbox) -> None:
        """Move a text from pixels to axes coordinates, so that it stays when the resolution changes."""
        centre = self.axes.transAxes.inverted().transform(((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2))
        drawn.set_transform(self.axes.transAxes)
        drawn.set_position(tuple(centre))

    def _leader(self, anchor: FloatArray, box: Bbox, colour: Any) -> None:
        end = np.clip(anchor, (box.x0, box.y0), (box.x1, box.y1))
        self.add_leader([anchor, end])
        xy = self.axes.transAxes.inverted().transform(np.array([anchor, end]))
        self.axes.plot(
            xy[:, 0],
            xy[:, 1],
            transform=self.axes.transAxes,
            color=colour,
            lw=0.6,
            zorder=5,
            clip_on=False,
            label=LEADER,
        )

    def _best_around(
        self, anchor: FloatArray, size: Bbox, directions: Sequence[tuple[int, int]]
    ) -> tuple[float, Bbox, float]:
        """(cost, box, distance in pixels) of the cheapest place around an anchor."""
        inside = self.axes.get_window_extent(self.renderer)
        best: tuple[float, Bbox, float] | None = None
        for rank, distance in enumerate(DISTANCES):
            gap = distance * self._pixels_per_point
            for order, (dx, dy) in enumerate(directions):
                cost = 14 * rank + 0.6 * order + 3 * max(0, abs(dx) - 1)
                if best is not None and cost >= best[0]:
                    continue  # no place can be cheaper than its distance
                reach = gap / np.hypot(np.sign(dx), dy)
                px = anchor[0] + dx * reach + np.sign(dx) * size.width / 2
                py = anchor[1] + dy * (reach + size.height / 2)
                if dy:  # beside its place rather than over the edge
                    px = float(np.clip(px, inside.x0 + size.width / 2, inside.x1 - size.width / 2))
                box = _centred(px, py, size)
                cost += self._cost(box, strokes=self.strokes) + (0.0 if _within(box, inside) else 2e5)
                if best is None or cost < best[0]:
                    cost += self._crossings(anchor, box)
                if best is None or cost < best[0]:
                    away = anchor - np.clip(anchor, (box.x0, box.y0), (box.x1, box.y1))
                    best = (cost, box, float(np.hypot(*away)))
        assert best is not None  # noqa: S101 - there is always a direction
        return best

    def _crossings(self, anchor: FloatArray, box: Bbox) -> float:
        """Cost of the way from `anchor` to `box`: 10000 for every label, 30 for every line that lies between."""
        end = np.clip(anchor, (box.x0, box.y0), (box.x1, box.y1))
        path = np.linspace(anchor, end, 50)
        start = np.hypot(*(path - anchor).T) > 2 * self._pixels_per_point  # what the anchor itself lies on is no matter
        path = path[start]
        if not len(path):
            return 0.0
        crossed = (_inside(path, other).any() for other in self.boxes if not other.contains(anchor[0], anchor[1]))
        low, high = path.min(axis=0) - 4.0, path.max(axis=0) + 4.0
        near = 0
        for xy in self.strokes:
            close = xy[((xy > low) & (xy < high)).all(axis=1)]
            near += bool(len(close)) and bool(np.abs(close[:, None, :] - path[None, :, :]).max(axis=2).min() < 4.0)
        return 1e4 * sum(map(bool, crossed)) + 30.0 * near

    def _cost(self, box: Bbox, strokes: Iterable[FloatArray], free: float = 0.0) -> float:
        """10000 for covering a label or marker, 1 for each stretch of line."""
        pad = 2 * self._pixels_per_point
        grown = Bbox.from_extents(box.x0 - pad, box.y0 - pad, box.x1 + pad, box.y1 + pad)
        cost = sum(1e4 for other in self.boxes if grown.overlaps(other))
        for xy in self.leaders:
            cost += 1e4 * bool(_inside(xy, grown).any())
        for xy in strokes:
            cost += max(0.0, float(_inside(xy, grown).sum()) - free)
        return cost


def _inside(xy: FloatArray, box: Bbox) -> npt.NDArray[np.bool_]:
    x, y = xy.T
    return np.asarray((x > box.x0) & (x < box.x1) & (y > box.y0) & (y < box.y1))


def _centred(px: float, py: float, size: Bbox) -> Bbox:
    return Bbox.from_extents(px - size.width / 2, py - size.height / 2, px + size.width / 2, py + size.height / 2)


def _within(box: Bbox, outer: Bbox) -> bool:
    return bool(box.x0 >= outer.x0 and box.x1 <= outer.x1 and box.y0 >= outer.y0 and box.y1 <= outer.y1)


def _dense(xy: FloatArray, step: float = 4.0) -> FloatArray:
    """Points along a polyline, about `step` pixels apart."""
    lengths = np.hypot(*np.diff(xy, axis=0).T)
    along = np.concatenate([[0.0], np.cumsum(lengths)])
    if along[-1] == 0:
        return xy[:1]
    at = np.linspace(0.0, along[-1], max(2, int(along[-1] / step)))
    return np.column_stack([np.interp(at, along, xy[:, 0]), np.interp(at, along, xy[:, 1])])


def overlapping(texts: Sequence[Any], renderer: Any) -> list[tuple[str, str]]:
    """Pairs of texts whose boxes overlap: what a picture must not have."""
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in texts if t.get_visible() and t.get_text().strip()]
    return [(a, b) for i, (a, first) in enumerate(boxes) for b, second in boxes[i + 1 :] if first.overlaps(second)]
