"""Finds what a Modelfile names: a model to build upon, or files, and adapters. Errors tell the line."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from wgemma.cli.chat_media import PATH_STARTS
from wgemma.cli.pull import offer
from wgemma.embedded import is_embedded
from wgemma.errors import Error, StoreError
from wgemma.files.adapter_peft import CONFIG
from wgemma.files.adapters import OpenAdapter, open_adapter
from wgemma.files.gguf import Gguf
from wgemma.files.modelfile import at_line
from wgemma.files.parts import part_names
from wgemma.files.paths import mode, user_path
from wgemma.files.sources import is_url
from wgemma.files.stores import Stores

CONVERTER = "llama.cpp's convert_hf_to_gguf.py makes one"


def find_bases(bases: Mapping[str, int], folder: Path, stores: Stores, *, ask: bool) -> tuple[str | None, list[Path]]:
    """The model to build upon by name, or the files, all parts of each. If it is not here, `ask` offers to pull it."""
    for text, line in bases.items():
        with _at(line):
            if len(bases) == 1 and _is_name(text, folder, stores):
                if ask:
                    offer(text)
                if not is_embedded(text):
                    stores.model(text)  # raises, with what to do
                return text, []
    found: dict[Path, None] = {}
    for text, line in bases.items():
        with _at(line):
            found |= dict.fromkeys(_parts(_file(text, folder, stores)))
    return None, list(found)


def find_adapters(adapters: Mapping[str, int], folder: Path) -> Iterator[OpenAdapter]:
    """The adapters, open; whoever takes one closes it."""
    for text, line in adapters.items():
        with _at(line):
            if is_url(text):
                raise StoreError(f"ADAPTER {text:.200} is on the web. Download it, and name the file.", "not_found")
            yield open_adapter(str(folder / user_path(text)))


@contextmanager
def _at(line: int) -> Iterator[None]:
    try:
        yield
    except Error as error:
        raise at_line(line, str(error)) from None


def _is_name(text: str, folder: Path, stores: Stores) -> bool:
    """Whether it is a model's name, of one that is here or might be pulled."""
    if is_embedded(text) or text in stores:
        return True
    if text.startswith((*PATH_STARTS, "~")) or text.endswith(("/", ".gguf", ".safetensors", ".")) or is_url(text):
        return False
    path = folder / user_path(text)
    return not S_ISREG(mode(path)) and not (S_ISDIR(mode(path)) and any(path.glob("*.safetensors")))


def _file(text: str, folder: Path, stores: Stores) -> Path:
    path = folder / user_path(text)
    if S_ISREG(mode(path)) and path.suffix.lower() != ".safetensors":
        return path
    if is_embedded(text) or text in stores:
        reason = "is a model's name, beside which there can be no other FROM"
    elif is_url(text):
        reason = "is on the web. Download it and name the file, or name a model that `wgemma pull` gets"
    elif S_ISREG(mode(path / CONFIG)):
        reason = "is a LoRA adapter. Name it as ADAPTER, and its model as FROM"
    elif path.suffix.lower() == ".safetensors" or (S_ISDIR(mode(path)) and any(path.glob("*.safetensors"))):
        reason = f"is in safetensors; wgemma builds upon GGUF files. {CONVERTER}"
    elif S_ISDIR(mode(path)):
        reason = "is a folder. Name the .gguf file in it"
    else:
        reason = "does not exist"
    raise StoreError(f"FROM {text:.200} {reason}.", "not_found")


def _parts(path: Path) -> Iterator[Path]:
    with Gguf.open(path) as gguf:
        names = part_names(path.name) if gguf.parts > 1 else [path.name]
    yield from (path.with_name(name) for name in names)
