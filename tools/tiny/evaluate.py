"""How often a tiny model is exactly right on held-out cases.

    python tools/tiny/evaluate.py MODEL.gguf                 the shipped file, through wgemma, greedily
    python tools/tiny/evaluate.py WEIGHTS --vocabulary V     the float weights, through transformers

An answer counts when it is the wanted one, letter by letter; a tool call when its name and arguments are. Through
transformers the answer is checked token by token with the right ones before it: for greedy decoding that is the same.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import listening
import numpy as np
import pictures
import skills
import sounds
from skills import Case
from vocabulary import Vocabulary

from data import encode

CASES = 200


@dataclass
class Question:
    """A case whose last message is the wanted answer, with the picture or sound it is about."""

    case: Case
    image: np.ndarray | None = None  # [height, width, 3] u8
    sound: np.ndarray | None = None  # 16 kHz


def _words(make: Callable[..., Case], *, think: bool = False) -> Callable[[Random, Any], Question]:
    def draw(r: Random, speakers: Any) -> Question:
        case = make(r, test=True)
        while case.think != think:
            case = make(r, test=True)
        return Question(case)

    return draw


def _picture(kind: Any) -> Callable[[Random, Any], Question]:
    def draw(r: Random, speakers: Any) -> Question:
        scene, case = pictures.picture_case(r, kind)
        width, height = r.randint(160, 640), r.randint(160, 640)
        while not 0.55 < width / height < 1.8:
            height = r.randint(160, 640)
        drawn = pictures.picture(np, scene, width, height)
        return Question(case, image=np.clip(drawn, 0, 255).astype(np.uint8))

    return draw


def _sound(kind: Any) -> Callable[[Random, Any], Question]:
    def draw(r: Random, speakers: Any) -> Question:
        sound, case = listening.sound_case(r, speakers, kind)
        return Question(case, sound=np.round(sound.samples * 32767).astype(np.int16).astype(np.float32) / 32768)

    return draw


SKILLS: dict[str, Callable[[Random, Any], Question]] = {
    "questions": _words(skills.story_questions),
    "arithmetic": _words(skills.arithmetic),
    "word problems": _words(skills.word_problem),
    "JSON": _words(skills.extraction),
    "tool calls": _words(skills.tool_call),
    "thinking": _words(skills.word_problem, think=True),
    "memory": _words(skills.memory),
    "colour and shape": _picture(pictures._one),
    "count": _picture(pictures._many),
    "position": _picture(pictures._two),
    "drawn digits": _picture(pictures._number),
    "spoken digits": _sound(listening._digit),
    "transcripts": _sound(listening._words),
    "beeps": _sound(listening._beeps),
}
WORDS_ONLY = ("questions", "arithmetic", "word problems", "JSON", "tool calls", "thinking", "memory")


def questions(skill: str, count: int, clips: str | None) -> list[Question]:
    """The same every time: held-out people, places, numbers and voices."""
    speakers = listening.Speakers(sounds.load(clips), test=True) if clips else None
    random = Random(f"held out: {skill}")
    return [SKILLS[skill](random, speakers) for _ in range(count)]


# -- through wgemma


def ask(model: Any, question: Question, max_tokens: int = 96) -> tuple[str, list[tuple[str, Any]]]:
    """What the model says, and which tools it calls."""
    case = question.case
    messages = json.loads(json.dumps(case.messages[:-1]))
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "image":
                part["image"] = question.image
            elif part["type"] == "audio":
                part["audio"] = question.sound
    parts = list(model.chat(messages, tools=case.tools or None, think=case.think, temperature=0, max_tokens=max_tokens))
    text = "".join(part.text for part in parts if part.kind == "content")
    return text, [(part.tool_call.name, part.tool_call.arguments) for part in parts if part.tool_call]


def right(question: Question, text: str, calls: list[tuple[str, Any]]) -> bool:
    wanted = question.case.messages[-1]
    if wanted.get("tool_calls"):
        return calls == [(c["function"]["name"], c["function"]["arguments"]) for c in wanted["tool_calls"]]
    return text == wanted["content"] and not calls


def through_wgemma(path: str, names: list[str], count: int, clips: str | None, precision: Any) -> dict[str, float]:
    import wgemma

    scores = {}
    with wgemma.load(path, precision=precision) as model:
        for name in names:
            start, good = time.time(), 0
            for question in questions(name, count, clips):
                text, calls = ask(model, question)
                if right(question, text, calls):
                    good += 1
                elif good > 0.5 * count:
                    print(f"    {name}: wanted {question.case.messages[-1]}, got {text!r} {calls}")
            scores[name] = 100 * good / count
            print(f"{name:18} {scores[name]:6.1f} %   {time.time() - start:.0f} s", flush=True)
    return scores


# -- through transformers


def through_transformers(
    folder: Path, vocabulary: Path, names: list[str], count: int, clips: str | None, experts: bool
) -> dict[str, float]:
    import torch
    from export import load

    from model import build

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build(experts)
    state = {
        f"model.{name}".replace("model.lm_head", "lm_head"): torch.from_numpy(v) for name, v in load(folder).items()
    }
    missing, unknown = model.load_state_dict(state, strict=False)
    assert not unknown and all("inv_" in m or "lm_head" in m or "scale" in m or "softcap" in m for m in missing), (
        missing,
        unknown,
    )
    model.to(device).eval()
    tokenizer = Vocabulary.load(vocabulary).tokenizer()
    scores = {}
    for name in names:
        good = 0
        for question in questions(name, count, clips):
            inputs, soft = _media(question, device)
            ids, said = encode(tokenizer, question.case, soft, "large" if experts else "small")
            last = len(said) - 1 - said[::-1].index(True)
            first = last
            while said[first - 1]:
                first -= 1
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids], device=device), **inputs).logits[0]
            guessed = logits[first - 1 : last].argmax(-1).tolist()
            good += guessed == ids[first : last + 1]
        scores[name] = 100 * good / count
        print(f"{name:18} {scores[name]:6.1f} %", flush=True)
    return scores


def _media(question: Question, device: str) -> tuple[dict[str, Any], dict[str, int]]:
    import torch
    from mel import tokens_of, waves_to_mel

    if question.image is not None:
        from PIL import Image
        from transformers import Gemma4ImageProcessor

        out = Gemma4ImageProcessor()(images=[Image.fromarray(question.image)], return_tensors="pt")
        inputs = {key: out[key].to(device) for key in ("pixel_values", "image_position_ids")}
        return inputs, {"image": int((out["image_position_ids"][0, :, 0] >= 0).sum()) // 9}
    if question.sound is not None:
        mel, valid = waves_to_mel([torch.from_numpy(question.sound)], device)
        return {"input_features": mel, "input_features_mask": valid}, {"audio": tokens_of(len(question.sound))}
    return {}, {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--vocabulary", type=Path)
    parser.add_argument("--clips")
    parser.add_argument("--count", type=int, default=CASES)
    parser.add_argument("--skills", nargs="*", default=list(SKILLS))
    parser.add_argument("--experts", action="store_true")
    parser.add_argument("--precision", choices=("exact", "fast"), default="exact")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = [name for name in options.skills if options.clips or name in WORDS_ONLY]
    if options.model.is_dir():
        scores = through_transformers(
            options.model, options.vocabulary, names, options.count, options.clips, options.experts
        )
    else:
        scores = through_wgemma(str(options.model), names, options.count, options.clips, options.precision)
    if options.json:
        options.json.write_text(json.dumps(scores, indent=1))


if __name__ == "__main__":
    main()
