"""Which files of a repository on Hugging Face are the model that a tag names: one file or all its parts, and the
projector beside it.

A repository holds one model in several quantisations, named in the file or its folder: NAME-Q4_K_M.gguf. Beside them
there may be projectors ("mmproj"), importance matrices, adapters, and drafters, which guess tokens for a larger model.
Uploaders follow no common rule, so the tests hold real names.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from wgemma.errors import StoreError
from wgemma.files.labels import LABEL, label_of
from wgemma.files.names import DEFAULT_TAG, Name
from wgemma.files.parts import part_names, whole_name

# What to take if the tag does not say: first what is small enough for most machines and hardly worse than the original,
# then what is larger, then what is worse. IQ3_XXS is left out: files so called often hold IQ2_S, too.
CHOICES = (
    "Q4_K_M", "UD-Q4_K_XL", "Q4_K_L", "Q4_K_S", "Q4_0", "IQ4_XS", "IQ4_NL", "MXFP4_MOE", "MXFP4", "Q4_1",
    "Q5_K_M", "UD-Q5_K_XL", "Q5_K_L", "Q5_K_S", "Q5_0", "Q5_1", "Q6_K", "UD-Q6_K_XL", "Q6_K_L", "Q8_0", "UD-Q8_K_XL",
    "Q3_K_M", "UD-Q3_K_XL", "Q3_K_XL", "Q3_K_L", "IQ3_M", "IQ3_S", "Q3_K_S", "IQ3_XS", "Q2_K_L",
    "UD-Q2_K_XL", "Q2_K", "BF16", "F16", "F32",
)  # fmt: skip
PROJECTORS = ("F16", "BF16", "F32", "Q8_0")
END = ".gguf"

_HELPER = re.compile(  # a drafter or an adapter
    r"(?i)(?<![A-Z0-9])(?:mtp|assistant|draft(?:er)?|dflash|eagle[0-9]*|lora|adapter)(?![A-Z0-9])"
)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a listing."""

    path: str
    digest: str
    size: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def is_projector(self) -> bool:
        return "mmproj" in self.path.lower()


@dataclass(frozen=True, slots=True)
class Choice:
    """What to download: a model's file or parts, and its projector. `label` is empty if no name says it."""

    label: str
    model: Sequence[HubFile]
    projector: HubFile | None

    @property
    def title(self) -> str:
        first = self.model[0].path
        parts = f" in {len(self.model)} parts" if len(self.model) > 1 else ""
        beside = f" and {self.projector.name}" if self.projector else ""
        return whole_name(first) + parts + beside


def choose(files: Sequence[HubFile], name: Name) -> Choice:
    """The model that the tag names, with its parts and its projector."""
    models: dict[str, list[HubFile]] = {}
    for file in files:
        if not file.is_projector and (label_of(file.path) or "imatrix" not in file.name.lower()):
            models.setdefault(whole_name(file.path), []).append(file)
    if not models:
        raise StoreError(f"{name}: there is no GGUF file of a model in this repository.", "not_in_registry")
    path = _model([path for path in models if not _HELPER.search(path)] or list(models), name)
    parts = sorted(models[path], key=lambda file: file.path)
    expected = part_names(parts[0].path)
    if [part.path for part in parts] != expected:
        reason = f"{name}: {path} has {len(parts)} of {len(expected)} parts in this repository."
        raise StoreError(reason, "not_in_registry")
    return Choice(label_of(path), parts, _projector(files, parts[0]))


def _model(paths: Sequence[str], name: Name) -> str:
    by_label: dict[str, str] = {}
    for path in sorted(paths, key=lambda path: (path.count("/"), path)):
        by_label.setdefault(label_of(path), path)
    if name.tag == DEFAULT_TAG:
        best = next((label for label in CHOICES if label in by_label), None)
        return by_label[best] if best else min(paths)
    if (called := _called(paths, name)) is not None:
        return called
    wanted = name.tag.upper()
    for label in (wanted, f"UD-{wanted}"):
        if label in by_label:
            return by_label[label]
    there = ", ".join(sorted(filter(None, by_label))) or ", ".join(sorted(paths)[:20])
    raise StoreError(f"{name.namespace}/{name.model} has no {name.tag}. It has {there:.1000}.", "not_in_registry")


def _called(paths: Sequence[str], name: Name) -> str | None:
    """The file whose name is the tag; None if there is none. Case only matters if there are several."""
    stem = name.tag[: -len(END)] if name.tag.lower().endswith(END) else name.tag
    file = whole_name(stem + END)
    alike = [path for path in paths if path.rpartition("/")[2].lower() == file.lower()]
    found = [path for path in alike if path.rpartition("/")[2] == file] or alike
    if len(found) > 1:
        raise StoreError(
            f"{name.namespace}/{name.model} has several files called {file}: {', '.join(sorted(found)):.1000}. "
            "`wgemma run` takes the address of one of them.",
            "not_in_registry",
        )
    return found[0] if found else None


def _projector(files: Sequence[HubFile], model: HubFile) -> HubFile | None:
    """The projector beside a model, at the top of its repository or in a folder for projectors: of several, one that is
    named like the model; of those, one that is exact and small."""
    there = [
        file
        for file in files
        if file.is_projector and (file.folder in (model.folder, "") or "mmproj" in file.folder.lower())
    ]
    ranks = {label: i for i, label in enumerate(PROJECTORS)}

    def order(file: HubFile) -> tuple[int, int, str]:
        alike = len(_words(file.path) & _words(model.path))
        return -alike, ranks.get(label_of(file.path), len(ranks)), file.path

    return min(there, key=order, default=None)


def _words(path: str) -> set[str]:
    """What a path is made of, but for the quantisation."""
    return set(re.findall(r"[a-z0-9]+", LABEL.sub("", path).lower()))
