"""Pictures to ask about: shapes, colours, counts, positions, digits, drawn by signed distances.

Every function works on NumPy arrays and on torch tensors alike (`xp` is the module), so a GPU can draw a training batch
and NumPy the held-out files. A picture is data first: a `Scene` of figures with places and sizes relative to its sides.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

from skills import Case, Message, reply, user

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40), "green": (40, 160, 60), "blue": (40, 80, 220), "yellow": (240, 220, 40),
    "orange": (245, 140, 30),
    "purple": (140, 50, 170), "black": (20, 20, 20), "white": (250, 250, 250),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "star")
# Strokes of the digits in a box of [0, 1] × [0, 2], y down.
_STROKES: dict[int, str] = {
    0: "00 10 12 02 00", 1: "10 12", 2: "00 10 11 01 02 12", 3: "00 10 12 02 12 11 01", 4: "00 01 11 10 12",
    5: "10 00 01 11 12 02", 6: "10 00 02 12 11 01", 7: "00 10 12", 8: "00 10 12 02 00 01 11", 9: "12 10 00 01 11",
}  # fmt: skip
PLACES = {
    "top left": (0.25, 0.25), "top right": (0.75, 0.25), "bottom left": (0.25, 0.75), "bottom right": (0.75, 0.75),
    "centre": (0.5, 0.5),
}  # fmt: skip
MOST = 6


@dataclass(frozen=True)
class Figure:
    """A shape, or a digit, at (x, y) of the sides; `size` is its radius by the shorter side, `turn` an angle."""

    shape: str
    colour: str
    x: float
    y: float
    size: float
    turn: float


@dataclass(frozen=True)
class Scene:
    background: str
    figures: tuple[Figure, ...]
    shift: tuple[int, int, int]  # of the background's colour, so that no two are quite the same


# -- drawing


def draw(xp: Any, scene: Scene, x: Any, y: Any, short: float, soft: float) -> Any:
    """The picture at pixel centres x, y: [..., 3] in 0 … 255. `soft` is the width of an edge in pixels."""
    base = [min(max(c + d, 0), 255) for c, d in zip(COLOURS[scene.background], scene.shift, strict=True)]
    image = xp.stack([xp.zeros_like(x) + c for c in base], -1)
    for figure in scene.figures:
        far = distance(xp, figure, x, y, short)
        cover = xp.clip(0.5 - far / soft, 0, 1)[..., None]
        colour = xp.stack([xp.zeros_like(x) + c for c in COLOURS[figure.colour]], -1)
        image = image * (1 - cover) + colour * cover
    return image


def distance(xp: Any, figure: Figure, x: Any, y: Any, short: float) -> Any:
    """How far outside the figure a pixel lies."""
    radius = figure.size * short
    cos, sin = math.cos(figure.turn), math.sin(figure.turn)
    u, v = x * cos + y * sin, y * cos - x * sin
    u, v = u - (figure.x * cos + figure.y * sin), v - (figure.y * cos - figure.x * sin)
    if figure.shape == "circle":
        return xp.sqrt(u * u + v * v) - radius
    if figure.shape == "square":
        return xp.maximum(xp.abs(u), xp.abs(v)) - 0.85 * radius
    if figure.shape == "triangle":
        return xp.maximum(xp.abs(u) * 0.866 + v * -0.5, v) - 0.55 * radius
    if figure.shape == "star":
        return _star(xp, u, v, radius)
    return _digit(xp, int(figure.shape), u, v, radius)


def _star(xp: Any, u: Any, v: Any, radius: float) -> Any:
    """Five points: the edge between tip and notch, seen from the nearest of the ten halves."""
    fifth = 2 * math.pi / 5
    far, angle = xp.sqrt(u * u + v * v), xp.arctan2(u, -v)
    angle = xp.abs(angle - fifth * xp.round(angle / fifth))  # 0 at a tip, π / 5 at a notch
    px, py = far * xp.sin(angle), far * xp.cos(angle)
    notch = 0.42 * radius
    nx, ny = notch * math.sin(fifth / 2), notch * math.cos(fifth / 2)
    ex, ey = nx, ny - radius
    length = math.hypot(ex, ey)
    return (px * -ey + (py - radius) * ex) / length


def _digit(xp: Any, digit: int, u: Any, v: Any, radius: float) -> Any:
    points = [(int(p[0]), int(p[1])) for p in _STROKES[digit].split()]
    scale, best = 0.8 * radius, None
    for (ax, ay), (bx, by) in pairwise(points):
        ax2, ay2, bx2, by2 = ((ax - 0.5) * scale, (ay - 1) * scale, (bx - 0.5) * scale, (by - 1) * scale)
        dx, dy = bx2 - ax2, by2 - ay2
        along = xp.clip(((u - ax2) * dx + (v - ay2) * dy) / (dx * dx + dy * dy), 0, 1)
        far = xp.sqrt((u - ax2 - along * dx) ** 2 + (v - ay2 - along * dy) ** 2)
        best = far if best is None else xp.minimum(best, far)
    return best - 0.16 * radius


def picture(xp: Any, scene: Scene, width: int, height: int, soft: float = 1.0, **where: Any) -> Any:
    """The whole picture, [height, width, 3] in 0 … 255."""
    x = xp.arange(width, **where)[None, :] + 0.5 + xp.zeros((height, 1), **where)
    y = xp.arange(height, **where)[:, None] + 0.5 + xp.zeros((1, width), **where)
    placed = tuple(replace(f, x=f.x * width, y=f.y * height) for f in scene.figures)
    return draw(xp, replace(scene, figures=placed), x, y, min(width, height), soft)


# -- scenes and questions


def _turn(r: Random) -> float:
    return r.uniform(-0.25, 0.25)


def _scene(r: Random, figures: list[Figure]) -> Scene:
    used = {figure.colour for figure in figures}
    backgrounds = [c for c in ("white", "black", "white", "yellow", "blue") if c not in used] or ["white"]
    if "orange" in used and "yellow" in backgrounds:
        backgrounds.remove("yellow")
    if "purple" in used and "blue" in backgrounds:
        backgrounds.remove("blue")
    shift = (r.randint(-20, 20), r.randint(-20, 20), r.randint(-20, 20))
    return Scene(r.choice(backgrounds or ["white"]), tuple(figures), shift)


def _one(r: Random) -> tuple[Scene, list[tuple[str, str]], str]:
    colour, shape = r.choice(list(COLOURS)), r.choice(SHAPES)
    figure = Figure(shape, colour, r.uniform(0.3, 0.7), r.uniform(0.3, 0.7), r.uniform(0.1, 0.28), _turn(r))
    a = "An" if colour[0] == "o" else "A"
    asked = [
        ("What is in the picture?", f"{a} {colour} {shape}."), ("What do you see?", f"{a} {colour} {shape}."),
        ("Describe the picture.", f"{a} {colour} {shape}."), ("What is this?", f"{a} {colour} {shape}."),
        ("What is in this image?", f"{a} {colour} {shape}."),
        ("What do you see in this image?", f"{a} {colour} {shape}."),
        ("Describe this image.", f"{a} {colour} {shape}."), ("What is this image?", f"{a} {colour} {shape}."),
        (f"What colour is the {shape}?", f"The {shape} is {colour}."), ("What shape is it?", f"It is a {shape}."),
        ("Which shape do you see?", f"It is a {shape}."), ("What colour is it?", f"It is {colour}."),
    ]  # fmt: skip
    return _scene(r, [figure]), asked, "colour and shape"


def _spots(r: Random, count: int) -> list[tuple[float, float]]:
    """Places far enough apart for figures of radius 0.11: some cells of a grid of three by three, jittered."""
    cells = r.sample([(x, y) for x in range(3) for y in range(3)], count)
    return [((x + 0.5) / 3 + r.uniform(-0.04, 0.04), (y + 0.5) / 3 + r.uniform(-0.04, 0.04)) for x, y in cells]


def _many(r: Random) -> tuple[Scene, list[tuple[str, str]], str]:
    count = r.randint(1, MOST)
    same = r.random() < 0.5
    colours = [c for c in COLOURS if c not in ("white", "yellow")]
    shape, colour = r.choice(SHAPES), r.choice(colours)
    figures = [
        Figure(
            shape if same else r.choice(SHAPES),
            colour if same else r.choice(colours),
            x,
            y,
            r.uniform(0.07, 0.11),
            _turn(r),
        )
        for x, y in _spots(r, count)
    ]
    there = "There is 1 shape." if count == 1 else f"There are {count} shapes."
    asked = [
        ("How many shapes are there?", there),
        ("How many shapes do you see?", there),
        ("Count the shapes.", there),
    ]
    if same and count > 1:
        asked.append((f"How many {shape}s are there?", f"There are {count} {shape}s."))
    return _scene(r, figures), asked, "count"


def _two(r: Random) -> tuple[Scene, list[tuple[str, str]], str]:
    shapes, colours = r.sample(SHAPES, 2), r.sample([c for c in COLOURS if c != "white"], 2)
    spots = r.sample([p for p in PLACES if p != "centre"], 2)
    figures = [
        Figure(
            shape,
            colour,
            PLACES[spot][0] + r.uniform(-0.05, 0.05),
            PLACES[spot][1] + r.uniform(-0.05, 0.05),
            r.uniform(0.1, 0.18),
            _turn(r),
        )
        for shape, colour, spot in zip(shapes, colours, spots, strict=True)
    ]
    asked = [(f"What colour is the {s}?", f"The {s} is {c}.") for s, c in zip(shapes, colours, strict=True)]
    asked += [(f"Which shape is {c}?", f"The {s} is {c}.") for s, c in zip(shapes, colours, strict=True)]
    asked += [(f"Where is the {s}?", f"The {s} is at the {p}.") for s, p in zip(shapes, spots, strict=True)]
    return _scene(r, figures), asked, "position"


def _number(r: Random) -> tuple[Scene, list[tuple[str, str]], str]:
    digit, colour = r.randint(0, 9), r.choice([c for c in COLOURS if c != "white"])
    figure = Figure(str(digit), colour, r.uniform(0.35, 0.65), r.uniform(0.4, 0.6), r.uniform(0.22, 0.38), _turn(r) / 2)
    answer = f"The digit is {digit}."
    asked = [
        ("Which digit do you see?", answer),
        ("What digit is this?", answer),
        ("Read the digit.", answer),
        ("Which number is this?", answer),
    ]
    return _scene(r, [figure]), asked, "digit"


KINDS = ((_one, 2), (_many, 4), (_two, 3), (_number, 2))


def picture_case(r: Random, kind: Any = None) -> tuple[Scene, Case]:
    """A scene and a conversation about it: one question, or a few."""
    make = kind or r.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]
    scene, asked, skill = make(r)
    messages: list[Message] = []
    for i, (question, answer) in enumerate(r.sample(asked, 1 if kind else min(r.choice((1, 1, 2)), len(asked)))):
        place = {"type": "image"}
        content: Any = [place, {"type": "text", "text": question}]
        messages += [{"role": "user", "content": content} if i == 0 else user(question), reply(answer)]
    return scene, Case(skill, messages)
