"""`wgemma run`: chat with a model, or get one answer to one prompt."""

import argparse
import json
import sys
from typing import Any

from wgemma.cli.chat_answer import Answer, answer
from wgemma.cli.chat_conversation import PARAMETERS, THINK, ChatSettings, Conversation
from wgemma.cli.chat_media import Content, attach, message, named_media
from wgemma.cli.chat_model import Opened, open_model
from wgemma.cli.chat_render import Painter, coloured, forgotten, remark, statistics
from wgemma.cli.output import as_json, clean
from wgemma.cli.pull import offer
from wgemma.cli.repl import Repl, write
from wgemma.cli.words import (
    add_device_option,
    add_model_option,
    add_precision_option,
    model_and_words,
    named_model,
)
from wgemma.engine.senses import BUDGET
from wgemma.engine.thinking import LEVELS
from wgemma.errors import Error, SettingsError
from wgemma.files.locate import locate
from wgemma.files.reading import regular_file
from wgemma.formats import resolve
from wgemma.model.vision_config import BUDGETS

_MAX_SCHEMA = 4_000_000  # bytes
CHOICES = f"{', '.join(map(str, BUDGETS[:-1]))} or {BUDGETS[-1]}"


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("run", help="chat with a model")
    verb.add_argument(
        "words",
        metavar="PROMPT",
        nargs="*",
        help="answer this prompt and exit; without it, start a chat. The first word may name the model instead of -m",
    )
    add_model_option(verb)
    add_media(verb.add_argument_group("images and sound"))
    verb.add_argument("--system", metavar="TEXT", help="replace the model's own system prompt")
    verb.add_argument(
        "--format", metavar="FILE", help="answer in JSON that fits the schema in this file; `json`: in any JSON object"
    )
    verb.add_argument("--verbose", action="store_true", help="print token counts and timings after each answer")
    verb.add_argument("--json", action="store_true", help="print the answer as one JSON document")
    verb.add_argument(
        "--no-shift",
        dest="shift",
        action="store_false",
        help="refuse a chat that is too long; do not drop old messages",
    )
    _add_thinking(verb.add_argument_group("thinking"))
    _add_sampling(verb.add_argument_group("sampling"))
    _add_loading(verb.add_argument_group("loading"))
    verb.set_defaults(do=run)


def add_media(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--image", metavar="FILE", action="append", help="attach an image; repeatable")
    group.add_argument("--audio", metavar="FILE", action="append", help="attach a sound; repeatable")
    group.add_argument(
        "--budget", metavar="N", type=_budget, help=f"let an image take up to N tokens: {CHOICES} (default: {BUDGET})"
    )
    group.add_argument("--projector", metavar="FILE", help="load the vision and audio towers from this file")


def _budget(text: str) -> int:
    if text not in map(str, BUDGETS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a budget; use {CHOICES}")
    return int(text)


def _add_thinking(group: "argparse._ArgumentGroup") -> None:
    limits = ", ".join(f"{level} {tokens}" for level, tokens in LEVELS.items())
    group.add_argument(
        "--think",
        metavar="LEVEL",
        nargs="?",
        const="true",
        choices=THINK,
        help=f"let the model think before it answers: true, false, or a level that limits the tokens ({limits})",
    )
    group.add_argument("--thinking-budget", metavar="N", type=int, help="think for at most N tokens")
    group.add_argument("--hide-thinking", action="store_true", help="do not show the thinking")


def _add_sampling(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--seed", metavar="N", type=int, help="fix the random seed: the same one gives the same answer; -1: random"
    )
    group.add_argument(
        "--temperature", metavar="X", type=float, help="set the temperature; 0 always takes the top token"
    )
    group.add_argument("--top-k", metavar="N", type=int, help="sample from the N likeliest tokens; 0: from all")
    group.add_argument("--top-p", metavar="X", type=float, help="sample from the likeliest tokens that add up to X")
    group.add_argument(
        "--min-p", metavar="X", type=float, help="sample from tokens at least X times as likely as the top"
    )
    group.add_argument("--repeat-penalty", metavar="X", type=float, help="discourage repetition if above 1")
    group.add_argument("--max-tokens", metavar="N", type=int, help="stop after N tokens")
    group.add_argument("--stop", metavar="TEXT", action="append", help="end the answer before this text; repeatable")


def _add_loading(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--context",
        metavar="N",
        type=int,
        help="limit the context to N tokens (default: the model's num_ctx or maximum)",
    )
    group.add_argument("--kv", choices=("f16", "f32"), default="f16", help="set the KV cache type (default: f16)")
    add_precision_option(group)
    group.add_argument(
        "--ple", choices=("auto", "gpu", "host"), default="auto", help="keep the per-layer table there (default: auto)"
    )
    add_device_option(group)
    group.add_argument(
        "--adapter",
        metavar="PATH[=SCALE]",
        action="append",
        help="apply a LoRA adapter, a PEFT folder or .gguf file; repeatable, adapters add up",
    )


def run(options: argparse.Namespace) -> int:
    settings = _settings(options)  # reports a bad setting before anything is loaded
    _offer_to_pull(options)
    target, words = model_and_words(options)
    media = [attach(path, "image", options.budget) for path in options.image or ()]
    media += [attach(path, "audio") for path in options.audio or ()]
    text, paths = named_media(words)
    media += [attach(path, None, options.budget) for path in paths]
    if paths and not options.json:
        print(clean(f"Attached: {', '.join(map(str, paths))}."), file=sys.stderr)
    prompt = _prompt(_text(text) if words else None, as_json=options.json)
    if prompt is not None and not prompt.strip() and not media:
        if options.json:
            raise SettingsError("the prompt is empty.")
        locate(target)  # a wrong model is the worse mistake: report that first
        print("The prompt is empty, so there is nothing to answer.", file=sys.stderr)
        return 1
    opened = open_model(target, options, quiet=options.json)
    try:
        system = None if options.system is None else _text(options.system)
        conversation = Conversation(settings, system)
        if prompt is None:
            return Repl(opened, conversation, media, options.budget).run()
        return _answer_once(opened, conversation, message(prompt, media), options)
    finally:
        opened.close()


def _offer_to_pull(options: argparse.Namespace) -> None:
    """Asks whether to pull the model if it is not here."""
    name = named_model(options)
    if name is not None and not options.json:
        offer(name)


def _settings(options: argparse.Namespace) -> ChatSettings:
    settings = ChatSettings(
        think=THINK[options.think] if options.think else options.thinking_budget is not None,
        hide_thinking=options.hide_thinking,
        verbose=options.verbose,
        shift=options.shift,
        format=None if options.format is None else _format(options),
    )
    for name in PARAMETERS:
        if (value := getattr(options, name, None)) is not None:
            settings.put(name, value)
    return settings


def _format(options: argparse.Namespace) -> Any:
    """What answers must look like. What is not enforced is told."""
    if options.format == "json":
        return "json"
    with regular_file(options.format, _MAX_SCHEMA, SettingsError) as file:
        text = file.read()
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise SettingsError(f"{options.format} is no JSON schema: {problem}.") from None
    try:
        found = resolve(schema)
    except Error as problem:
        raise SettingsError(f"{options.format}: {problem}") from None
    if found is None:
        raise SettingsError(f"{options.format} is no JSON schema: it is null.")
    if found.unchecked and not options.json:
        print(clean(f"Not enforced: {', '.join(found.unchecked)}."), file=sys.stderr)
    return schema


def _prompt(text: str | None, *, as_json: bool) -> str | None:
    """The prompt from the command line, then the one piped in, or both. None: start a chat."""
    if _is_terminal(sys.stdin):
        if text is not None:
            return text
        if as_json:
            raise SettingsError('--json answers a single prompt; pass one: `wgemma run "Hello" --json`.')
        if _is_terminal(sys.stdout):
            return None
        print("Type the prompt and end it with Ctrl-D.", file=sys.stderr)
    piped = sys.stdin.buffer.read().decode(errors="replace").rstrip("\n") if sys.stdin is not None else ""
    return "\n\n".join(part for part in (text, piped) if part)


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()


def _text(argument: str) -> str:
    """The argument as valid Unicode, whatever bytes it came from."""
    return argument.encode(errors="replace").decode()


def _answer_once(opened: Opened, conversation: Conversation, prompt: Content, options: argparse.Namespace) -> int:
    settings, reply = conversation.settings, Answer()
    messages = conversation.asking(prompt)
    if options.json:
        answer(opened.model, messages, settings.options(), reply, lambda part: None, quiet=True)
        record = {"model": opened.name, "device": opened.model.backend.name, **reply.record()}
        record["timings"]["load_seconds"] = opened.seconds
        if settings.format is not None:
            record["parsed"] = reply.parsed
        as_json(record)
    else:
        watched = _is_terminal(sys.stdout)
        painter = Painter(colour=coloured(sys.stdout), watched=watched, hide_thinking=settings.hide_thinking)
        try:
            answer(opened.model, messages, settings.options(), reply, lambda part: write(painter.part(part)))
        finally:
            write(painter.end())
        for told in (remark(reply, opened.model.backend.context), forgotten(reply)):
            if told:
                print(told, file=sys.stderr)
        if settings.verbose:
            print(f"\n{statistics(reply, opened.seconds)}", end="", file=sys.stderr)
    return 130 if reply.finish_reason == "cancelled" else 0
