"""`wgemma transcribe FILE`: writes down what is said in a recording. A long one is transcribed piece by piece."""

import argparse
import sys
from dataclasses import asdict, dataclass

from wgemma.api import Part
from wgemma.cli.chat_answer import Answer, answer
from wgemma.cli.chat_model import open_model
from wgemma.cli.chat_render import Painter
from wgemma.cli.output import as_json
from wgemma.cli.repl import write
from wgemma.cli.stored import problem
from wgemma.cli.words import DEFAULT, add_device_option
from wgemma.embedded import NAME
from wgemma.errors import Error, MediaError
from wgemma.files.paths import user_path
from wgemma.files.sounds import read_sound
from wgemma.files.stores import Stores
from wgemma.transcribing import MOST_TOKENS, prompt_for


@dataclass(frozen=True, slots=True)
class SpokenPiece:
    """What is said from `start` to `end`, in seconds."""

    start: float
    end: float
    text: str


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("transcribe", help="transcribe a recording")
    verb.add_argument("file", metavar="FILE", help="a WAV, MP3, FLAC or Ogg file")
    verb.add_argument("-m", "--model", metavar="MODEL", help="use this Ollama name, .gguf path or http(s) URL")
    verb.add_argument("--projector", metavar="FILE", help="load the vision and audio towers from this file")
    add_device_option(verb)
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(do=transcribe, context=None, kv="f16", precision="fast", ple="auto")


def transcribe(options: argparse.Namespace) -> int:
    sound = read_sound(user_path(options.file, MediaError))  # reports a bad file before a model is loaded
    target = options.model or hearing_model() or NAME
    if options.model is None and not options.json:
        what = DEFAULT if target == NAME else f"{target}, the latest model here that hears"
        print(f"Using {what}.", file=sys.stderr)
    opened = open_model(target, options, quiet=options.json)
    prompt = prompt_for(opened.files)
    pieces, start, reason = list[SpokenPiece](), 0.0, None
    painter = Painter()

    def hear(part: Part) -> None:
        if not options.json:
            write(painter.part(part))

    try:
        for heard in opened.model.cut_audio(sound):
            question = [{"type": "audio", "audio": heard}, {"type": "text", "text": prompt}]
            reply, end = Answer(), start + len(heard.samples) / heard.rate
            settings = {"temperature": 0, "max_tokens": MOST_TOKENS}
            answer(opened.model, [{"role": "user", "content": question}], settings, reply, hear, quiet=options.json)
            if not options.json:
                write(painter.end())
            pieces.append(SpokenPiece(round(start, 3), round(end, 3), reply.text.strip()))
            start, reason = end, reply.finish_reason
            if reason == "cancelled":
                break
    finally:
        opened.close()
    if options.json:
        text = "\n".join(piece.text for piece in pieces if piece.text)
        seconds = len(sound.samples) / sound.channels / sound.rate
        record = {"file": options.file, "model": opened.name, "seconds": seconds, "text": text}
        as_json({**record, "pieces": [asdict(piece) for piece in pieces]})
    elif not any(piece.text for piece in pieces):
        print("Nothing was understood.", file=sys.stderr)
    return 130 if reason == "cancelled" else 0


def hearing_model() -> str | None:
    """The most recent stored model that takes audio and can run."""
    for model in sorted(Stores.find().models(), key=lambda model: (-model.modified, str(model.name))):
        try:
            if "audio" in model.capabilities and not model.adapters and problem(model) is None:
                return str(model.name)
        except Error:
            continue
    return None
