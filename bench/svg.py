"""The shapes for the benchmarks' charts, in the loss curve's colours, for light and dark backgrounds.

Coordinates are pixels from the upper left corner; text is escaped here and nowhere else.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from wgemma.cli.bench import figure
from wgemma.train.curve import STYLE as CURVE_STYLE
from wgemma.train.curve import escaped, ticks

LEFT, RIGHT, TOP, BOTTOM = 46, 14, 36, 46  # margins of a line chart
INSET = 22  # from its edges to the first and last point, so that their labels stay inside
NEAREST = 30  # pixels between the labels of neighbouring points

# Labels lie on the lines; an outline in the background colour keeps both readable.
_STYLE = """
.bold { font-weight: bold; } .faint { opacity: 0.75; } .bar { fill: #1f5fae; }
.seam { stroke: #ffffff; stroke-width: 4px; stroke-linejoin: round; paint-order: stroke; }
@media (prefers-color-scheme: dark) { .bar { fill: #7db1f2; } .seam { stroke: #14171c; } }
"""


@dataclass(frozen=True, slots=True)
class Lines:
    """A line chart: a title that names the vertical axis, the horizontal axis, and the points."""

    title: str
    across: str
    points: Sequence[tuple[int, float]]


def drawing(width: int, height: int, title: str, shapes: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    named = f"<title>{escaped(title)}</title><style>{CURVE_STYLE}{_STYLE}</style>"
    ground = f'<rect class="ground" width="{width}" height="{height}"/>'
    return "\n".join([head, named, ground, *shapes, "</svg>", ""])


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    shape = f'class="{f"ink {kind}".strip()}" text-anchor="{anchor}"'
    return f'<text {shape} x="{x:.1f}" y="{y:.1f}">{escaped(words)}</text>'


def line(start: tuple[float, float], end: tuple[float, float], kind: str, more: str = "") -> str:
    (x1, y1), (x2, y2) = start, end
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"{more}/>'


def bar(x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2"/>'


def line_chart(lines: Lines, x: float, y: float, width: float, height: float) -> list[str]:
    """The chart in a box at (x, y). The horizontal axis is logarithmic; 0 comes before the rest, with a dashed line."""
    left, right, low, high = x + LEFT, x + width - RIGHT, y + height - BOTTOM, y + TOP
    shapes = [
        text(left, y + 14, lines.title, "bold"),
        text((left + right) / 2, y + height - 8, lines.across, anchor="middle"),
    ]
    points = sorted(lines.points)
    if not points:
        return [*shapes, text((left + right) / 2, (low + high) / 2, "nothing was measured", "faint", "middle")]
    marks = ticks(0, 1.1 * max(value for _, value in points))  # room for the label above the highest point
    shares = shares_across([size for size, _ in points])
    places = [
        (left + INSET + (right - left - 2 * INSET) * share, low - (low - high) * value / marks[-1])
        for share, (_, value) in zip(shares, points, strict=True)
    ]
    for mark in marks:
        height_of = low - (low - high) * mark / marks[-1]
        shapes.append(line((left, height_of), (right, height_of), "grid"))
        shapes.append(text(left - 8, height_of + 4, f"{mark:g}", anchor="end"))
    for i, (start, end) in enumerate(pairwise(places)):
        dashed = ' stroke-dasharray="3 4"' if i == 0 and points[0][0] == 0 else ""
        shapes.append(line(start, end, "smooth", f' stroke-width="2" stroke-linecap="round"{dashed}'))
    shapes += [f'<circle class="held" r="4" cx="{px:.1f}" cy="{py:.1f}"/>' for px, py in places]
    labelled = -math.inf
    for i, ((px, py), (size, value)) in enumerate(zip(places, points, strict=True)):
        shapes.append(line((px, low), (px, low + 5), "grid"))
        if px - labelled >= NEAREST:
            labelled = px
            beside = py + 18 if in_a_valley(places, i) and py + 20 < low else py - 10
            shapes.append(text(px, low + 19, short(size), anchor="middle"))
            shapes.append(text(px, beside, figure(value), "seam", "middle"))
    return shapes


def in_a_valley(places: Sequence[tuple[float, float]], i: int) -> bool:
    """Whether the lines from a point mostly rise, so that a label above it would lie on them."""
    around = [y for _, y in places[max(i - 1, 0) : i + 2]]
    return sum(around) / len(around) < places[i][1] - 1


def shares_across(sizes: Sequence[int]) -> list[float]:
    """Positions of ascending sizes between 0 and 1 on a logarithmic axis; size 0 goes one step before the first."""
    logs = [math.log2(size) for size in sizes if size]
    step = (logs[-1] - logs[0]) / (len(logs) - 1) if len(logs) > 1 else 1.0
    if len(logs) < len(sizes):
        logs.insert(0, logs[0] - step if logs else 0.0)
    span = logs[-1] - logs[0]
    return [(log - logs[0]) / span if span else 0.5 for log in logs]


def short(count: int) -> str:
    """4096 → '4k', 1000 → '1000'."""
    return f"{count // 1024}k" if count and count % 1024 == 0 else str(count)
