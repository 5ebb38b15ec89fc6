"""`wgemma show [MODEL]`: shows what a model is, what it contains, and how it is prompted."""

import argparse
from collections import Counter
from typing import Any

from wgemma.api import prompt_style
from wgemma.checks import counted, human_bytes
from wgemma.cli.output import as_json, clean, human_count, table
from wgemma.cli.words import MODEL
from wgemma.engine.towers import tower_bytes
from wgemma.errors import StoreError
from wgemma.files.arrays import StringArray
from wgemma.files.download import readable
from wgemma.files.gguf import Gguf
from wgemma.files.locate import ModelFiles, locate
from wgemma.model.audio_config import has_audio
from wgemma.model.vision_config import has_vision
from wgemma.text.template import render

SAMPLE = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "Hello!"}]


def add(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("show", help="show what a model is and contains")
    verb.add_argument("model", metavar="MODEL", nargs="?", help=MODEL)
    verb.add_argument("--tensors", action="store_true", help="list every tensor")
    verb.add_argument("--template", action="store_true", help="show the prompt wgemma renders and the file's template")
    verb.add_argument("--license", action="store_true", help="print the model's licenses in full")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(do=show)


def show(options: argparse.Namespace) -> int:
    files = locate(options.model)
    with Gguf.open(readable(files.model)) as gguf:
        style = prompt_style(files, gguf) if gguf.metadata.get("general.architecture") == "gemma4" else "none"
        if options.json:
            as_json(_record(files, gguf, style, options))
        elif options.license:
            print(clean(_licenses(files)))
        elif options.template:
            _print_template(files, gguf, style)
        else:
            _print_summary(files, gguf, style)
            if options.tensors:
                print()
                rows = [
                    [t.name, t.type, "×".join(map(str, t.shape)), human_bytes(t.nbytes)] for t in gguf.tensors.values()
                ]
                table(["TENSOR", "TYPE", "SHAPE", "SIZE"], rows)
    return 0


def _summary(files: ModelFiles, gguf: Gguf, style: str) -> dict[str, Any]:
    get = gguf.metadata.get
    architecture = get("general.architecture", "?")
    tokens = get("tokenizer.ggml.tokens")
    parameters = sum(t.elements for t in gguf.tensors.values())
    types = Counter[str]()
    for tensor in gguf.tensors.values():
        types[tensor.type] += tensor.nbytes
    summary = {
        "model": files.name,
        "architecture": architecture,
        "title": get("general.name", ""),
        "parameters": parameters,
        "context": get(f"{architecture}.context_length"),
        "layers": get(f"{architecture}.block_count"),
        "width": get(f"{architecture}.embedding_length"),
        "vocabulary": len(tokens) if isinstance(tokens, StringArray) else 0,
        "bytes_by_type": dict(types.most_common()),
        "bits_per_weight": round(8 * types.total() / max(parameters, 1), 2),
        "prompt_style": style,
        "towers": _towers(files, gguf),
        "params": files.params,
        "system": files.system,
        "parts": gguf.parts,
        "projectors": files.projectors,
        "adapters": files.adapters,
    }
    if files.stored:
        stored = files.stored
        summary |= {
            "store": stored.store.root,
            "size": stored.size,
            "digest": stored.digest,
            "capabilities": stored.capabilities,
            "parent": stored.parent,
            "messages": stored.messages,
            "licenses": stored.licenses,
        }
    return summary


def _licenses(files: ModelFiles) -> str:
    texts = files.stored.licenses if files.stored else []
    if not texts:
        raise StoreError(f"{files.name} has no license in it.", "not_found")
    return "\n\n".join(text.strip("\n") for text in texts)


def _towers(files: ModelFiles, gguf: Gguf) -> list[dict[str, Any]]:
    """The vision and audio towers in the model's file and its projectors."""
    found = _towers_in(gguf)
    for path in files.projectors:
        with Gguf.open(path) as projector:
            found += [{**tower, "file": path.name} for tower in _towers_in(projector)]
    return found


def _towers_in(gguf: Gguf) -> list[dict[str, Any]]:
    prefix = "clip" if gguf.metadata.get("general.architecture") == "clip" else "gemma4"
    towers = []
    for sense, there, mark in (("vision", has_vision, "v."), ("audio", has_audio, "a.")):
        if there(gguf):
            keys = {"layers": f"{prefix}.{sense}.block_count", "width": f"{prefix}.{sense}.embedding_length"}
            shape = {name: gguf.metadata.get(key) for name, key in keys.items()}
            towers.append({"sense": sense, **shape, "bytes": tower_bytes(gguf, mark)})
    return towers


def _described(tower: dict[str, Any]) -> str:
    shape = f"{tower['layers']} × {tower['width']}, " if tower["layers"] else ""
    place = f", in {tower['file']}" if "file" in tower else ""
    return f"{shape}{human_bytes(tower['bytes'])}{place}"


def _record(files: ModelFiles, gguf: Gguf, style: str, options: argparse.Namespace) -> dict[str, Any]:
    record = _summary(files, gguf, style)
    long = {"tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.merges"}
    record["metadata"] = {key: value for key, value in gguf.metadata.items() if key not in long}
    if options.tensors:
        record["tensors"] = [
            {"name": t.name, "type": t.type, "shape": t.shape, "offset": t.offset, "nbytes": t.nbytes}
            for t in gguf.tensors.values()
        ]
    if options.template:
        record["template"] = _templates(files, gguf, style)
    return record


def _print_summary(files: ModelFiles, gguf: Gguf, style: str) -> None:
    facts = _summary(files, gguf, style)
    types = ", ".join(f"{name} {human_bytes(count)}" for name, count in facts["bytes_by_type"].items())
    lines = {
        "model": facts["model"],
        "title": facts["title"],
        "architecture": facts["architecture"],
        "parameters": human_count(facts["parameters"]),
        "context": facts["context"],
        "layers × width": f"{facts['layers']} × {facts['width']}",
        "vocabulary": facts["vocabulary"],
        "weights": f"{types}; {facts['bits_per_weight']:.2f} bits per weight" if types else None,
        "parts": gguf.parts if gguf.parts > 1 else None,
        "prompt": f"{style} form" if style != "none" else "none: wgemma runs gemma4 models only",
        **{f"{tower['sense']} tower": _described(tower) for tower in facts["towers"]},
        "capabilities": ", ".join(facts.get("capabilities", ())),
        "store": facts.get("store"),
        "made from": facts.get("parent"),
        "projectors": ", ".join(path.name for path in files.projectors),
        "adapters": ", ".join(path.name for path in files.adapters),
        "settings": ", ".join(f"{key} {value}" for key, value in files.params.items()),
        "system": files.system,
        "messages": f"{counted(len(files.messages), 'message')} before every chat" if files.messages else None,
        "license": ", ".join(text.strip().partition("\n")[0].strip() for text in facts.get("licenses", ())),
    }
    for label, value in lines.items():
        if value not in (None, "", "None × None"):
            print(f"{label:<16}{clean(str(value))}")


def _templates(files: ModelFiles, gguf: Gguf, style: str) -> dict[str, Any]:
    return {
        "rendered": None if style == "none" else render(SAMPLE, size="large" if style == "large" else "small"),
        "store": files.stored.template if files.stored else None,
        "gguf": gguf.metadata.get("tokenizer.chat_template"),
    }


def _print_template(files: ModelFiles, gguf: Gguf, style: str) -> None:
    """wgemma renders prompts with its own code; a template in the file is shown, never executed."""
    templates = _templates(files, gguf, style)
    if style == "none":
        print("# wgemma renders prompts for gemma4 models only; this is not one.")
    else:
        print(f"# What wgemma sends for a short chat ({style} form)\n{templates['rendered']}")
    for key, title in (("store", "The store's template layer"), ("gguf", "The template inside the GGUF")):
        if templates[key]:
            print(f"\n# {title} (shown, never executed)\n{clean(str(templates[key]))}")
