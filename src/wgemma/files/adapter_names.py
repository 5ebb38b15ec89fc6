"""Names of adapted matrices: a module's path in transformers ⇄ the tensor's name in a GGUF.

    model.language_model.layers.3.self_attn.q_proj  ⇄  blk.3.attn_q.weight

Only matrices wgemma can adapt are listed; anything else is refused, by name.
"""

import re

from wgemma.errors import AdapterError

# The module inside a layer → the tensor inside a block.
MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
}
# In transformers these are parameters, not modules; PEFT names the module that holds them.
EXPERT_PARAMETERS = {"experts.gate_up_proj": "ffn_gate_up_exps", "experts.down_proj": "ffn_down_exps"}
# MoE GGUFs may also store gate and up separately.
EXPERTS = ("ffn_gate_up_exps", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
TEXT_MODEL = "model.language_model."  # where transformers' multimodal class keeps the text model

_PATHS = {tensor: module for module, tensor in (MODULES | EXPERT_PARAMETERS).items()}
_ORDER = [*MODULES.values(), *EXPERTS]
# How files name the text model depends on the class that was trained.
_MODULE = re.compile(
    r"(?:base_model\.model\.)?(?:model\.)?(?:language_model\.)?(?:model\.)?"
    r"(?:layers\.(?P<layer>0|[1-9]\d{0,3})\.(?P<part>[\w.]+)|(?P<table>embed_tokens|lm_head))"
)
_TENSOR = re.compile(r"blk\.(?P<layer>0|[1-9]\d{0,3})\.(?P<part>\w+)\.weight")
_TOWER = re.compile(r"(?:^|\.)(?:(vision|audio)_tower|embed_(vision|audio))\.|^(?:mm\.)?([av])\.")


def tensor_of_module(path: str) -> str:
    """The tensor for a module path, however the file names the text model."""
    _refuse_tower(path)
    match = _MODULE.fullmatch(path)
    if match and match["table"]:
        return EMBEDDING if match["table"] == "embed_tokens" else OUTPUT
    tensor = (MODULES | EXPERT_PARAMETERS).get(match["part"]) if match else None
    if match is None or tensor is None:
        raise _unknown(path)
    return f"blk.{match['layer']}.{tensor}.weight"


def module_of_tensor(name: str) -> str:
    """The path of a tensor in transformers; for experts, the parameter's path."""
    if name == EMBEDDING:
        return TEXT_MODEL + "embed_tokens"
    if name == OUTPUT:
        return "lm_head"
    match = _TENSOR.fullmatch(name)
    if match is None or match["part"] not in _PATHS:
        raise AdapterError(f"{name} has no counterpart in transformers, so it cannot be in a PEFT adapter.")
    return f"{TEXT_MODEL}layers.{match['layer']}.{_PATHS[match['part']]}"


def check_tensor(name: str) -> None:
    """Raises `AdapterError` for a tensor that cannot be adapted."""
    _refuse_tower(name)
    match = _TENSOR.fullmatch(name)
    if name not in (EMBEDDING, OUTPUT) and (match is None or match["part"] not in _ORDER):
        raise _unknown(name)


def is_experts(name: str) -> bool:
    """Whether the tensor holds one matrix per expert."""
    match = _TENSOR.fullmatch(name)
    return match is not None and match["part"] in EXPERTS


def layer_of(name: str) -> int | None:
    match = _TENSOR.fullmatch(name)
    return int(match["layer"]) if match else None


def order(name: str) -> tuple[int, int]:
    """Sort key: by layer, then in the order a layer uses them; the embedding comes first, the output last."""
    match = _TENSOR.fullmatch(name)
    if match is None:
        return (-1 if name == EMBEDDING else 1 << 30), 0
    return int(match["layer"]), _ORDER.index(match["part"])


def _refuse_tower(name: str) -> None:
    if match := _TOWER.search(name):
        sense = {"v": "vision", "a": "audio"}.get(match[3], match[1] or match[2])
        raise AdapterError(f"{name} is part of the {sense} tower; wgemma applies adapters to the text model only.")


def _unknown(name: str) -> AdapterError:
    known = ", ".join(module.rpartition(".")[2] for module in MODULES)
    return AdapterError(f"wgemma cannot adapt {name[:200]}; it adapts {known}, embed_tokens, lm_head and experts.")
