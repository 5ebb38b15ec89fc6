"""The models offered to the page: the embedded one first, then those in the stores that it can run.

Each has an id made from its name. Requests are looked up by id, so no path ever comes from outside.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from wgemma.embedded import embedded_model
from wgemma.errors import Error, ModelError, SourceError
from wgemma.files.gguf import FILE_TYPES, Gguf
from wgemma.files.locate import ModelFiles, locate, stored_files
from wgemma.files.ollama import Store
from wgemma.files.parts import JoinedSource, part_names, whole_name
from wgemma.files.stores import Stores
from wgemma.model.audio_config import has_audio
from wgemma.model.vision_config import has_vision
from wgemma.prelude import Prelude

# Sampling settings: name in the store's params layers → name in the page.
SETTINGS = {
    "temperature": "temperature",
    "top_k": "topK",
    "top_p": "topP",
    "min_p": "minP",
    "repeat_penalty": "repeatPenalty",
}


@dataclass(frozen=True, slots=True)
class OfferedFile:
    """A model's file, or one of its parts."""

    path: Path
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Offer:
    """One model: its files, and its entry in models.json. If it is in parts, the page gets the address of the first and
    finds the others by their names."""

    parts: tuple[OfferedFile, ...]
    adapters: tuple[OfferedFile, ...]
    projector: OfferedFile | None
    id: str
    name: str
    quantisation: str
    parameters: int
    capabilities: list[str]
    settings: dict[str, float]
    prelude: Prelude
    embedded: bool

    @property
    def digest(self) -> str:
        """The model's SHA-256; empty if it is in parts."""
        return self.parts[0].digest if len(self.parts) == 1 else ""

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def files(self) -> dict[str, OfferedFile]:
        """The model's files by id, the model's own first."""
        count = len(self.parts)
        ids = [f"{self._stem}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)] if count > 1 else [self.id]
        return {
            **dict(zip(ids, self.parts, strict=True)),
            **dict(zip(self._adapter_ids, self.adapters, strict=True)),
            **({self._projector_id: self.projector} if self.projector else {}),
        }

    @property
    def _stem(self) -> str:
        return self.id.removesuffix(".gguf")

    @property
    def _adapter_ids(self) -> list[str]:
        return [f"{self._stem}-adapter-{i}.gguf" for i in range(1, len(self.adapters) + 1)]

    @property
    def _projector_id(self) -> str:
        return f"{self._stem}-mmproj.gguf"

    @property
    def urls(self) -> dict[str, OfferedFile]:
        return {_url(id): file for id, file in self.files.items()}

    @property
    def url(self) -> str:
        return next(iter(self.urls))

    def record(self) -> dict[str, Any]:
        """The entry in models.json: facts to choose by, and the model's own settings, adapters, system prompt and
        messages."""
        named = ("name", "url", "size", "quantisation", "parameters", "capabilities", "digest", "settings")
        more: dict[str, Any] = {
            "projector": _url(self._projector_id) if self.projector else None,
            "adapters": [_url(id) for id in self._adapter_ids],
            "system": self.prelude.system,
            "messages": list(self.prelude.messages),
            "embedded": self.embedded,
        }
        return {name: getattr(self, name) for name in named} | {name: value for name, value in more.items() if value}


def _url(id: str) -> str:
    return f"models/{id}"


def embedded_offer() -> Offer | None:
    """The model that comes with wgemma, if it is there."""
    return None if embedded_model() is None else make_offer(locate(None), embedded=True)


def stored_offers(stores: Store | Stores) -> list[Offer]:
    """Every Gemma 4 in the stores, by name. Models that cannot be run are skipped."""
    offers = []
    for model in stores.models():
        try:
            offers.append(make_offer(stored_files(model)))
        except (Error, OSError):
            continue
    return offers


def by_id(offers: Iterable[Offer]) -> dict[str, Offer]:
    """The offers in order; if two names give the same id to files, the second one uses its hash."""
    table: dict[str, Offer] = {}
    taken: set[str] = set()
    for offer in offers:
        fresh = offer if taken.isdisjoint(offer.files) else replace(offer, id=f"{offer.parts[0].digest}.gguf")
        if taken.isdisjoint(fresh.files):
            table[fresh.id] = fresh
            taken.update(fresh.files)
    return table


def offer_of(target: str) -> Offer:
    """The model a user names: from the store, or a .gguf file."""
    files = locate(target)
    if isinstance(files.model, str):
        raise SourceError(f"{target} is on the web. Download it and pass the .gguf file.")
    return make_offer(files)


def make_offer(files: ModelFiles, embedded: bool = False) -> Offer:
    """What there is to say about a model."""
    assert not isinstance(files.model, str)
    stored = files.stored
    paths = files.model if isinstance(files.model, tuple) else (files.model,)
    if stored is None and len(paths) == 1:
        paths = _all_parts(paths[0])
    facts = _facts(paths, tuple(map(_stamp, paths)))
    senses = list(facts.senses)
    for path in files.projectors[:1]:
        senses += [sense for sense in _senses(path, _stamp(path)) if sense not in senses]
    label = str(stored.details["quantization_level"]) if stored else ""
    name = files.name if stored or embedded else Path(whole_name(paths[0].name)).stem
    # Same as `StoredModel.capabilities`, without reading the file again for every listing.
    manners = ["tools", "thinking"] if stored is None or stored.config.get("parser") == "gemma4" else []
    return Offer(
        parts=tuple(_file(path, stored=stored is not None) for path in facts.paths),
        adapters=tuple(_file(path, stored=stored is not None) for path in files.adapters),
        projector=next((_file(path, stored=stored is not None) for path in files.projectors), None),
        id=re.sub(r"[^A-Za-z0-9._-]", "-", name) + ".gguf",  # also a valid file name
        name=name,
        quantisation=label if re.fullmatch(r"[A-Za-z0-9_.+-]{1,20}", label) else facts.quantisation,
        parameters=facts.parameters,
        capabilities=["completion", *senses, *manners],
        settings={
            SETTINGS[name]: value
            for name, value in files.params.items()
            if name in SETTINGS and isinstance(value, int | float) and abs(value) < 1e9  # no NaN, nothing absurd
        },
        prelude=Prelude.of(files),
        embedded=embedded,
    )


def _stamp(path: Path) -> tuple[int, int]:
    """Changes when the file does."""
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


def _file(path: Path, *, stored: bool) -> OfferedFile:
    """A file with its hash, by which a blob in a store is named."""
    stamp = _stamp(path)
    return OfferedFile(path, path.name.removeprefix("sha256-").lower() if stored else _hash(path, stamp), stamp[1])


def _all_parts(path: Path) -> tuple[Path, ...]:
    """The file, or all parts of it in order."""
    names = part_names(path.name)
    if len(names) > 1:
        with Gguf.open(path) as gguf:
            names = names if gguf.parts > 1 else [path.name]
    return tuple(path.with_name(name) for name in names)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the file itself says. `paths` are its parts in order, `senses` the towers it contains."""

    paths: tuple[Path, ...]
    quantisation: str
    parameters: int
    senses: tuple[str, ...]


@lru_cache(maxsize=1024)
def _hash(path: Path, stamp: tuple[int, int]) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=256)
def _facts(paths: tuple[Path, ...], stamps: tuple[tuple[int, int], ...]) -> Facts:
    with Gguf.open(paths) as gguf:
        if gguf.metadata.get("general.architecture") != "gemma4":
            raise ModelError(f"{paths[0].name} is not a gemma4 model, and the page can run only those.")
        kind = gguf.metadata.get("general.file_type")
        label = FILE_TYPES.get(kind, "") if isinstance(kind, int) else ""
        sources = gguf.source.parts if isinstance(gguf.source, JoinedSource) else [gguf.source]
        ordered = tuple(Path(source.name) for source in sources)
        return Facts(ordered, label, sum(tensor.elements for tensor in gguf.tensors.values()), _senses_of(gguf))


@lru_cache(maxsize=256)
def _senses(path: Path, stamp: tuple[int, int]) -> tuple[str, ...]:
    with Gguf.open(path) as gguf:
        return _senses_of(gguf)


def _senses_of(gguf: Gguf) -> tuple[str, ...]:
    return tuple(sense for sense, there in (("vision", has_vision), ("audio", has_audio)) if there(gguf))
