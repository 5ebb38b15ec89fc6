"""A store in Ollama's layout: names, manifests, and the blobs they point to. Nothing here writes.

The store is treated as hostile: names and digests are validated before they become paths, and only regular files inside
the store are read.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, MutableSet
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from wgemma.errors import GgufError, PartsError, StoreError
from wgemma.files.gguf import Gguf
from wgemma.files.manifests import ManifestLayer, is_message, json_object, json_value, parse_layers
from wgemma.files.names import Name, one_host
from wgemma.files.params import PARAMS, is_kind, lenient
from wgemma.files.paths import mode, user_path

SERVICE_FOLDER = Path("/usr/share/ollama/.ollama/models")  # where the Linux service keeps its models
MAX_JSON = 4 << 20
MAX_TEXT = 4 << 20

_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")


class Store:
    """A folder of manifests and blobs. `owner` is the command that fills it: `ollama` or `wgemma`."""

    def __init__(self, root: str | os.PathLike[str], owner: str = "ollama") -> None:
        self.root = user_path(root, lambda message: StoreError(message, "not_found"))
        self.owner = owner
        try:
            self._real_root = self.root.resolve()
        except (OSError, RuntimeError) as error:
            raise StoreError(
                f"{root} cannot be a model store: {error} Set {self.variable} to its folder.", "not_found"
            ) from None

    @classmethod
    def find(cls) -> "Store":
        """Ollama's store: in `$OLLAMA_MODELS`, the user's folder or the Linux service's, in that order."""
        if chosen := os.environ.get("OLLAMA_MODELS"):
            return cls(chosen)
        users, service = cls.places()
        service_only = S_ISDIR(mode(service)) and not S_ISDIR(mode(users / "manifests"))
        return cls(service if service_only else users)

    @staticmethod
    def places() -> tuple[Path, Path]:
        """Where Ollama keeps its models by default: in the user's folder, or in the Linux service's."""
        return user_path("~/.ollama/models"), SERVICE_FOLDER

    @property
    def folders(self) -> tuple[Path, Path]:
        """The folders of manifests and of blobs."""
        return self.root / "manifests", self.root / "blobs"

    @property
    def variable(self) -> str:
        """The environment variable that says where the store is."""
        return f"{self.owner.upper()}_MODELS"

    def names(self) -> list[Name]:
        """All names with a manifest, sorted; files at the wrong depth or with malformed names are ignored."""
        self.check_folders()
        return sorted({name for name, path in self.manifests() if self._holds(path)})

    def manifests(self, unreadable: Callable[[OSError], object] | None = None) -> Iterator[tuple[Name, Path]]:
        """What is where a well-formed name's manifest would be; `unreadable` hears of folders that cannot be listed."""
        top = self.root / "manifests"
        for folder, folders, files in os.walk(top, onerror=unreadable, followlinks=True):
            parts = Path(folder).relative_to(top).parts
            if len(parts) < 3:
                continue
            folders.clear()
            for file in files:
                with suppress(StoreError):
                    name = Name.parse(f"{'/'.join(parts)}:{file}")
                    if (name.namespace, name.model, name.tag) == (*parts[1:], file):
                        yield name, Path(folder, file)

    def check_folders(self) -> None:
        """Raises `StoreError` if the store only looks empty: something is where a folder should be, or one may not be
        looked into."""
        for folder in self.folders:
            for place in (folder, *folder.absolute().parents):
                found = mode(place)
                if S_ISDIR(found):
                    break
                if found or place.is_symlink():
                    what = "not a folder" if found else "a link to nothing"
                    raise StoreError(
                        f"{place} is {what}, so the model store {self.root} cannot be used. Move it away, or set "
                        f"{self.variable} to another folder.",
                        "not_found",
                    )
        try:
            next((self.root / "manifests").iterdir(), None)
        except PermissionError:
            join = "Join its group (often `ollama`), or set" if self.owner == "ollama" else "Set"
            raise StoreError(
                f"you do not have permission to read the model store {self.root}. {join} {self.variable} to another "
                "folder.",
                "not_found",
            ) from None
        except OSError:
            return  # no store at all

    def entries(self) -> list["StoredModel | Damaged"]:
        """What is in the store, by name."""
        found: list[StoredModel | Damaged] = []
        for name in self.names():
            try:
                found.append(self.model(name))
            except StoreError as error:
                found.append(Damaged(self, name, error))
        return found

    def models(self) -> list["StoredModel"]:
        """The models whose manifest and configuration can be read."""
        return [entry for entry in self.entries() if isinstance(entry, StoredModel)]

    def __contains__(self, name: str) -> bool:
        """Whether a model of that name is installed, in whatever state."""
        try:
            return S_ISREG(mode(self.manifest(Name.parse(name))))
        except StoreError:
            return False

    def manifest(self, name: Name) -> Path:
        """Where a model's manifest is, by whatever spelling of its host, or would be."""
        top, rest = self.root / "manifests", Path(name.namespace, name.model, name.tag)
        if mode(top / name.host / rest):
            return top / name.host / rest
        with suppress(OSError):
            for folder in sorted(top.iterdir()):
                if one_host(folder.name) == name.host and mode(folder / rest):
                    return folder / rest
        return top / name.host / rest

    def model(self, name: str | Name) -> "StoredModel":
        """The model of that name; the `StoreError` says what is wrong with it."""
        parsed = Name.parse(name) if isinstance(name, str) else name
        path = self.manifest(parsed)
        if not S_ISREG(mode(path)):
            raise _not_there(parsed, self)
        return StoredModel(self, parsed, path, self.read(path, MAX_JSON, f"the manifest of {parsed}"))

    def blob(self, digest: str) -> Path:
        """The path of a blob, checked to be a regular file inside the store."""
        match = _DIGEST.fullmatch(digest)
        if match is None:
            raise StoreError(f"{digest[:80]!r} is not a digest; the manifest is damaged or hostile.", "invalid_digest")
        path = self.root / "blobs" / f"sha256-{match[1]}"
        if not mode(path):
            raise StoreError(f"the blob {path.name} is missing. {self.again()}", "missing_blob")
        self._check_inside(path)
        return path

    def again(self, name: str | None = None) -> str:
        """How to mend a damaged model. One in wgemma's store may have been created, so that no registry has it."""
        pulled = f"`{self.owner} pull {name}` again" if name else f"`{self.owner} pull` the model again"
        return f"{pulled}, or create it again if it was made here." if self.owner == "wgemma" else f"{pulled}."

    def read(self, path: Path, most: int, what: str) -> bytes:
        """A small file in the store."""
        self._check_inside(path)
        try:
            with path.open("rb") as file:
                data = file.read(most + 1)
        except OSError as error:
            raise StoreError(f"{what} cannot be read: {error.strerror}.", "missing_blob") from None
        if len(data) > most:
            raise StoreError(f"{what} is too large.", "bad_manifest")
        return data

    def _check_inside(self, path: Path) -> None:
        real = path.resolve()
        if not real.is_relative_to(self._real_root):
            reason = f"{path} leads out of the store, so wgemma does not follow it. Put the file itself there."
            raise StoreError(reason, "bad_blob")
        if not S_ISREG(mode(real)):
            raise StoreError(f"{path} is not a regular file.", "bad_blob")

    def _holds(self, path: Path) -> bool:
        return S_ISREG(mode(path)) and path.resolve().is_relative_to(self._real_root)


def _not_there(name: Name, store: Store) -> StoreError:
    return StoreError(f"{name} is not in {store.root}.", "not_found")


@dataclass(frozen=True, slots=True)
class Damaged:
    """A model whose manifest or configuration cannot be read; `error` says why."""

    store: Store
    name: Name
    error: StoreError


class StoredModel:
    """One model in the store, as its manifest, configuration and small layers describe it."""

    def __init__(self, store: Store, name: Name, path: Path, manifest: bytes) -> None:
        self.store = store
        self.name = name
        self.manifest = path
        self.manifest_bytes = manifest
        self.digest = hashlib.sha256(manifest).hexdigest()
        try:
            self.modified = path.stat().st_mtime
        except OSError:  # deleted a moment ago
            raise _not_there(name, store) from None
        fields = json_object(manifest, f"the manifest of {name}")
        self.layers = parse_layers(fields.get("layers"), name)
        configuration = parse_layers([fields.get("config")], name)[0]
        self.blobs = [configuration, *self.layers]
        self.size = sum(layer.size for layer in self.blobs)
        for layer in (configuration, *self._of("model")):
            if not _DIGEST.fullmatch(layer.digest):
                store.blob(layer.digest)  # raises
        what = f"the configuration of {name}"
        self.config = json_object(store.read(self._path(configuration), MAX_JSON, what), what)

    def _of(self, kind: str) -> list[ManifestLayer]:
        return [layer for layer in self.layers if layer.kind == kind]

    def _paths(self, kind: str) -> list[Path]:
        return [self._path(layer) for layer in self._of(kind)]

    def _path(self, layer: ManifestLayer) -> Path:
        try:
            return self.store.blob(layer.digest)
        except StoreError as error:
            raise StoreError(f"{self.name}: {error}", error.reason) from None

    def _texts(self, kind: str) -> list[str]:
        texts, left = [], MAX_TEXT  # for all layers of a kind: a manifest may name one blob a thousand times
        for path in self._paths(kind):
            data = self.store.read(path, left, f"the {kind} of {self.name}")
            texts.append(data.decode(errors="replace"))
            left -= len(data)
        return texts

    @property
    def _again(self) -> str:
        return self.store.again(str(self.name))

    @property
    def details(self) -> dict[str, Any]:
        """Format, family, size and quantisation, as Ollama names them."""
        families = self.config.get("model_families")
        return {
            "format": self._label("model_format"),
            "family": self._label("model_family"),
            "families": [name for name in families if isinstance(name, str)] if isinstance(families, list) else [],
            "parameter_size": self._label("model_type"),
            "quantization_level": self._label("file_type"),
        }

    def _label(self, key: str) -> str:
        """A text in the configuration; empty if there is none."""
        label = self.config.get(key)
        return label if isinstance(label, str) else ""

    @property
    def model(self) -> Path:
        """The GGUF file itself, or of its parts the one that is named first."""
        return self._model[0]

    @property
    def files(self) -> Path | tuple[Path, ...]:
        """The GGUF file, or all of its parts in any order: their metadata says which is which."""
        paths = self._model
        return paths[0] if len(paths) == 1 else tuple(paths)

    @property
    def _model(self) -> list[Path]:
        if self._form != "gguf":
            raise StoreError(
                f"{self.name} is stored as {self._form!r:.80}; wgemma reads GGUF only.", "unsupported_format"
            )
        paths = self._paths("model")
        if not paths:
            raise StoreError(f"{self.name} has no model layer. {self._again}", "no_model_layer")
        return paths

    @property
    def _form(self) -> Any:
        return self.config.get("model_format") or "gguf"

    def open(self) -> Gguf:
        """The model's GGUF, if it is a Gemma 4."""
        gguf = Gguf.open(self.files)
        architecture = gguf.metadata.get("general.architecture")
        if architecture != "gemma4":
            gguf.close()
            reason = f"the architecture of {self.name} is {architecture!r:.80}; wgemma runs gemma4 only."
            raise StoreError(reason, "unsupported_architecture")
        return gguf

    @property
    def projectors(self) -> list[Path]:
        return self._paths("projector")

    @property
    def adapters(self) -> list[Path]:
        return self._paths("adapter")

    @property
    def drafts(self) -> list[Path]:
        return self._paths("draft")

    @property
    def system(self) -> str | None:
        return next(iter(self._texts("system")), None)

    @property
    def template(self) -> str | None:
        return next(iter(self._texts("template")), None)

    @property
    def licenses(self) -> list[str]:
        return self._texts("license")

    @property
    def params(self) -> dict[str, Any]:
        """The settings in the params layer, each of the type Ollama wants; null counts as not there."""
        what = f"the params of {self.name}"
        texts = self._texts("params")
        fields = json_object(texts[0].encode(), what) if texts else {}
        known = {key: value for key, value in fields.items() if key in PARAMS and value is not None}
        for key, value in known.items():
            if not is_kind(PARAMS[key], value):
                raise StoreError(f"{what}: {key} is {value!r:.40}; it must be {PARAMS[key]}.", "bad_manifest")
        return {key: lenient(key, value) for key, value in known.items()}

    @property
    def messages(self) -> list[dict[str, Any]]:
        texts = self._texts("messages")
        value = json_value(texts[0].encode(), f"the messages of {self.name}") if texts else []
        if not isinstance(value, list) or not all(map(is_message, value)):
            raise StoreError(f"the messages of {self.name} are no list of roles and texts.", "bad_manifest")
        # No other fields: what comes from elsewhere must not name files of this machine as pictures.
        return [
            {"role": message["role"], "content": message["content"].encode(errors="replace").decode()}
            for message in value
        ]

    @property
    def parent(self) -> str | None:
        return next((layer.parent for layer in self._of("model") if layer.parent), None)

    @property
    def prompt_style(self) -> str | None:
        """`small` or `large`: which of Gemma 4's two prompt forms Ollama uses for the model, by its name, else by its
        label. None in wgemma's store, where the model's shape decides: names can be chosen freely."""
        if self.store.owner != "ollama":
            return None
        name = str(self.name).lower()
        if "e2b" in name or "e4b" in name:
            return "small"
        if any(size in name for size in ("12b", "26b", "31b")):
            return "large"
        label = re.fullmatch(r"(\d+(?:\.\d+)?)B", self._label("model_type"))
        return "large" if label and float(label[1]) >= 12 else "small"

    @cached_property
    def capabilities(self) -> list[str]:
        """Ollama's capability names: completion, vision and audio if there is a tower, tools, thinking."""
        found = ["completion"]
        headers = []
        for files in (self.files, *self.projectors):
            with Gguf.open(files) as gguf:
                headers.append(gguf.metadata)
        for sense in ("vision", "audio"):
            keys = (f"gemma4.{sense}.block_count", f"clip.has_{sense}_encoder")
            if any(header.get(key) for header in headers for key in keys):
                found.append(sense)
        return [*found, "tools", "thinking"] if self.config.get("parser") == "gemma4" else found

    def check_parts(self) -> None:
        """Raises `StoreError` unless the model's file, or each of its parts, is there once. What is in them is not
        looked at: wgemma need not be able to run it."""
        if self._form != "gguf":
            return
        try:
            Gguf.open(self._model).close()
        except PartsError as error:
            reason = f"{self.name}: {error} `{self.store.owner} rm {self.name}` deletes the model."
            raise StoreError(reason, "bad_manifest") from None
        except GgufError:
            pass

    def check_blobs(self) -> None:
        """Raises `StoreError` if a blob is missing, or larger or smaller than the manifest says."""
        for layer in self.blobs:
            path = self._path(layer)
            size = path.stat().st_size
            if size != layer.size:
                told = f"{path.name} has {size} bytes, and should have {layer.size}"
                raise StoreError(f"{self.name}: {told}. Delete it and {self._again}", "bad_digest")

    def verify(
        self,
        progress: Callable[[ManifestLayer, int], None] = lambda layer, done: None,
        intact: MutableSet[Path] | None = None,
    ) -> None:
        """Hashes every blob, calling `progress` for each piece; raises `StoreError` at the first mismatch, or if the
        model itself is not there or not all of it. Blobs in `intact` are known to be; those that are found to be join
        them."""
        self.check_parts()
        intact = set() if intact is None else intact
        for layer in self.blobs:
            path = self._path(layer)
            if path in intact:
                progress(layer, layer.size)
                continue
            expected = _DIGEST.fullmatch(layer.digest)
            digest = sha256(path, partial(progress, layer))
            if expected is None or digest != expected[1].lower():
                raise StoreError(
                    f"{path.name} is damaged: its bytes hash to {digest}. Delete it and {self._again}",
                    "bad_digest",
                )
            intact.add(path)


def sha256(path: Path, progress: Callable[[int], None]) -> str:
    """A file's digest, in hexadecimal; `progress` is called with the size of every piece."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(4 << 20):
                digest.update(piece)
                progress(len(piece))
    except OSError as error:
        raise StoreError(f"{path.name} cannot be read: {error.strerror}.", "missing_blob") from None
    return digest.hexdigest()
