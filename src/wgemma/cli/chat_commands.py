"""What a line at the prompt means: a message to the model, or a command. Pure: no terminal, no model."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from wgemma.errors import SettingsError

QUOTES = '"""'
COMMANDS = {
    "/set": "change how the model answers; /set alone lists what can be set",
    "/show": "tell about the model and the chat; /show alone lists what there is",
    "/image": "show the model a picture with the next message: /image FILE",
    "/audio": "let the model hear a sound with the next message: /audio FILE",
    "/clear": "forget the chat",
    "/save": "keep the chat in a file: /save FILE",
    "/load": "go on with a chat from a file: /load FILE",
    "/bye": "leave, like Ctrl-D",
    "/?": "this help, also /help",
}
ALIASES = {"/help": "/?", "/exit": "/bye"}
SET = {
    "system": "TEXT: the system text; without TEXT back to the model's own",
    "parameter": "NAME VALUE: a parameter, such as temperature 0.5",
    "think": "let the model think before it answers",
    "nothink": "answer at once",
    "history": "remember the lines typed, from one chat to the next",
    "nohistory": "remember none from here on",
    "verbose": "tell tokens and times after each answer",
    "quiet": "do not",
}
SHOW = {
    "info": "what the model is",
    "parameters": "their values, and where these come from",
    "system": "the system text",
    "template": "how messages are put to the model",
}


@dataclass(frozen=True)
class Line:
    """What was entered. `literal` text was quoted: it is a message, even if it looks like a command."""

    text: str
    literal: bool = False

    @property
    def is_command(self) -> bool:
        """A path begins with a slash, too, but has another one."""
        return not self.literal and self.text.lstrip().startswith("/") and self.text.split()[0].count("/") == 1


def gather(line: str, more: Callable[[], str]) -> Line:
    '''A whole entry: where `"""` opens a text, lines are added until one ends in `"""`.'''
    head, opened, text = line.partition(QUOTES)
    if not opened or head.split() not in ([], ["/set", "system"]):
        return Line(line)
    lines = [text]
    while not lines[-1].rstrip().endswith(QUOTES):
        lines.append(more())
    body = "\n".join(lines).rstrip().removesuffix(QUOTES).strip("\n")
    return Line(head + body, literal=not head.strip())


def split_command(text: str) -> tuple[str, str]:
    """A command and the rest of its line; a `SettingsError` suggests what may have been meant."""
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
    quoted = _columns({QUOTES: f"begins a text of several lines, which ends with {QUOTES}"})
    dropped = _columns({"FILE": "a picture or sound whose path stands in a message, or is dropped there, goes with it"})
    keys = _columns({"Ctrl-C": "stop the answer", "Ctrl-D": "leave"})
    return f"Commands:\n{commands}\n{quoted}{dropped}{keys}"


def topics(command: str, known: dict[str, str]) -> str:
    """The list a command shows when it stands alone."""
    return _columns({f"{command} {topic}": meaning for topic, meaning in known.items()})


def _columns(entries: dict[str, str]) -> str:
    width = max(len(name) for name in [*entries, "/set parameter"])
    return "".join(f"  {name:<{width}}  {meaning}\n" for name, meaning in entries.items())
