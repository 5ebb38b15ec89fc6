"""Which adapters a model has loaded, and which of them a call uses."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from wgemma.checks import number, shown
from wgemma.errors import SettingsError

if TYPE_CHECKING:
    from wgemma.files.adapters import AdapterFile


class _All:
    """All loaded adapters, each with its own scale: the default of every call."""

    def __repr__(self) -> str:
        return "ALL"


ALL: Final = _All()

# None is the base model; a name is that adapter alone; a dict gives scales by name.
Choice: TypeAlias = str | Mapping[str, float] | _All | None


@dataclass(frozen=True, slots=True)
class Setting:
    """The active adapters and their scales. Keys and values are valid only for the setting they were computed with."""

    scales: tuple[tuple[str, str, float], ...] = ()  # name, digest, scale

    @property
    def key(self) -> tuple[tuple[str, float], ...]:
        """Identifies the setting, independently of the adapters' names."""
        return tuple(sorted((digest, scale) for _, digest, scale in self.scales))

    def by_name(self) -> dict[str, float]:
        return {name: scale for name, _, scale in self.scales}


BARE: Final = Setting()
MAX_SCALE = 1e9  # far above any sensible scale, and within float32


@dataclass(frozen=True, slots=True)
class Loaded:
    file: "AdapterFile"
    scale: float
    digest: str


class Adapters:
    """The adapters of one model, by name, in the order they were loaded."""

    def __init__(self, loaded: Mapping[str, Loaded] | None = None) -> None:
        self.loaded: dict[str, Loaded] = dict(loaded or {})

    def __bool__(self) -> bool:
        return bool(self.loaded)

    @property
    def files(self) -> list["AdapterFile"]:
        return [loaded.file for loaded in self.loaded.values()]

    @property
    def scales(self) -> dict[str, float]:
        return {name: loaded.scale for name, loaded in self.loaded.items()}

    def having(self, file: "AdapterFile", name: str, scale: float) -> "Adapters":
        """These plus one more, which replaces an adapter of the same name."""
        more = Loaded(replace(file, name=name), checked_scale(scale), digest(file))
        return Adapters({**self.loaded, name: more})

    def unused(self, name: str) -> str:
        """The name, numbered if another adapter already has it."""
        numbered = (f"{name} {i}" for i in range(2, len(self.loaded) + 2))
        return next(free for free in (name, *numbered) if free not in self.loaded)

    def without(self, name: str) -> "Adapters":
        self._known(name)
        return Adapters({other: loaded for other, loaded in self.loaded.items() if other != name})

    def choose(self, choice: Choice = ALL) -> Setting:
        """The setting for a call's `adapter=`."""
        if isinstance(choice, _All):
            wanted: Mapping[str, float] = self.scales
        elif choice is None:
            wanted = {}
        elif isinstance(choice, str):
            wanted = {choice: self._known(choice).scale}
        elif isinstance(choice, Mapping):
            wanted = {name: checked_scale(scale) for name, scale in choice.items()}
        else:
            raise SettingsError(
                f"adapter is {shown(choice)}; it must be a name, a dict of scales, or None for the base model."
            )
        return Setting(tuple((name, self._known(name).digest, scale) for name, scale in wanted.items() if scale))

    def recognise(self, key: Iterable[tuple[str, float]]) -> Setting | None:
        """The setting with this key, if all its adapters are loaded."""
        left = {name: loaded.digest for name, loaded in self.loaded.items()}
        found = []
        for digest, scale in key:
            name = next((name for name, own in left.items() if own == digest), None)
            if name is None:
                return None
            del left[name]
            found.append((name, digest, scale))
        return Setting(tuple(found))

    def _known(self, name: str) -> Loaded:
        if not isinstance(name, str) or name not in self.loaded:
            there = f"Loaded: {', '.join(self.loaded)}." if self.loaded else "Load one with `load_adapter`."
            raise SettingsError(f"no adapter called {shown(name)} is loaded. {there}")
        return self.loaded[name]


def checked_scale(scale: Any) -> float:
    return number("an adapter's scale", scale, -MAX_SCALE, MAX_SCALE)


def digest(file: "AdapterFile") -> str:
    """Identifies an adapter by its weights."""
    told = hashlib.sha256()
    for name, pair in sorted(file.pairs.items()):
        told.update(f"{name} {pair.rank} {pair.columns} {pair.rows} {pair.scale!r}\n".encode())
        told.update(pair.a)
        told.update(pair.b)
    return told.hexdigest()
