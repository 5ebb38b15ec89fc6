"""Questions about sounds: which digit, which word, how many beeps, up or down."""

from collections import defaultdict
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from skills import Case, reply
from sounds import COMMANDS, DIGITS, HELD_OUT_VOICES, WORDS, Clip, Sound, beeps, glide, roughened, spoken

MOST_BEEPS = 6


class Speakers:
    """Clips by word, from the training voices or the held-out ones."""

    def __init__(self, clips: list[Clip], *, test: bool) -> None:
        self.by_word: dict[str, list[NDArray[np.float32]]] = defaultdict(list)
        for clip in clips:
            if (clip.voice.partition("+")[2] in HELD_OUT_VOICES) == test:
                self.by_word[clip.word].append(clip.samples)

    def say(self, r: Random, words: list[str]) -> Sound:
        return spoken(r, words, [r.choice(self.by_word[word]) for word in words])


def _digit(r: Random, speakers: Speakers) -> tuple[Any, list[tuple[str, str]], str]:
    word = r.choice(DIGITS)
    answer = f"The digit is {DIGITS.index(word)}."
    asked = [
        ("Which digit do you hear?", answer),
        ("What digit is this?", answer),
        ("Which number is spoken?", answer),
        ("What do you hear?", answer),
    ]
    return speakers.say(r, [word]), asked, "spoken digit"


def _words(r: Random, speakers: Speakers) -> tuple[Any, list[tuple[str, str]], str]:
    words = [r.choice(WORDS) for _ in range(r.choice((1, 1, 2, 3)))]
    said = " ".join(words)
    asked = [
        ("Transcribe the audio.", said),
        ("Write down what you hear.", said),
        ("Transcribe this.", said),
        ("What is said?", said),
    ]
    return speakers.say(r, words), asked, "transcript"


def _command(r: Random, speakers: Speakers) -> tuple[Any, list[tuple[str, str]], str]:
    word = r.choice(COMMANDS)
    answer = f"The word is {word}."
    return (
        speakers.say(r, [word]),
        [("Which word do you hear?", answer), ("Which command is this?", answer)],
        "spoken command",
    )


def _beeps(r: Random, speakers: Speakers) -> tuple[Any, list[tuple[str, str]], str]:
    count = r.randint(1, MOST_BEEPS)
    answer = "There is 1 beep." if count == 1 else f"There are {count} beeps."
    return (
        beeps(r, count),
        [("How many beeps are there?", answer), ("Count the beeps.", answer), ("How many beeps do you hear?", answer)],
        "beeps",
    )


def _glide(r: Random, speakers: Speakers) -> tuple[Any, list[tuple[str, str]], str]:
    way = r.choice(("rising", "falling"))
    answer = f"The tone is {way}."
    return glide(r, way), [("Is the tone rising or falling?", answer), ("How does the tone move?", answer)], "tone"


KINDS = ((_digit, 4), (_words, 4), (_command, 1.5), (_beeps, 3), (_glide, 1))


def sound_case(r: Random, speakers: Speakers, kind: Any = None) -> tuple[Sound, Case]:
    make = kind or r.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]
    sound, asked, skill = make(r, speakers)
    question, answer = r.choice(asked)
    content = [{"type": "audio"}, {"type": "text", "text": question}]
    return roughened(r, sound), Case(skill, [{"role": "user", "content": content}, reply(answer)])
