"""Adapters as PEFT stores them: a folder with `adapter_config.json` and `adapter_model.safetensors`.

    base_model.model.<module>.lora_A.weight  [rank, in]      scale = alpha / rank, with rsLoRA alpha / √rank
    base_model.model.<module>.lora_B.weight  [out, rank]
    …embed_tokens.lora_embedding_A           [rank, tokens]  …embed_tokens.lora_embedding_B  [width, rank]
    …experts.lora_A.weight [experts · rank, in], lora_B.weight [out, rank · experts]  with the experts fastest in B

Rank and alpha come from the configuration, unless one of its patterns matches the module. A setting that changes the
computation in a way wgemma does not support is refused by name.
"""

import json
import re
from array import array
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from math import sqrt
from pathlib import Path
from typing import Any

from wgemma.errors import AdapterError
from wgemma.files.adapter_names import (
    EMBEDDING,
    EXPERT_PARAMETERS,
    OUTPUT,
    TEXT_MODEL,
    is_experts,
    module_of_tensor,
    tensor_of_module,
)
from wgemma.files.adapter_pairs import AdapterFile, OpenAdapter, Pair, PairHead, checked_alpha, gathered
from wgemma.files.floats import transposed
from wgemma.files.json_text import parse_json
from wgemma.files.paths import user_path
from wgemma.files.patterns import Patterns
from wgemma.files.safetensors import Safetensors, StoredTensor, write_safetensors
from wgemma.files.writing import replacing

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_CONFIG = 4 << 20
MAX_RANK = 1 << 16
MAX_PATTERNS = 4096
PREFIX = "base_model.model."

# What each unsupported setting means. Other settings that start with `use_` are refused, too: unknown variants.
REFUSED = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
    "fan_in_fan_out": "transposed matrices",
    "lora_bias": "its own biases",
    "modules_to_save": "its own full modules",
    "trainable_token_indices": "its own tokens",
    "alora_invocation_tokens": "activated LoRA (aLoRA)",
    "layer_replication": "repeated layers",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "arrow_config": "Arrow routing",
    "megatron_config": "Megatron",
}
# Initialisations that leave the base weights alone; the others (PiSSA, OLoRA, LoftQ, CorDA …) change them.
BEGINNINGS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")

_KEY = re.compile(
    r"(?P<module>.+?)\.(?:lora_(?P<half>[AB])(?:\.default)?\.weight|lora_embedding_(?P<row>[AB])(?:\.default)?)"
)
_COPY = re.compile(r"(?P<module>.+)\.(?:base_layer\.)?weight")
_INNER = ".base_layer"


class _Table:
    """Values by pattern; the first pattern that matches a path counts."""

    def __init__(self, values: dict[str, Any]) -> None:
        if len(values) > MAX_PATTERNS:
            raise AdapterError(f"rank_pattern or alpha_pattern has more than {MAX_PATTERNS} patterns.")
        self._patterns = Patterns(list(values))
        self._values = list(values.values())

    def of(self, path: str, default: Any) -> Any:
        index = self._patterns.first(path)
        return default if index is None else self._values[index]


@dataclass(frozen=True, slots=True)
class _Config:
    rank: int
    alpha: float
    ranks: _Table
    alphas: _Table
    root: bool  # rsLoRA
    tied: bool  # an adapter of the embedding also applies to the output
    parameters: frozenset[str]
    base: str | None

    def of(self, path: str) -> tuple[int, float]:
        """Rank and scale of a module, by PEFT's rule: the first pattern that matches the end of its path."""
        rank = _whole("rank_pattern", self.ranks.of(path, self.rank))
        alpha = checked_alpha("alpha_pattern", self.alphas.of(path, self.alpha))
        return rank, alpha / (sqrt(rank) if self.root else rank)


async def open_peft(config: bytes, weights: Any, name: str) -> OpenAdapter:
    """The adapter from a configuration's bytes and safetensors `weights` (a path, bytes or a `Source`)."""
    settings = _config(config)
    opened = await Safetensors.aopen(weights)
    try:
        pairs: dict[str, PairHead] = {}
        halves = _halves(opened.tensors)
        for module, (a, b) in halves.items():
            tensor, pair = _pair(opened, settings, _path(settings, module, halves), a, b)
            if tensor in pairs:
                raise AdapterError(f"{tensor} is adapted twice, the second time by {module}.")
            pairs[tensor] = pair
        _refuse_other_tables(opened.tensors, pairs)
        if settings.tied and not pairs.keys().isdisjoint((EMBEDDING, OUTPUT)):
            raise AdapterError(
                "this adapter ties embedding and output (ensure_weight_tying), which wgemma does not support."
            )
        return gathered(name, pairs, settings.alpha, settings.base, opened.close)
    except BaseException:
        opened.close()
        raise


async def read_peft(config: bytes, weights: Any, name: str) -> AdapterFile:
    """`open_peft`, and all numbers."""
    return await (await open_peft(config, weights, name)).read()


def _config(data: bytes) -> _Config:
    try:
        fields = parse_json(data)
    except ValueError as error:
        raise AdapterError(f"{CONFIG} is {error}.") from None
    if not isinstance(fields, dict):
        raise AdapterError(f"{CONFIG} is not a JSON object.")
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise AdapterError(f"peft_type is {kind!r:.40}; wgemma applies LORA only.")
    for key, value in fields.items():
        if value and (key in REFUSED or (key.startswith("use_") and key != "use_rslora")):
            raise AdapterError(
                f"this adapter uses {REFUSED.get(key, 'a variant')} ({key[:80]}), which wgemma does not support."
            )
    if fields.get("bias", "none") != "none":
        raise AdapterError(
            f"this adapter changes biases (bias = {fields['bias']!r:.40}), which wgemma does not support."
        )
    beginning = fields.get("init_lora_weights", True)
    if beginning not in BEGINNINGS:
        raise AdapterError(
            f"this adapter was initialised with {beginning!r:.40} (init_lora_weights), which changes the base weights; "
            "convert it to plain LoRA with PEFT first."
        )
    patterns = [fields.get(key) or {} for key in ("rank_pattern", "alpha_pattern")]
    if not all(isinstance(pattern, dict) for pattern in patterns):
        raise AdapterError("rank_pattern or alpha_pattern is not a JSON object.")
    parameters = fields.get("target_parameters") or []
    if not isinstance(parameters, list) or not all(isinstance(item, str) for item in parameters):
        raise AdapterError("target_parameters is not a list of names.")
    base = fields.get("base_model_name_or_path")
    return _Config(
        rank=_whole("r", fields.get("r", 8)),
        alpha=checked_alpha("lora_alpha", fields.get("lora_alpha", 8)),
        ranks=_Table(patterns[0]),
        alphas=_Table(patterns[1]),
        root=bool(fields.get("use_rslora")),
        tied=bool(fields.get("ensure_weight_tying")),
        parameters=frozenset(parameters),
        base=base if isinstance(base, str) and base else None,
    )


def _whole(key: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MAX_RANK:
        raise AdapterError(f"{key} is {value!r:.40}; a rank is a whole number from 1 to {MAX_RANK}.")
    return value


def _halves(tensors: Mapping[str, StoredTensor]) -> dict[str, tuple[str, str]]:
    """The names of A and B by module."""
    found: dict[str, dict[str, str]] = {}
    for key in tensors:
        match = _KEY.fullmatch(key)
        if match is None:
            if not _is_table(key):
                _refuse_key(key)
            continue
        halves = found.setdefault(match["module"], {})
        half = match["half"] or match["row"]
        if half in halves:
            raise AdapterError(f"{key} appears twice, with and without an adapter's name.")
        halves[half] = key
    for module, halves in found.items():
        if len(halves) < 2:
            raise AdapterError(f"{module} has only lora_{'A' if 'A' in halves else 'B'}; its partner is missing.")
    return {module: (halves["A"], halves["B"]) for module, halves in found.items()}


def _is_table(key: str) -> bool:
    """PEFT saves a copy of the base's embedding next to an adapter of it; it is not needed."""
    match = _COPY.fullmatch(key)
    return match is not None and match["module"].removesuffix(_INNER).endswith(("embed_tokens", "lm_head"))


def _refuse_key(key: str) -> None:
    if "lora_magnitude_vector" in key:
        raise AdapterError(f"{key} belongs to DoRA, which wgemma does not support.")
    module = key.rpartition(".lora_")[0] or key.removesuffix(".weight")
    tensor_of_module(module.removesuffix(_INNER))  # raises if it is in a tower or unknown
    raise AdapterError(f"{key[:200]} is not part of a LoRA adapter.")


def _refuse_other_tables(tensors: Mapping[str, StoredTensor], pairs: Mapping[str, PairHead]) -> None:
    """A copy of the embedding is ignored only if the embedding is adapted and the shapes match."""
    for key, entry in tensors.items():
        match = None if _KEY.fullmatch(key) else _COPY.fullmatch(key)
        if match is None:
            continue
        pair = pairs.get(tensor_of_module(match["module"].removesuffix(_INNER)))
        if pair is None or entry.shape != (pair.rows, pair.columns):
            raise AdapterError(
                f"{key} replaces a matrix of the model instead of adapting it, which wgemma does not support."
            )


def _pair(opened: Safetensors, config: _Config, path: str, a: str, b: str) -> tuple[str, PairHead]:
    tensor = tensor_of_module(path)
    rank, scale = config.of(path.removeprefix(PREFIX))
    first, second = opened.tensors[a].shape, opened.tensors[b].shape
    experts = first[0] // rank if is_experts(tensor) else 1
    if len(first) != 2 or len(second) != 2 or first[0] != second[1]:
        raise AdapterError(f"{a} and {b} do not fit together: {list(first)} and {list(second)}.")
    if first[0] != experts * rank:
        raise AdapterError(f"{a} has rank {first[0]}, but {CONFIG} says {rank}.")
    if (tensor == EMBEDDING) != ("lora_embedding_" in a) or ("lora_embedding_" in a) != ("lora_embedding_" in b):
        raise AdapterError(f"{a} is the wrong name for an adapter of {tensor}.")

    async def read() -> "tuple[array[float], array[float]]":
        values = await opened.aread(a), await opened.aread(b)
        if tensor == EMBEDDING:
            return transposed(values[1], rank), transposed(values[0], first[1])
        return values[0], _by_expert(values[1], experts)

    columns, rows = (second[0], first[1]) if tensor == EMBEDDING else (first[1], second[0])
    return tensor, PairHead(rank, columns, rows, scale, experts, read)


def _path(config: _Config, module: str, modules: Collection[str]) -> str:
    """The module's path; for experts, the path of the parameter, which PEFT does not name.

    If both parameters are adapted, gate and up are the inner one.
    """
    outer = module.removesuffix(_INNER)
    if not outer.endswith(".experts"):
        return module
    paths = [f"{outer}.{parameter.partition('.')[2]}" for parameter in EXPERT_PARAMETERS]
    adapted = [path for path in paths if not config.parameters.isdisjoint(_endings(path))]
    both = outer + _INNER in modules
    if len(adapted) != 1 + both or (module != outer and not both):
        raise AdapterError(f"{module} adapts experts, but target_parameters does not say which of their matrices.")
    return adapted[0] if module != outer else adapted[-1]


def _endings(path: str) -> list[str]:
    """What follows each dot of a path."""
    return [path[i + 1 :] for i, character in enumerate(path) if character == "."]


def _by_expert(b: "array[float]", experts: int) -> "array[float]":
    """[rows, rank, experts] as [experts, rows, rank]."""
    return b if experts == 1 else transposed(b, experts)


def write_peft(
    adapter: AdapterFile, folder: str | Path, *, base: str | None = None, settings: Mapping[str, Any] | None = None
) -> None:
    """Writes a folder that PEFT loads; existing files are replaced only once both are written.

    `settings` go into the configuration unchanged (`lora_dropout`, …).
    """
    config, tensors = _contents(adapter, base, settings)
    folder = user_path(folder, AdapterError)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as files:
            file = files.enter_context(replacing(folder / CONFIG))
            file.write(config)
            file.flush()
            write_safetensors(files.enter_context(replacing(folder / WEIGHTS)), tensors, {"format": "pt"})
    except OSError as error:
        raise AdapterError(f"{folder} cannot be written: {error.strerror or error}.") from None


def peft_files(adapter: AdapterFile) -> dict[str, bytes]:
    """The files of such a folder, by name."""
    config, tensors = _contents(adapter)
    weights = BytesIO()
    write_safetensors(weights, tensors, {"format": "pt"})
    return {CONFIG: config, WEIGHTS: weights.getvalue()}


def _contents(
    adapter: AdapterFile, base: str | None = None, settings: Mapping[str, Any] | None = None
) -> "tuple[bytes, dict[str, tuple[tuple[int, ...], array[float]]]]":
    """The configuration and the tensors."""
    paths = {module_of_tensor(tensor): pair for tensor, pair in adapter.pairs.items()}
    inner = {path.rpartition(".")[0] for path in paths if path.endswith(".experts.down_proj")}
    tensors: dict[str, tuple[tuple[int, ...], array[float]]] = {}
    for path, pair in paths.items():
        tensors |= _tensors(path, pair, inner)
    config = _written_config(adapter, paths, base) | dict(settings or {})
    return json.dumps(config, indent=2, sort_keys=True).encode() + b"\n", tensors


def _tensors(path: str, pair: Pair, inner: set[str]) -> "dict[str, tuple[tuple[int, ...], array[float]]]":
    if path.endswith("embed_tokens"):
        a, b = transposed(pair.b, pair.rank), transposed(pair.a, pair.columns)
        return {
            f"{PREFIX}{path}.lora_embedding_A": ((pair.rank, pair.rows), a),
            f"{PREFIX}{path}.lora_embedding_B": ((pair.columns, pair.rank), b),
        }
    module, b, rank = path, pair.b, pair.rank
    if path.endswith(tuple(EXPERT_PARAMETERS)):
        module, _, parameter = path.rpartition(".")
        module += _INNER if parameter == "gate_up_proj" and module in inner else ""
        b, rank = transposed(pair.b, pair.rows * pair.rank), pair.experts * pair.rank
    return {
        f"{PREFIX}{module}.lora_A.weight": ((rank, pair.columns), pair.a),
        f"{PREFIX}{module}.lora_B.weight": ((pair.rows, rank), b),
    }


def _written_config(adapter: AdapterFile, paths: Mapping[str, Pair], base: str | None) -> dict[str, Any]:
    (rank, alpha), _ = Counter((pair.rank, pair.alpha) for pair in paths.values()).most_common(1)[0]
    parameters = [path for path in paths if path.endswith(tuple(EXPERT_PARAMETERS))]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base or adapter.base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": _shortest(alpha),
        "rank_pattern": {re.escape(path): pair.rank for path, pair in paths.items() if pair.rank != rank},
        "alpha_pattern": {
            re.escape(path): _shortest(pair.alpha) for path, pair in paths.items() if pair.alpha != alpha
        },
        "target_modules": _targets(paths),
        "target_parameters": parameters or None,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }


def _shortest(number: float) -> int | float:
    return int(number) if number == int(number) else number


def _targets(paths: Mapping[str, Pair]) -> str:
    """A regular expression for exactly these modules, because the towers have modules of the same name."""
    layers: dict[str, list[str]] = {}
    others: list[str] = []
    for path in paths:
        if path.endswith(tuple(EXPERT_PARAMETERS)):
            continue
        layer, _, part = path.removeprefix(f"{TEXT_MODEL}layers.").partition(".")
        if layer.isdigit():
            layers.setdefault(part, []).append(layer)
        else:
            others.append(re.escape(path))
    groups: dict[tuple[str, ...], list[str]] = {}
    for part, numbers in layers.items():
        groups.setdefault(tuple(numbers), []).append(re.escape(part))
    start = re.escape(f"{TEXT_MODEL}layers.")
    inside = [rf"{start}({'|'.join(numbers)})\.({'|'.join(parts)})" for numbers, parts in groups.items()]
    return "|".join(inside + others)
