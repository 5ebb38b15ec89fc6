"""`wgemma create NAME -f Modelfile`: makes a model of another one or of files, with settings of its own."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from stat import S_ISREG
from tempfile import TemporaryDirectory

from wgemma.cli.following import follow
from wgemma.cli.output import progress
from wgemma.cli.pull import offer
from wgemma.embedded import is_embedded
from wgemma.errors import StoreError
from wgemma.files.adapters import fitting_adapter, open_adapter, write_gguf_adapter
from wgemma.files.creating import create
from wgemma.files.gguf import Gguf
from wgemma.files.keeping import keep_file
from wgemma.files.locate import locate
from wgemma.files.modelfile import MAX_MODELFILE, parse_modelfile
from wgemma.files.names import Name
from wgemma.files.parts import part_names
from wgemma.files.paths import mode, user_path
from wgemma.files.reading import regular_file
from wgemma.files.recipes import Recipe
from wgemma.files.registry import FAMILY
from wgemma.files.stores import Stores
from wgemma.model.config import Config, find_tensors
from wgemma.sync import run


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("create", help="make a model from a Modelfile")
    verb.add_argument("model", metavar="NAME", help="the new model's name")
    verb.add_argument("-f", "--file", metavar="FILE", default="Modelfile", help="the Modelfile (default: Modelfile)")
    verb.add_argument("--json", action="store_true", help="print progress as JSON, one object per line")
    verb.set_defaults(do=create_model)


def create_model(options: argparse.Namespace) -> int:
    name, stores = Name.parse(options.model), Stores.find()
    path = user_path(options.file)
    with regular_file(path, MAX_MODELFILE) as file:
        said = parse_modelfile(file.read().decode(errors="replace"))
    folder = path.absolute().parent
    base, files = _bases(said.bases, folder, stores, ask=not options.json)
    recipe = Recipe(
        base=base,
        files=_kept(files, stores),
        adapters=_adapters(said.adapters, folder, stores, base, files),
        system=said.system,
        parameters=said.parameters,
        messages=said.messages,
        licenses=said.licenses,
    )
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


def _kept(files: Sequence[Path], stores: Stores) -> dict[str, str]:
    """Copies the files into the store: names → digests."""
    if not files:
        return {}
    with progress("copying", 2 * sum(path.stat().st_size for path in files)) as bar:  # hashed, then copied
        return {str(path): keep_file(stores.own, path, bar) for path in files}


def _adapters(
    named: Sequence[str], folder: Path, stores: Stores, base: str | None, files: Sequence[Path]
) -> dict[str, str]:
    """Copies the adapters into the store, as GGUF; raises if one does not fit the model."""
    if not named:
        return {}
    model = locate(base).model if base is not None else next(filter(_is_model, files), files[0])
    with Gguf.open(model) as gguf, TemporaryDirectory() as scratch:
        tensors = find_tensors(Config.from_gguf(gguf), gguf.tensors)
        kept = {}
        for i, text in enumerate(named):
            adapter = run(fitting_adapter(tensors, open_adapter(str(_path(text, folder))), None))
            converted = Path(scratch) / f"{i}.gguf"
            write_gguf_adapter(adapter, converted)
            kept[text] = keep_file(stores.own, converted)
        return kept


def _is_model(path: Path) -> bool:
    with Gguf.open_part(path) as gguf:
        return gguf.metadata.get("general.architecture") == FAMILY
