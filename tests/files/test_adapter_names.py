"""Module and tensor names map one to one, and unknown ones are refused by name."""

import pytest

from wgemma import AdapterError
from wgemma.files.adapter_names import check_tensor, is_experts, module_of_tensor, order, tensor_of_module

PREFIXES = [
    "base_model.model.model.language_model.",
    "base_model.model.model.",
    "base_model.model.language_model.model.",
    "model.language_model.",
]
MODULES = {
    "layers.0.self_attn.q_proj": "blk.0.attn_q.weight",
    "layers.12.self_attn.k_proj": "blk.12.attn_k.weight",
    "layers.3.self_attn.v_proj": "blk.3.attn_v.weight",
    "layers.3.self_attn.o_proj": "blk.3.attn_output.weight",
    "layers.3.mlp.gate_proj": "blk.3.ffn_gate.weight",
    "layers.3.mlp.up_proj": "blk.3.ffn_up.weight",
    "layers.3.mlp.down_proj": "blk.3.ffn_down.weight",
    "layers.3.per_layer_input_gate": "blk.3.inp_gate.weight",
    "layers.3.per_layer_projection": "blk.3.proj.weight",
    "layers.3.experts.gate_up_proj": "blk.3.ffn_gate_up_exps.weight",
    "layers.3.experts.down_proj": "blk.3.ffn_down_exps.weight",
    "embed_tokens": "token_embd.weight",
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_way_to_name_the_text_model_is_understood(prefix: str) -> None:
    assert {module: tensor_of_module(prefix + module) for module in MODULES} == MODULES
    assert tensor_of_module("base_model.model.lm_head") == "output.weight"


@pytest.mark.parametrize(("module", "tensor"), MODULES.items())
def test_a_tensor_leads_back_to_its_module(module: str, tensor: str) -> None:
    assert module_of_tensor(tensor) == f"model.language_model.{module}"
    check_tensor(tensor)


def test_the_output_matrix_lies_outside_the_text_model() -> None:
    assert module_of_tensor("output.weight") == "lm_head"
    check_tensor("output.weight")


@pytest.mark.parametrize(
    ("module", "sense"),
    [
        ("base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj.linear", "vision"),
        ("base_model.model.model.audio_tower.layers.0.feed_forward1.ffw_layer_1.linear", "audio"),
        ("base_model.model.model.embed_vision.embedding_projection", "vision"),
    ],
)
def test_a_towers_module_is_refused_by_name(module: str, sense: str) -> None:
    with pytest.raises(AdapterError) as caught:
        tensor_of_module(module)
    assert str(caught.value) == (
        f"{module} is part of the {sense} tower; wgemma applies adapters to the text model only."
    )


@pytest.mark.parametrize(("tensor", "sense"), [("v.blk.0.attn_q.weight", "vision"), ("mm.a.fc.weight", "audio")])
def test_a_towers_tensor_is_refused_by_name(tensor: str, sense: str) -> None:
    with pytest.raises(AdapterError, match=f"{tensor} is part of the {sense} tower"):
        check_tensor(tensor)


@pytest.mark.parametrize(
    "module",
    [
        "base_model.model.model.layers.0.self_attn.qkv_proj",
        "base_model.model.model.layers.0.mlp",
        "base_model.model.model.language_model.per_layer_model_projection",
        "base_model.model.model.layers.01.self_attn.q_proj",
        "base_model.model.model.layers.0.router.proj",
        "transformer.h.0.attn.c_attn",
        "embed_tokens_per_layer",
        "",
    ],
)
def test_an_unknown_module_is_refused_by_name(module: str) -> None:
    with pytest.raises(AdapterError) as caught:
        tensor_of_module(module)
    assert str(caught.value).startswith(f"wgemma cannot adapt {module}; it adapts q_proj, ")


@pytest.mark.parametrize("tensor", ["blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.attn_q", "output"])
def test_an_unknown_tensor_is_refused_by_name(tensor: str) -> None:
    with pytest.raises(AdapterError, match=f"wgemma cannot adapt {tensor}"):
        check_tensor(tensor)


def test_experts_that_lie_apart_have_no_module() -> None:
    check_tensor("blk.0.ffn_up_exps.weight")
    assert is_experts("blk.0.ffn_up_exps.weight") and not is_experts("blk.0.ffn_up.weight")
    with pytest.raises(AdapterError, match="no counterpart in transformers"):
        module_of_tensor("blk.0.ffn_up_exps.weight")


def test_tensors_are_ordered_by_layer() -> None:
    names = [
        "output.weight",
        "blk.10.attn_q.weight",
        "blk.2.ffn_down.weight",
        "blk.2.attn_q.weight",
        "token_embd.weight",
    ]
    assert sorted(names, key=order) == names[::-1]
