"""Writes the fixed sample of every skill that the tests ask: `python tools/tiny/sample.py FOLDER --clips C.npz`.

The first few held-out questions of each skill, as JSON, with their pictures and sounds beside it. The embedded model
is asked all of them, the model with experts those in words.
"""

import argparse
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
from evaluate import SKILLS, questions
from PIL import Image

EACH = 3
PICTURES = 1  # they take a while without a GPU


def write(folder: Path, clips: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    sample: list[dict[str, Any]] = []
    for skill in SKILLS:
        for i, question in enumerate(questions(skill, EACH, clips)):
            if question.image is not None and i >= PICTURES:
                break
            case = question.case
            entry: dict[str, Any] = {
                "skill": skill,
                "messages": case.messages,
                "tools": case.tools,
                "think": case.think,
            }
            name = f"{skill.replace(' ', '-')}-{i}"
            if question.image is not None:
                entry["image"] = f"{name}.png"
                Image.fromarray(question.image).save(folder / entry["image"], optimize=True)
            if question.sound is not None:
                entry["sound"] = f"{name}.wav"
                _save(folder / entry["sound"], question.sound)
            sample.append(entry)
    (folder / "sample.json").write_text(json.dumps(sample, indent=1, ensure_ascii=False))


def _save(path: Path, sound: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(np.round(sound * 32768).astype("<i2").tobytes())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clips", required=True)
    options = parser.parse_args()
    write(options.folder, options.clips)
