"""What each soft token of a picture or a sound shows, as labels for two small heads that only training has.

Answers alone teach a tower slowly: the question comes first to be understood. With labels on every token a tower learns
what to see and hear within a minute, and the language model learns to read it. The heads are not part of the model.
"""

import numpy as np
from listening import WORDS
from pictures import COLOURS, SHAPES, Scene
from sounds import Sound

FIGURES = ["", *SHAPES, *map(str, range(10))]
SEEN = len(FIGURES) + 1 + len(COLOURS) + 2  # figure, colour, whether its centre is here
HEARD = 1 + len(WORDS) + 3
_NAMES = {name: 1 + i for i, name in enumerate((*WORDS, "beep", "rising", "falling"))}


def seen(scene: Scene, columns: int, rows: int, width: int, height: int) -> np.ndarray:
    """[tokens, 3]: figure, colour and centre for the tokens of a picture, row by row."""
    y, x = np.mgrid[0:rows, 0:columns]
    cell = width / columns
    labels = np.zeros((rows, columns, 3), np.int64)
    nearest = np.full((rows, columns), np.inf)
    for figure in scene.figures:
        fx, fy = figure.x * width, figure.y * height
        reach = figure.size * min(width, height) * 0.8
        away = np.hypot((x + 0.5) * cell - fx, (y + 0.5) * cell - fy) - reach
        mine = (away < 0.3 * cell) & (away < nearest)
        nearest = np.where(mine, away, nearest)
        labels[mine, 0] = FIGURES.index(figure.shape)
        labels[mine, 1] = 1 + list(COLOURS).index(figure.colour)
        row, column = min(int(fy / cell), rows - 1), min(int(fx / cell), columns - 1)
        labels[row, column] = (FIGURES.index(figure.shape), 1 + list(COLOURS).index(figure.colour), 1)
    return labels.reshape(-1, 3)


def heard(sound: Sound, tokens: int) -> np.ndarray:
    """[tokens]: a word is labelled where it ends, a beep where it starts; tokens inside a word are ignored (−100)."""
    labels = np.zeros(tokens, np.int64)
    for name, start, end in sound.marks:
        first, last = start / 640, end / 640
        if name == "beep":
            span = range(int(first) + 1, int(first) + 3)
        elif name in ("rising", "falling"):
            span = range(int((first + last) / 2), int(last))
        else:
            labels[int(first) : int(last) + 1] = -100
            span = range(int(last) - 1, int(last) + 2)
        for token in span:
            if 0 <= token < tokens:
                labels[token] = _NAMES[name]
    return labels
