"""`wgemma run`: a chat with a model, or one answer to one prompt."""

import argparse
import sys
from typing import Any

from wgemma.cli.chat_answer import Reply, answer
from wgemma.cli.chat_conversation import PARAMETERS, Conversation, Settings
from wgemma.cli.chat_media import Content, attach, message
from wgemma.cli.chat_model import Opened, open_model
from wgemma.cli.chat_render import Painter, coloured, remark, statistics
from wgemma.cli.output import as_json
from wgemma.cli.repl import Repl, write
from wgemma.embedded import NAME
from wgemma.errors import SettingsError
from wgemma.files.locate import locate
from wgemma.model.vision_config import BUDGETS


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("run", help="chat with a model")
    verb.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="an Ollama name, a .gguf path or an http(s) URL; default: the model that comes with wgemma",
    )
    verb.add_argument("prompt", metavar="PROMPT", nargs="*", help="one prompt to answer; without it, a chat")
    add_media(verb.add_argument_group("what the model sees and hears"))
    verb.add_argument("--system", metavar="TEXT", help="the system text, instead of the model's own")
    verb.add_argument("--verbose", action="store_true", help="tell tokens and times after each answer")
    verb.add_argument("--json", action="store_true", help="answer with one JSON document")
    _add_thinking(verb.add_argument_group("thinking"))
    _add_sampling(verb.add_argument_group("how the answer is chosen"))
    _add_loading(verb.add_argument_group("how the model is loaded"))
    allow_options_anywhere(verb)
    verb.set_defaults(do=run)


def add_media(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--image", metavar="FILE", action="append", help="show the model a picture; repeatable")
    group.add_argument("--audio", metavar="FILE", action="append", help="let the model hear a sound; repeatable")
    group.add_argument("--budget", metavar="N", type=int, choices=BUDGETS, help="the most tokens of a picture: 280, …")
    group.add_argument("--projector", metavar="FILE", help="the file of its towers, where they are not the model's own")


def _add_thinking(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--think", action="store_true", help="let the model think before it answers")
    group.add_argument("--thinking-budget", metavar="N", type=int, help="think, but for N tokens at most")
    group.add_argument("--hide-thinking", action="store_true", help="do not show the thoughts")


def _add_sampling(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--seed", metavar="N", type=int, help="the same seed gives the same answer")
    group.add_argument("--temperature", metavar="X", type=float, help="0 takes the likeliest token each time")
    group.add_argument("--top-k", metavar="N", type=int, help="choose among the N likeliest tokens; 0: among all")
    group.add_argument("--top-p", metavar="X", type=float, help="… among those that make up this share")
    group.add_argument("--min-p", metavar="X", type=float, help="… among those at least X times as likely as the best")
    group.add_argument("--repeat-penalty", metavar="X", type=float, help="above 1: repeat less")
    group.add_argument("--max-tokens", metavar="N", type=int, help="the longest answer")
    group.add_argument("--stop", metavar="TEXT", action="append", help="end the answer before this text; repeatable")


def _add_loading(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--context", metavar="N", type=int, help="tokens the chat may have; default: all the model can")
    group.add_argument("--kv", choices=("f16", "f32"), default="f16", help="how keys and values are kept")
    group.add_argument(
        "--precision", choices=("fast", "exact"), default="fast", help="fast: eight bits where the GPU multiplies them"
    )
    group.add_argument("--ple", choices=("auto", "gpu", "host"), default="auto", help="where the per-layer table lies")
    group.add_argument("--device", metavar="NAME", help="the adapter to use, or `reference` for none")
    group.add_argument(
        "--adapter",
        metavar="PATH[=SCALE]",
        action="append",
        help="a LoRA adapter, a PEFT folder or .gguf file; repeatable, they are summed",
    )


def allow_options_anywhere(verb: argparse.ArgumentParser) -> None:
    """`run MODEL --think PROMPT`: argparse takes options between positionals only when parsing intermixed."""
    plain = verb.parse_known_args

    def parse(*arguments: Any) -> Any:
        verb.parse_known_args = plain  # type: ignore[method-assign]
        try:
            return verb.parse_known_intermixed_args(*arguments)
        finally:
            verb.parse_known_args = mixed  # type: ignore[method-assign]

    mixed: Any = parse
    verb.parse_known_args = mixed  # type: ignore[method-assign]


def run(options: argparse.Namespace) -> int:
    settings = _settings(options)  # a wrong one is told before anything is loaded
    if options.model is not None and _is_a_question(options.model):
        options.model, options.prompt = None, [options.model, *options.prompt]
    target = options.model if options.model is not None else _without_a_name(options)
    media = [attach(path, "image", options.budget) for path in options.image or ()]
    media += [attach(path, "audio") for path in options.audio or ()]
    prompt = _prompt(options)
    if prompt is not None and not prompt.strip() and not media:
        if options.json:
            raise SettingsError("the prompt is empty.")
        locate(target)  # a wrong model is the larger mistake
        print("Nothing was asked: the prompt is empty.", file=sys.stderr)
        return 1
    opened = open_model(target, options, quiet=options.json)
    try:
        conversation = Conversation(settings, opened.files.messages, options.system)
        if prompt is None:
            return Repl(opened, conversation, media, options.budget).run()
        return _answer_once(opened, conversation, message(prompt, media), options)
    finally:
        opened.close()


def _is_a_question(model: str) -> bool:
    """Words with spaces between them that are no path: no model is called so."""
    return " " in model.strip() and not model.endswith(".gguf") and not any(sign in model for sign in "/\\")


def _without_a_name(options: argparse.Namespace) -> str:
    """The model of a bare `wgemma run`: the embedded one."""
    if not options.json:
        print(f"Using {NAME}, the tiny demonstration model that comes with wgemma.", file=sys.stderr)
    return NAME


def _settings(options: argparse.Namespace) -> Settings:
    settings = Settings(
        think=options.think or options.thinking_budget is not None,
        hide_thinking=options.hide_thinking,
        verbose=options.verbose,
    )
    for name in PARAMETERS:
        if (value := getattr(options, name, None)) is not None:
            settings.put(name, value)
    return settings


def _prompt(options: argparse.Namespace) -> str | None:
    """What to answer: the prompt given, what is piped in, or the one and then the other. None: ask the user."""
    if _is_terminal(sys.stdin):
        if options.prompt:
            return _text(" ".join(options.prompt))
        if options.json:
            raise SettingsError('--json answers one prompt: give it, as in `wgemma run MODEL "Hello" --json`.')
        if _is_terminal(sys.stdout):
            return None
        print("Type the prompt and end it with Ctrl-D.", file=sys.stderr)
    piped = sys.stdin.buffer.read().decode(errors="replace").rstrip("\n") if sys.stdin is not None else ""
    return "\n\n".join(text for text in (_text(" ".join(options.prompt)), piped) if text)


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()


def _text(argument: str) -> str:
    """An argument as proper text, whatever bytes it was made of."""
    return argument.encode(errors="replace").decode()


def _answer_once(opened: Opened, conversation: Conversation, prompt: Content, options: argparse.Namespace) -> int:
    settings, reply = conversation.settings, Reply()
    messages = conversation.asking(prompt)
    if options.json:
        answer(opened.model, messages, settings.options(), reply, lambda part: None)
        record = {"model": opened.name, "device": opened.model.backend.name, **reply.record()}
        record["timings"]["load_seconds"] = opened.seconds
        as_json(record)
    else:
        watched = _is_terminal(sys.stdout)
        painter = Painter(colour=coloured(sys.stdout), watched=watched, hide_thinking=settings.hide_thinking)
        try:
            answer(opened.model, messages, settings.options(), reply, lambda part: write(painter.part(part)))
        finally:
            write(painter.end())
        told = remark(reply, opened.model.backend.context)
        if told:
            print(told, file=sys.stderr)
        if settings.verbose:
            print(f"\n{statistics(reply, opened.seconds)}", end="", file=sys.stderr)
    return 130 if reply.finish_reason == "cancelled" else 0
