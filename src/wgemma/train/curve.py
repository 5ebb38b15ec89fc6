"""Draws the loss curve as an SVG, without a library, readable on light and dark backgrounds."""

import math
from collections.abc import Sequence

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 40, 48
POINTS = 800  # more points than pixels would only enlarge the file
SMOOTHING = 0.9

STYLE = """
svg { color-scheme: light dark; font: 12px system-ui, sans-serif; }
.ground { fill: #ffffff; } .grid { stroke: #d8dce2; } .ink { fill: #3c4350; }
.each { stroke: #9db8dd; } .smooth { stroke: #1f5fae; } .held { fill: #b8531a; }
@media (prefers-color-scheme: dark) {
.ground { fill: #14171c; } .grid { stroke: #333a45; } .ink { fill: #c9d1dc; }
.each { stroke: #40597d; } .smooth { stroke: #7db1f2; } .held { fill: #f0975a; }
}
"""


def curve(losses: Sequence[float], validation: Sequence[tuple[int, float]] = (), title: str = "loss") -> str:
    """losses[i] is the loss of step i + 1; `validation` is a list of (step, loss)."""
    points = [(i + 1.0, loss) for i, loss in enumerate(losses) if math.isfinite(loss)]
    held = [(float(step), loss) for step, loss in validation if math.isfinite(loss)]
    chart = _Chart(points + held)
    smooth = list(zip((step for step, _ in points), smoothed([loss for _, loss in points]), strict=True))
    body = [
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="ink" x="{LEFT}" y="22" font-weight="bold">{escaped(title)}</text>',
        *chart.axes(),
        chart.line("each", 1.0, points),
        chart.line("smooth", 2.0, smooth),
        *(f'<circle class="held" r="4" cx="{x:.1f}" cy="{y:.1f}"/>' for x, y in map(chart.place, held)),
        *_legend(bool(held)),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    named = f"<title>{escaped(title)}</title><style>{STYLE}</style>"
    return "\n".join([head, named, *body, "</svg>", ""])


def smoothed(values: Sequence[float]) -> list[float]:
    """An exponential moving average, corrected to start at the first value instead of 0."""
    out, mean, weight = [], 0.0, 0.0
    for value in values:
        mean = SMOOTHING * mean + (1 - SMOOTHING) * value
        weight = SMOOTHING * weight + (1 - SMOOTHING)
        out.append(mean / weight)
    return out


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from below `low` to above `high`: steps of 1, 2 or 5 times a power of ten."""
    span = max(high - low, 1e-6 * abs(high), 1e-9)
    power = 10.0 ** math.floor(math.log10(span / (most - 1)))
    size = next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= most - 1)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [round(i * size, 12) for i in range(first, max(last, first + 1) + 1)]


class _Chart:
    """Maps steps and losses to coordinates."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        steps, losses = [x for x, _ in points] or [1.0], [y for _, y in points] or [0.0, 1.0]
        self.losses = ticks(min(min(losses), 0.9 * max(losses)), max(losses))
        self.steps = [tick for tick in ticks(0, max(steps)) if tick == int(tick)]
        self._last = max(max(steps), 1.0)

    def place(self, point: tuple[float, float]) -> tuple[float, float]:
        step, loss = point
        low, high = self.losses[0], self.losses[-1]
        return (
            LEFT + (WIDTH - LEFT - RIGHT) * step / self._last,
            HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (loss - low) / (high - low),
        )

    def axes(self) -> list[str]:
        out = []
        for loss in self.losses:
            _, y = self.place((0, loss))
            out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            out.append(f'<text class="ink" text-anchor="end" x="{LEFT - 8}" y="{y + 4:.1f}">{loss:g}</text>')
        for step in self.steps:
            x, _ = self.place((step, self.losses[0]))
            if x <= WIDTH - RIGHT + 1:
                y = HEIGHT - BOTTOM
                out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 5}"/>')
                out.append(f'<text class="ink" text-anchor="middle" x="{x:.1f}" y="{y + 20}">{step:g}</text>')
        middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
        out.append(f'<text class="ink" text-anchor="middle" x="{middle:g}" y="{HEIGHT - 8}">step</text>')
        return out

    def line(self, kind: str, width: float, points: Sequence[tuple[float, float]]) -> str:
        every = max(1, -(-len(points) // POINTS))
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self.place, points[::every]))
        shape = f'fill="none" stroke-width="{width:g}" stroke-linejoin="round"'
        return f'<polyline class="{kind}" {shape} points="{places}"/>'


def _legend(validated: bool) -> list[str]:
    x, y = WIDTH - RIGHT - 250, 18
    out = [
        f'<line class="smooth" stroke-width="2" x1="{x}" x2="{x + 20}" y1="{y}" y2="{y}"/>',
        f'<text class="ink" x="{x + 26}" y="{y + 4}">training, smoothed</text>',
    ]
    if validated:
        out.append(f'<circle class="held" r="4" cx="{x + 160}" cy="{y}"/>')
        out.append(f'<text class="ink" x="{x + 170}" y="{y + 4}">validation</text>')
    return out


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
