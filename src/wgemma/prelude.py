"""What a stored model says before every chat: the SYSTEM and MESSAGE lines of its Modelfile.

A system text in the chat itself replaces the model's own. When a chat is shortened, all of this stays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wgemma.errors import TemplateError
from wgemma.files.locate import ModelFiles
from wgemma.text.template import Segment, segments


@dataclass(frozen=True, slots=True)
class Prelude:
    """A system text, if there is one, and the messages after it."""

    system: str | None = None
    messages: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, files: ModelFiles) -> "Prelude":
        """A system message at the start counts as the system text, unless there is one anyway."""
        if _has_system(files.messages):
            return cls(files.system or files.messages[0]["content"], files.messages[1:])
        return cls(files.system, files.messages)

    @property
    def turns(self) -> int:
        """How many of a prompt's turns begin here."""
        return sum(message["role"] == "user" for message in self.messages)

    def segments(self, chat: Sequence[Any], **how: Any) -> list[Segment]:
        """The prompt of the chat and all that comes before it. Complaints are in terms of the chat."""
        try:
            return segments(self.before(chat), **how)
        except TemplateError:
            segments(chat, **how)
            raise

    def before(self, chat: Sequence[Any]) -> Sequence[Any]:
        """The chat, with all that comes before it."""
        if not isinstance(chat, list | tuple):
            return chat  # the template says what it must be
        own = [{"role": "system", "content": self.system}] if self.system else []
        system, rest = (chat[:1], chat[1:]) if _has_system(chat) else (own, chat)
        return [*system, *self.messages, *rest]


def _has_system(messages: Sequence[Any]) -> bool:
    role = messages[0].get("role") if messages and isinstance(messages[0], dict) else None
    return isinstance(role, str) and role in ("system", "developer")
