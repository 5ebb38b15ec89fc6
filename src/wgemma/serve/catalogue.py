"""Which models there are: the embedded one, those given on the command line, and those in the stores.

Names from the network are looked up, never opened: a path or a URL is just a name that nobody has.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from wgemma.embedded import NAME, embedded_model, is_embedded
from wgemma.errors import Error, ModelError, StoreError
from wgemma.files.download import download_parts
from wgemma.files.gguf import Gguf
from wgemma.files.locate import ModelFiles, locate, stored_files
from wgemma.files.names import Name
from wgemma.files.parts import whole_name
from wgemma.files.stores import Stores
from wgemma.model.config import Config
from wgemma.serve.problems import Problem, log, no_model
from wgemma.serve.settings import Settings
from wgemma.web.models import Offer, make_offer

MARK = "+"  # between a model and an adapter


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model, and an adapter to use with it."""

    files: ModelFiles
    adapter: str | None = None

    @property
    def name(self) -> str:
        """One name, however the request spelt it."""
        return self.files.name if self.adapter is None else self.files.name + MARK + self.adapter


class Catalogue:
    """The models on offer. The stores are read each time, so what a pull brings is there at once."""

    def __init__(self, settings: Settings) -> None:
        self.adapters = dict(settings.adapters)
        found = [given(target) for target in settings.extra]
        self._extra = {files.name: files for files in found if files.stored is None}  # others are in the stores anyway

    def find(self, name: str) -> Wanted:
        """The model that a request names; raises `Problem` 404 if there is none."""
        base, mark, adapter = name.partition(MARK)
        if mark and adapter not in self.adapters:
            raise no_model(name)
        return Wanted(self._files(base), adapter if mark else None)

    def is_file(self, name: str) -> bool:
        """Whether a request for this name means a file from the command line, which is in no store."""
        return self.full_name(name) in self._extra

    def full_name(self, name: str) -> str:
        """What the model that a request names is called in full, whether or not it is there."""
        base = name.partition(MARK)[0]
        if is_embedded(base) and embedded_model():
            return NAME
        for known in (base, base.removesuffix(":latest")):
            if known in self._extra:
                return known
        try:
            return str(Name.parse(base))
        except StoreError:
            return base

    def _files(self, name: str) -> ModelFiles:
        full = self.full_name(name)
        if full == NAME and embedded_model():
            return locate(None)
        if full in self._extra:
            return self._extra[full]
        try:
            return _stored(Name.parse(name))
        except StoreError as error:
            if error.reason in ("not_found", "invalid_name"):
                raise no_model(name) from None
            log.error("%s", error)
            raise Problem(500, f"The files of model '{name[:100]}' are damaged or of another kind.") from None

    def all(self) -> list[tuple[ModelFiles, Offer]]:
        """Every model that can be run, with its description."""
        found: dict[str, tuple[ModelFiles, Offer]] = {}
        for files in self._everything():
            try:
                found.setdefault(files.name, (files, self.describe(files)))
            except (Error, OSError):
                continue
        return list(found.values())

    def describe(self, files: ModelFiles) -> Offer:
        return make_offer(files, embedded=files.name == NAME)

    def _everything(self) -> Iterator[ModelFiles]:
        if embedded_model():
            yield locate(None)
        yield from self._extra.values()
        try:
            stored = Stores.find().models()
        except StoreError:  # an unreadable store has nothing to offer
            return
        for model in stored:
            try:
                yield stored_files(model)
            except StoreError:
                continue


def _stored(name: Name) -> ModelFiles:
    """A model in the stores. One that is replaced while it is read is read again."""
    stores = Stores.find()
    manifests = [store.manifest(name) for store in (stores.own, stores.ollama)]
    while True:
        before = [*map(_stamp, manifests)]
        try:
            return stored_files(stores.model(name))
        except StoreError:
            if before == [*map(_stamp, manifests)]:
                raise


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes when the file does."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def given(target: str) -> ModelFiles:
    """A model from the command line, whose headers are read: raises if it is none that wgemma runs. A file is called by
    its name without folder, suffix and number of a part; a URL is downloaded first."""
    files = _named(target)
    with Gguf.open(files.model) as gguf:
        try:
            Config.from_gguf(gguf)
        except ModelError as error:
            raise ModelError(str(error).replace(gguf.source.name, target)) from None
    return files


def _named(target: str) -> ModelFiles:
    files = locate(target)
    if files.stored is not None or files.name == NAME:
        return files
    model, path = files.model, target
    if isinstance(files.model, str):
        model = download_parts(files.model)  # raises for what is no URL
        path = urlsplit(files.model).path
    return ModelFiles(Path(whole_name(Path(path).name)).stem, model, params=files.params)
