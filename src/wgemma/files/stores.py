"""The models on this computer: wgemma's own store first, then Ollama's, which is only ever read.

Both have the same layout (`wgemma.files.ollama`). A name in both means the model in wgemma's.
"""

import os
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from wgemma.embedded import NAME, is_embedded
from wgemma.errors import StoreError
from wgemma.files.names import Name
from wgemma.files.ollama import Damaged, Store, StoredModel

VARIABLE = "WGEMMA_MODELS"


def own_store() -> Store:
    """wgemma's store: `$WGEMMA_MODELS`, or `wgemma/store` in the system's folder for data."""
    return Store(os.environ.get(VARIABLE) or _data_folder() / "wgemma" / "store", owner="wgemma")


def _data_folder() -> Path:
    try:
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Application Support"
        chosen = os.environ.get("XDG_DATA_HOME", "")
        return Path(chosen) if Path(chosen).is_absolute() else Path.home() / ".local" / "share"
    except RuntimeError:
        raise StoreError(f"there is no home folder for models. Set {VARIABLE} to a folder.", "not_found") from None


def _is_within(inner: Path, outer: Path) -> bool:
    """Whether one is the other or lies in it, whatever links lead there."""
    try:
        inner, outer = inner.resolve(), outer.resolve()
    except (OSError, RuntimeError):  # links that lead in a circle
        return False
    known = _identity(outer)
    return any(place == outer or (known and _identity(place) == known) for place in (inner, *inner.parents))


def _identity(folder: Path) -> tuple[int, int] | None:
    """The same for all spellings of one folder; None if there is none."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@dataclass(frozen=True, slots=True)
class Stores:
    """The two stores as one."""

    own: Store
    ollama: Store

    @classmethod
    def find(cls) -> "Stores":
        """Both; raises `StoreError` if wgemma's would be written where Ollama's is, or Ollama's where wgemma's is."""
        own, ollama = own_store(), Store.find()
        for root in (ollama.root, *Store.places()):
            if _is_within(own.root, root) or any(_is_within(root, folder) for folder in own.folders):
                raise StoreError(
                    f"the store {own.root} overlaps with Ollama's in {root}, which wgemma only reads. "
                    f"Set {VARIABLE} to another folder.",
                    "not_written",
                )
        return cls(own, ollama)

    def names(self) -> list[Name]:
        return sorted({*self.own.names(), *self.ollama.names()})

    def entries(self) -> list[StoredModel | Damaged]:
        """What is in both, by name; an unreadable store of Ollama's matters only if there is no other."""
        found = {entry.name: entry for entry in self.own.entries()}
        try:
            others = self.ollama.entries()
        except StoreError:
            if not found:
                raise
            others = []
        return sorted(({entry.name: entry for entry in others} | found).values(), key=lambda entry: entry.name)

    def models(self) -> list[StoredModel]:
        """The models whose manifest and configuration can be read, by name."""
        return [entry for entry in self.entries() if isinstance(entry, StoredModel)]

    def __contains__(self, name: str) -> bool:
        return name in self.own or name in self.ollama

    def model(self, name: str | Name) -> StoredModel:
        """The model of that name; the `StoreError` says what is wrong with it, or suggests similar names."""
        name = str(name)
        if name in self.own:
            return self.own.model(name)
        try:
            return self.ollama.model(name)
        except StoreError as error:
            if error.reason != "not_found":
                raise
        raise StoreError(self._unknown(Name.parse(name)), "not_found")

    def hides(self, name: Name) -> bool:
        """Whether wgemma's model of that name is in the way of another one of Ollama's."""
        try:
            return self.own.model(name).digest != self.ollama.model(name).digest
        except StoreError:  # one of them is not there, or damaged
            return False

    def near(self, name: Name) -> list[str]:
        """The models whose names look like this one, the likeliest first."""
        # ":latest" would make any two short names alike.
        short = {present.removesuffix(":latest"): present for present in self._present()}
        return [short[found] for found in get_close_matches(str(name).removesuffix(":latest"), short, n=3, cutoff=0.6)]

    def _present(self) -> list[str]:
        return [str(model.name) for model in self.models() if model.details["format"] == "gguf"]

    def _unknown(self, name: Name) -> str:
        if not self._present():
            return (
                f"{name} is not on this computer: {self.own.root} and {self.ollama.root} are empty. "
                f"`wgemma pull {name}` gets it."
            )
        near = self.near(name)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        return f"{name} is not on this computer. {hint}`wgemma list` shows what is; `wgemma pull {name}` gets it."


def new_name(text: str) -> Name:
    """The name of a model to be made; raises `StoreError` for the embedded one's, and for what is none."""
    name = Name.parse(text)
    refuse_embedded(text, "choose another name")
    return name


def refuse_embedded(text: str, what: str) -> None:
    """Raises `StoreError` for the embedded model, however its name is spelt; it is in neither store, and `what` says
    what follows from that."""
    if is_embedded(str(Name.parse(text))):
        raise StoreError(f"{NAME} comes with wgemma: {what}. `wgemma run` starts it.", "not_allowed")
