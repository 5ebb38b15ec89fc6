"""The models offered to the page: the embedded one first, then those in the Ollama store that it can run.

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
from wgemma.files.gguf import Gguf
from wgemma.files.locate import DEFAULT_PARAMS, ModelFiles, locate
from wgemma.files.ollama import Store
from wgemma.model.audio_config import has_audio
from wgemma.model.vision_config import has_vision

# llama.cpp's ids for how a file was quantised.
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 32: "BF16",
}  # fmt: skip
# Sampling settings: name in the store's params layers → name in the page.
SETTINGS = {
    "temperature": "temperature",
    "top_k": "topK",
    "top_p": "topP",
    "min_p": "minP",
    "repeat_penalty": "repeatPenalty",
}


@dataclass(frozen=True, slots=True)
class Offer:
    """One model: its file, and its entry in models.json."""

    path: Path
    id: str
    name: str
    digest: str
    size: int
    quantisation: str
    parameters: int
    capabilities: list[str]
    settings: dict[str, float]
    system: str | None
    embedded: bool

    @property
    def url(self) -> str:
        return f"models/{self.id}"

    def record(self) -> dict[str, Any]:
        """The entry in models.json: facts to choose by, and the model's own settings and system prompt."""
        named = ("name", "url", "size", "quantisation", "parameters", "capabilities", "digest", "settings")
        record = {name: getattr(self, name) for name in named}
        return record | ({"system": self.system} if self.system else {}) | ({"embedded": True} if self.embedded else {})


def embedded_offer() -> Offer | None:
    """The model that comes with wgemma, if it is there."""
    return None if embedded_model() is None else make_offer(locate(None), embedded=True)


def stored_offers(store: Store) -> list[Offer]:
    """Every Gemma 4 in the store, by name. Models that cannot be run are skipped."""
    offers = []
    for model in store.models():
        try:
            params = {**DEFAULT_PARAMS, **model.params}
            files = ModelFiles(str(model.name), model.model, params=params, system=model.system, stored=model)
            offers.append(make_offer(files))
        except (Error, OSError):
            continue
    return offers


def by_id(offers: Iterable[Offer]) -> dict[str, Offer]:
    """The offers in order; if two names give the same id, the second one uses its hash."""
    table: dict[str, Offer] = {}
    for offer in offers:
        fresh = replace(offer, id=f"{offer.digest}.gguf") if offer.id in table else offer
        table.setdefault(fresh.id, fresh)
    return table


def offer_of(target: str) -> Offer:
    """The model a user names: from the store, or a .gguf file."""
    files = locate(target)
    if not isinstance(files.model, Path):
        raise SourceError(f"{target} is on the web. Download it and pass the .gguf file.")
    return make_offer(files)


def make_offer(files: ModelFiles, embedded: bool = False) -> Offer:
    """What there is to say about a model."""
    path = Path(files.model)
    stat = path.stat()
    facts = _facts(path, stat.st_mtime_ns, stat.st_size)
    stored = files.stored
    label = str(stored.details["quantization_level"]) if stored else ""
    name = files.name if stored or embedded else path.stem
    # Same as `StoredModel.capabilities`, without reading the file again for every listing.
    manners = ["tools", "thinking"] if stored is None or stored.config.get("parser") == "gemma4" else []
    return Offer(
        path=path,
        id=re.sub(r"[^A-Za-z0-9._-]", "-", name) + ".gguf",  # also a valid file name
        name=name,
        # A blob in the store is named by its hash.
        digest=path.name.removeprefix("sha256-").lower() if stored else _hash(path, stat.st_mtime_ns, stat.st_size),
        size=stat.st_size,
        quantisation=label if re.fullmatch(r"[A-Za-z0-9_.+-]{1,20}", label) else facts.quantisation,
        parameters=facts.parameters,
        capabilities=["completion", *facts.senses, *manners],
        settings={
            SETTINGS[name]: value
            for name, value in files.params.items()
            if name in SETTINGS and isinstance(value, int | float) and abs(value) < 1e9  # no NaN, nothing absurd
        },
        system=files.system,
        embedded=embedded,
    )


@dataclass(frozen=True, slots=True)
class Facts:
    """What the file itself says. `senses` are the towers it contains."""

    quantisation: str
    parameters: int
    senses: tuple[str, ...]


@lru_cache(maxsize=8)
def _hash(path: Path, modified: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=256)
def _facts(path: Path, modified: int, size: int) -> Facts:
    with Gguf.open(path) as gguf:
        if gguf.metadata.get("general.architecture") != "gemma4":
            raise ModelError(f"{path.name} is not a gemma4 model, and the page can run only those.")
        kind = gguf.metadata.get("general.file_type")
        label = FILE_TYPES.get(kind, "") if isinstance(kind, int) else ""
        senses = tuple(sense for sense, there in (("vision", has_vision), ("audio", has_audio)) if there(gguf))
        return Facts(label, sum(tensor.elements for tensor in gguf.tensors.values()), senses)
