"""What registries and hubs announce, and Modelfiles."""

import json
from random import Random
from typing import Any

from fuzz.harness import Reader
from fuzz.mutation import ODD_TEXT, json_bytes, mutate
from wgemma.files.choosing import choose
from wgemma.files.hub import parse_listing
from wgemma.files.modelfile import parse_modelfile
from wgemma.files.names import Name
from wgemma.files.registry import manifest_layers

NAME = Name.parse("hf.co/acme/tiny:Q4_K_M")
KINDS = ("model", "projector", "params", "license", "system")
MANIFEST: dict[str, Any] = {
    "schemaVersion": 2,
    "config": {"mediaType": "x", "digest": "sha256:" + "a" * 64, "size": 9},
    "layers": [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{i:064x}", "size": 99}
        for i, kind in enumerate(KINDS)
    ],
}
PATHS = ("g-Q4_K_M.gguf", "mmproj-F16.gguf", "b/g-BF16-00001-of-00002.gguf", "b/g-BF16-00002-of-00002.gguf")
LISTING = [{"type": "file", "path": path, "lfs": {"oid": f"{i:064x}", "size": 99}} for i, path in enumerate(PATHS)]
LINES = (
    *("FROM gemma4:e2b", "FROM ./x.gguf", "SYSTEM Be brief.", 'SYSTEM """two', 'lines"""', "PARAMETER top_k 5", "#"),
    *(
        "PARAMETER temperature 0.5",
        "PARAMETER stop x",
        "MESSAGE user Hi",
        "ADAPTER x.gguf",
        "LICENSE MIT",
        "PARSER gemma4",
    ),
)


def readers() -> list[Reader]:
    def examine_manifest(data: bytes) -> str:
        for layer in manifest_layers(data, NAME):
            assert len(layer.digest) == 71 and 0 <= layer.size <= 1 << 40
        return "read"

    def examine_listing(data: bytes) -> str:
        found = choose(parse_listing(data, NAME), NAME)
        assert all(len(file.digest) == 71 and file.size > 0 for file in found.model)
        return "chosen"

    def make_modelfile(dice: Random) -> bytes:
        lines = ["FROM x", *dice.choices(LINES, k=dice.randrange(1, 6))]
        lines.insert(dice.randrange(len(lines)), dice.choice((*ODD_TEXT, *LINES)))
        data = "\n".join(lines).encode(errors="replace")
        return mutate(data, dice) if dice.random() < 0.5 else data

    def examine_modelfile(data: bytes) -> str:
        said = parse_modelfile(data)
        json.dumps([said.bases, said.parameters, said.messages])
        return "read"

    return [
        Reader("registry", 20, lambda dice: json_bytes(MANIFEST, dice), examine_manifest),
        Reader("listing", 20, lambda dice: json_bytes(LISTING, dice), examine_listing),
        Reader("Modelfile", 20, make_modelfile, examine_modelfile),
    ]
