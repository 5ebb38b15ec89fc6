"""`wgemma create NAME -f Modelfile`: makes a model of another one or of files, with settings of its own."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from stat import S_ISREG
from tempfile import TemporaryDirectory

from wgemma.cli.following import follow
from wgemma.cli.output import progress
from wgemma.cli.pull import offer
from wgemma.creating import check_fit, create
from wgemma.embedded import is_embedded
from wgemma.errors import StoreError
from wgemma.files.adapters import open_adapter, write_gguf_adapter
from wgemma.files.bases import read_files
from wgemma.files.gguf import Gguf
from wgemma.files.keeping import keep_file, undone_on_failure
from wgemma.files.locate import locate
from wgemma.files.modelfile import MAX_MODELFILE, parse_modelfile
from wgemma.files.ollama import Store
from wgemma.files.parts import part_names
from wgemma.files.paths import mode, user_path
from wgemma.files.reading import regular_file
from wgemma.files.recipes import Recipe, check_settings
from wgemma.files.stores import Stores, new_name
from wgemma.sync import run


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("create", help="make a model from a Modelfile")
    verb.add_argument("model", metavar="NAME", help="the new model's name")
    verb.add_argument("-f", "--file", metavar="FILE", default="Modelfile", help="the Modelfile (default: Modelfile)")
    verb.add_argument("--json", action="store_true", help="print progress as JSON, one object per line")
    verb.set_defaults(do=create_model)


def create_model(options: argparse.Namespace) -> int:
    name, stores = new_name(options.model), Stores.find()
    path = user_path(options.file)
    with regular_file(path, MAX_MODELFILE) as file:
        said = parse_modelfile(file.read().decode(errors="replace"))
    recipe = Recipe(None, {}, {}, said.system, said.parameters, said.messages, said.licenses)
    check_settings(recipe)
    folder = path.absolute().parent
    base, files = _bases(said.bases, folder, stores, ask=not options.json)
    with TemporaryDirectory() as scratch, undone_on_failure(stores.own) as added:
        adapters = _converted([_path(text, folder) for text in said.adapters], base, files, Path(scratch))
        kept = _kept([*files, *adapters], stores.own, added)
        recipe = replace(recipe, base=base, files=_named(files, kept), adapters=_named(adapters, kept))
        follow(create(options.model, recipe, stores), f"creating {name}", as_json=options.json)
    if not options.json:
        print(f"{name} is ready. `wgemma run {name}` starts it.")
    return 0


def _bases(bases: Sequence[str], folder: Path, stores: Stores, *, ask: bool) -> tuple[str | None, list[Path]]:
    """The model to build upon by name, or the files, all parts of each. If it is not here, `ask` offers to pull it."""
    if len(bases) == 1 and (bases[0] in stores or is_embedded(bases[0])):
        return bases[0], []
    files: list[Path] = []
    for text in bases:
        path = _path(text, folder)
        if not S_ISREG(mode(path)):
            if len(bases) == 1 and not text.lower().endswith(".gguf"):
                if ask:
                    offer(text)
                stores.model(text)  # raises, with what to do
                return text, []
            raise StoreError(f"FROM {text:.200}: no such file.", "not_found")
        files += list(_parts(path))
    return None, files


def _path(text: str, folder: Path) -> Path:
    """A path in a Modelfile, which begins at the Modelfile's folder."""
    return folder / user_path(text)


def _parts(path: Path) -> Iterator[Path]:
    with Gguf.open(path) as gguf:
        names = part_names(path.name) if gguf.parts > 1 else [path.name]
    yield from (path.with_name(name) for name in names)


def _converted(adapters: Sequence[Path], base: str | None, files: Sequence[Path], folder: Path) -> list[Path]:
    """The adapters as GGUF files in a folder. Raises if a file is none that a model is made of, or does not fit."""
    if base is not None:
        found = locate(base).model
        model, projectors = list(found) if isinstance(found, tuple) else [Path(found)], list[Path]()
    else:
        read = read_files(str(files[0]), files)
        model, projectors = read.model, read.projectors
    with ExitStack() as opened:
        heads = []
        for path in adapters:
            heads.append(open_adapter(path))
            opened.callback(heads[-1].close)
        check_fit(model, projectors, heads)
        converted = [folder / f"{i}.gguf" for i in range(len(heads))]
        for head, path in zip(heads, converted, strict=True):
            write_gguf_adapter(run(head.read()), path)
        return converted


def _kept(files: Sequence[Path], store: Store, added: set[str]) -> dict[Path, str]:
    """Copies the files into the store; their digests."""
    if not files:
        return {}
    with progress("copying", 2 * sum(path.stat().st_size for path in files)) as bar:  # hashed, then copied
        return {path: keep_file(store, path, added, bar) for path in files}


def _named(files: Sequence[Path], digests: Mapping[Path, str]) -> dict[str, str]:
    return {str(path): digests[path] for path in files}
