"""`wgemma create NAME -f Modelfile`: makes a model of another one or of files, with settings of its own."""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from wgemma.cli.create_files import find_adapters, find_bases
from wgemma.cli.following import follow
from wgemma.cli.output import progress
from wgemma.cli.stored import how_to_run
from wgemma.creating import check_fit, create
from wgemma.errors import StoreError
from wgemma.files.adapters import OpenAdapter, write_gguf_adapter
from wgemma.files.bases import read_files
from wgemma.files.keeping import keep_file
from wgemma.files.locate import locate
from wgemma.files.modelfile import MAX_MODELFILE, Modelfile, parse_modelfile
from wgemma.files.naming import TRIES, undone_on_failure
from wgemma.files.ollama import Store
from wgemma.files.paths import mode, user_path
from wgemma.files.reading import regular_file
from wgemma.files.recipes import Recipe, check_settings
from wgemma.files.stores import Stores, new_name
from wgemma.sync import run

STDIN = "-"


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("create", help="make a model from a Modelfile")
    verb.add_argument("model", metavar="NAME", help="the new model's name")
    told = "the Modelfile, or - for standard input (default: Modelfile)"
    verb.add_argument("-f", "--file", metavar="FILE", default="Modelfile", help=told)
    verb.add_argument("--json", action="store_true", help="print progress as JSON, one object per line")
    verb.set_defaults(do=create_model)


def create_model(options: argparse.Namespace) -> int:
    name, stores = new_name(options.model), Stores.find()
    said, folder = _read(options.file)
    recipe = Recipe(None, {}, {}, said.system, said.parameters, said.messages, said.licenses)
    check_settings(recipe)
    base, files = find_bases(said.bases, folder, stores, ask=not options.json)
    with TemporaryDirectory() as scratch, undone_on_failure(stores.own) as added:
        adapters = _converted(find_adapters(said.adapters, folder), base, files, Path(scratch))
        for left in reversed(range(TRIES)):
            kept = _kept([*files, *adapters], stores.own, added)
            recipe = replace(recipe, base=base, files=_named(files, kept), adapters=_named(adapters, kept))
            try:
                follow(create(options.model, recipe, stores), f"creating {name}", as_json=options.json)
                break
            except StoreError as error:  # a model that shared a blob with this one was deleted meanwhile
                if error.reason != "missing_blob" or not left:
                    raise
    if not options.json:
        print(f"{name} is ready. {how_to_run(name, stores)}")
    return 0


def _read(file: str) -> tuple[Modelfile, Path]:
    """The Modelfile, and the folder at which its paths begin."""
    if file == STDIN:
        data = sys.stdin.buffer.read(MAX_MODELFILE + 1) if sys.stdin else b""
        if len(data) > MAX_MODELFILE:
            raise StoreError(f"this is too long for a Modelfile: the limit is {MAX_MODELFILE:,} bytes.", "bad_recipe")
        return parse_modelfile(data), Path.cwd()
    path = user_path(file)
    if not mode(path):
        raise StoreError(f"there is no {path}. Write one, such as `FROM gemma4:e2b`, or name it: -f FILE.", "not_found")
    with regular_file(path, MAX_MODELFILE) as opened:
        return parse_modelfile(opened.read()), path.absolute().parent


def _converted(adapters: Iterable[OpenAdapter], base: str | None, files: Sequence[Path], folder: Path) -> list[Path]:
    """The adapters as GGUF files in a folder. Raises if a file is none that a model is made of, or does not fit."""
    if base is not None:
        found = locate(base).model
        model, projectors = list(found) if isinstance(found, tuple) else [Path(found)], list[Path]()
    else:
        read = read_files(str(files[0]), files)
        model, projectors = read.model, read.projectors
    with ExitStack() as opened:
        heads = []
        for head in adapters:
            opened.callback(head.close)
            heads.append(head)
        check_fit(model, projectors, heads, base)
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
