"""The chat in a terminal: reads lines, answers them, runs commands. An error never ends it."""

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wgemma.checks import counted
from wgemma.cli import show
from wgemma.cli.chat_answer import Answer, answer
from wgemma.cli.chat_commands import SET, SHOW, Line, divide, gather, help_text, one_of, split_command, topics
from wgemma.cli.chat_conversation import ChatSettings, Conversation
from wgemma.cli.chat_lines import Lines, history_file
from wgemma.cli.chat_media import attach, find, message, name_of, shown
from wgemma.cli.chat_model import Opened
from wgemma.cli.chat_render import DIM, PLAIN, Painter, coloured, forgotten, remark, safe, statistics
from wgemma.cli.output import sentence
from wgemma.errors import ContextOverflow, Error, SettingsError
from wgemma.files.paths import user_path
from wgemma.prelude import Prelude

PROMPT, MORE = ">>> ", "... "


class Repl:
    """One chat with one model, on standard input and output."""

    def __init__(
        self,
        opened: Opened,
        conversation: Conversation,
        media: Sequence[dict[str, Any]] = (),
        budget: int | None = None,
    ) -> None:
        self.opened = opened
        self.conversation = conversation
        self._media = list(media)  # attached to the next message
        self._budget = budget  # tokens per image attached in the chat
        self.lines = Lines(history_file())
        self._rest = ""  # of a paste that begins with a command
        self._dropped = 0  # messages that the model no longer sees
        self._typing = False  # whether Ctrl-C has a line to cancel
        self._load_seconds: float | None = opened.seconds  # shown with the first statistics
        self._dim, self._plain = (DIM, PLAIN) if coloured(sys.stdout) else ("", "")

    def run(self) -> int:
        """Chats until the user leaves."""
        before = signal.signal(signal.SIGINT, self._interrupt)
        self.lines.open(enabled=not os.environ.get("OLLAMA_NOHISTORY"))
        try:
            self._remark(f"{self.opened.name} is ready. /? for help, /bye to leave.")
            self._recite(Prelude.of(self.opened.files).messages)
            self._tell_attached(self._media)
            while self._turn():
                pass
        finally:
            self.lines.save()
            signal.signal(signal.SIGINT, before)
        return 0

    def _interrupt(self, *_: object) -> None:
        """Ctrl-C cancels the line being typed; pressing it repeatedly does not end the chat."""
        if self._typing:
            self._typing = False
            raise KeyboardInterrupt

    def _turn(self) -> bool:
        """Reads one line and acts on it; False when the user leaves."""
        try:
            return self._follow(self._read())
        except EOFError:
            print()
            return False
        except KeyboardInterrupt:
            print()
            if not self.lines.unfinished():
                self._remark("Press Ctrl-D or type /bye to leave.")
        except UnicodeDecodeError:
            self._remark("That line is not valid UTF-8. Type it again.")
        except Error as error:
            print(safe(sentence(str(error)) + self._way_out(error)))
        return True

    def _way_out(self, error: Error) -> str:
        stuck = isinstance(error, ContextOverflow) and not self._settings.shift and self.conversation.messages
        return " Type /clear to start over." if stuck else ""

    def _read(self) -> Line:
        self._typing = True
        try:
            entry, self._rest = self._entry(), ""
            typed = [entry]

            def more() -> str:
                typed.append(self.lines.read(MORE))
                return typed[-1]

            first, rest = divide(entry)
            line = gather(first, more)
        finally:
            self._typing = False
        self.lines.remember("\n".join(typed))
        self._rest = rest
        return line

    def _entry(self) -> str:
        """What is left of a paste, or what is typed next."""
        if not self._rest:
            return self.lines.read(PROMPT).strip("\n")
        print(f"{PROMPT}{safe(self._rest)}")
        return self._rest

    def _follow(self, line: Line) -> bool:
        if line.is_command:
            name, rest = split_command(line.text)
            if name == "/bye":
                return False
            self._obey(name, rest)
        elif line.text.strip():
            self._ask(line.text if line.literal else self._attach_paths(line.text))
        return True

    # -- pictures and sounds

    def _attach_paths(self, text: str) -> str:
        """Attaches the files named in a line and returns the rest of it; text of several lines only mentions them."""
        text, paths = find(text) if "\n" not in text else (text, [])
        self._attach(paths)
        return text

    def _attach(self, paths: Sequence[Path], kind: str | None = None) -> None:
        fresh = [attach(path, kind, self._budget) for path in paths]
        self._media += fresh
        self._tell_attached(fresh)

    def _tell_attached(self, media: Sequence[dict[str, Any]]) -> None:
        if media:
            self._remark(f"Attached: {', '.join(name_of(part) for part in media)}.")

    # -- answers

    def _ask(self, text: str) -> None:
        settings, reply = self.conversation.settings, Answer()
        question = message(text.encode(errors="replace").decode(), self._media)
        painter = Painter(colour=bool(self._dim), watched=True, hide_thinking=settings.hide_thinking)
        try:
            messages = self.conversation.asking(question)
            answer(self.opened.model, messages, settings.options(), reply, lambda part: write(painter.part(part)))
        finally:
            write(painter.end())
            self.conversation.keep(question, reply)
            self._media.clear()
        self._remark(remark(reply, self.opened.model.backend.context))
        self._remark(forgotten(reply, self._dropped))
        self._dropped = reply.usage.dropped if reply.usage else self._dropped
        if settings.verbose:
            print(f"\n{self._dim}{statistics(reply, self._load_seconds)}{self._plain}", end="")
            self._load_seconds = None
        print()

    def _recite(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Prints a chat as if it had been typed here."""
        for said in messages:
            text = safe(shown(said.get("content")))
            if said.get("role") == "user":
                print(f"{PROMPT}{text}")
            elif said.get("role") != "tool":
                print(f"{text}\n")

    def _remark(self, text: str) -> None:
        if text:
            print(f"{self._dim}{safe(text)}{self._plain}")

    # -- commands

    def _obey(self, name: str, rest: str) -> None:
        if name == "/?":
            print(help_text(), end="")
        elif name == "/clear":
            self._media.clear()
            self.conversation.clear()
            self._dropped = 0
            self._remark("Chat cleared.")
        elif name == "/set":
            self._set(rest)
        elif name == "/show":
            self._show(rest)
        elif not rest:
            raise SettingsError(f"Which file? Type {name} FILE.")
        elif name == "/save":
            self.conversation.save(_path(rest), self.opened.name)
            self._remark(f"Chat saved to {_path(rest)}.")
        elif name == "/load":
            self._load(_path(rest))
        else:
            self._attach([_path(rest)], name.removeprefix("/"))

    def _load(self, path: Path) -> None:
        model = self.conversation.load(path)
        self._dropped = 0
        self._remark(f"{counted(len(self.conversation.messages), 'message')}, saved with {model}.")
        self._recite(self.conversation.messages)

    def _set(self, rest: str) -> None:
        if not rest:
            print(topics("/set", SET), end="")
            return
        head, _, value = rest.partition(" ")
        topic, value, settings = one_of(head, SET, {}, "setting", "/set lists them."), value.strip(), self._settings
        if topic == "parameter":
            name, _, value = value.partition(" ")
            if not value.strip():
                raise SettingsError("Type /set parameter NAME VALUE. /show parameters lists the names.")
            name = settings.put(name, value.strip())
            self._remark(f"{name} is {settings.values[name]} now.")
        elif topic == "system":
            self.conversation.system = value or None
            self._remark("System prompt set." if value else "Back to the model's own system prompt.")
        elif topic in ("think", "nothink"):
            settings.put_think((value or "true") if topic == "think" else "false")
            self._remark("The model will think first." if settings.think else "The model will answer at once.")
        elif topic in ("verbose", "quiet"):
            settings.verbose = topic == "verbose"
            self._remark(
                "Showing token counts and timings." if settings.verbose else "Hiding token counts and timings."
            )
        else:
            self.lines.enable(topic == "history")
            self._remark("Input history is on." if topic == "history" else "Input history is off from here on.")

    @property
    def _settings(self) -> ChatSettings:
        return self.conversation.settings

    def _show(self, rest: str) -> None:
        if not rest:
            print(topics("/show", SHOW), end="")
            return
        topic = one_of(rest, SHOW, {}, "topic", "/show lists them.")
        if topic == "parameters":
            for name, (value, origin) in self._settings.effective(self.opened.files.params).items():
                print(f"{name:<18}{safe(str(value)) if value is not None else '—':<12}{origin}")
        elif topic == "system":
            own = Prelude.of(self.opened.files).system
            text = self.conversation.system if self.conversation.system is not None else own
            print(safe(text) if text else "There is no system prompt.")
        else:
            asked = {"template": topic == "template", "license": topic == "license"}
            show.show(argparse.Namespace(model=self.opened.target, json=False, tensors=False, **asked))


def write(text: str) -> None:
    """Prints without buffering."""
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()


def _path(text: str) -> Path:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    return user_path(text, SettingsError)
