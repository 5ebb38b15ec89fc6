"""What a line at the prompt means: a message to the model, or a command. Pure: no terminal, no model."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from wgemma.errors import SettingsError

QUOTES = '"""'
COMMANDS = {
    "/set": "change a setting; /set alone lists them",
    "/show": "show details of the model and the chat; /show alone lists the topics",
    "/image": "attach an image to the next message: /image FILE",
    "/audio": "attach a sound to the next message: /audio FILE",
    "/clear": "forget the chat",
    "/save": "save the chat to a file: /save FILE",
    "/load": "load a chat from a file: /load FILE",
    "/bye": "leave, like Ctrl-D",
    "/?": "show this help, also /help",
}
ALIASES = {"/help": "/?", "/exit": "/bye"}
FULL = "Once the context is full, the model forgets the oldest messages; /clear forgets them all.\n"
SET = {
    "system": "TEXT: set the system prompt; without TEXT, go back to the model's own",
    "parameter": "NAME VALUE: set a parameter, such as temperature 0.5",
    "think": "let the model think before it answers; /set think low, medium or high limits it",
    "nothink": "answer at once",
    "history": "remember the lines you type, from one chat to the next",
    "nohistory": "stop remembering them",
    "verbose": "print token counts and timings after each answer",
    "quiet": "do not print them",
}
SHOW = {
    "info": "the model's details",
    "license": "the model's licenses",
    "parameters": "their values and where they come from",
    "system": "the system prompt",
    "template": "how messages become a prompt",
}


@dataclass(frozen=True)
class Line:
    """One entry. `literal` text was quoted: it is a message even if it looks like a command."""

    text: str
    literal: bool = False

    @property
    def is_command(self) -> bool:
        """A path starts with a slash, too, but has a second one; a message of several lines may start with anything."""
        word = _first_word(self.text)
        known = word in COMMANDS or word in ALIASES
        return not self.literal and word.startswith("/") and word.count("/") == 1 and (known or "\n" not in self.text)


def _first_word(text: str) -> str:
    return text.split(maxsplit=1)[0] if text.strip() else ""


def divide(entry: str) -> tuple[str, str]:
    """What to do first, and what is left: several lines are one message, unless they begin with a command, which takes
    only its own line. The exception is `/set system`."""
    head, _, rest = entry.partition("\n")
    word = _first_word(head)
    if (word in COMMANDS or word in ALIASES) and head.split()[:2] != ["/set", "system"]:
        return head, rest.strip("\n")
    return entry, ""


def gather(line: str, more: Callable[[], str]) -> Line:
    '''A whole entry: after an opening `"""`, reads on until a line ends in `"""`. In a paste that goes on after its
    closing `"""`, they are text.'''
    head, opened, text = line.partition(QUOTES)
    closed_before_the_end = "\n" in text and QUOTES in text and not text.rstrip().endswith(QUOTES)
    if not opened or closed_before_the_end or head.split() not in ([], ["/set", "system"]):
        return Line(line)
    lines = [text]
    while not lines[-1].rstrip().endswith(QUOTES):
        lines.append(more())
    body = "\n".join(lines).rstrip().removesuffix(QUOTES).strip("\n")
    return Line(head + body, literal=not head.strip())


def split_command(text: str) -> tuple[str, str]:
    """A command and the rest of its line; for a typo, the `SettingsError` suggests the nearest command."""
    name, _, rest = text.strip().partition(" ")
    return one_of(name, COMMANDS, ALIASES, "command", "/? lists them."), rest.strip()


def one_of(name: str, known: Iterable[str], aliases: dict[str, str], what: str, hint: str) -> str:
    """The one of `known` that `name` means."""
    choices = list(known)
    name = aliases.get(name, name)
    if name in choices:
        return name
    near = get_close_matches(name, [*choices, *aliases], n=1, cutoff=0.5)
    raise SettingsError(f"There is no {what} {name:.80}. {f'Did you mean {near[0]}?' if near else hint}")


def help_text() -> str:
    commands = _columns(COMMANDS)
    quoted = _columns({QUOTES: f"start a message of several lines; end it with {QUOTES}"})
    dropped = _columns({"FILE": "attach an image or sound by typing its path in a message or dropping the file there"})
    keys = _columns(
        {"Enter": "send; several pasted lines are one message", "Ctrl-C": "stop the answer", "Ctrl-D": "leave"}
    )
    return f"Commands:\n{commands}\n{quoted}{dropped}{keys}\n{FULL}"


def topics(command: str, known: dict[str, str]) -> str:
    """What a command prints without arguments: the list of its topics."""
    return _columns({f"{command} {topic}": meaning for topic, meaning in known.items()})


def _columns(entries: dict[str, str]) -> str:
    width = max(len(name) for name in [*entries, "/set parameter"])
    return "".join(f"  {name:<{width}}  {meaning}\n" for name, meaning in entries.items())
