"""PEFT folders are read by PEFT's own rules and load in PEFT; unsupported settings are refused by name."""

import io
import json
import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter_maker import adapter, difference, numbers, pair
from wgemma import AdapterError
from wgemma.files.adapter_names import module_of_tensor
from wgemma.files.adapters import AdapterFile, read_adapter, read_peft, write_peft
from wgemma.files.safetensors import Safetensors, write_safetensors
from wgemma.sync import run

Weights = dict[str, tuple[tuple[int, ...], "array[float]"]]

LAYERS = "base_model.model.model.language_model.layers."
Q = f"{LAYERS}0.self_attn.q_proj"
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}


def halves(module: str, rank: int = 2, suffix: str = ".weight", columns: int = 8, rows: int = 6) -> Weights:
    return {
        f"{module}.lora_A{suffix}": ((rank, columns), numbers(1, rank * columns)),
        f"{module}.lora_B{suffix}": ((rows, rank), numbers(2, rows * rank)),
    }


def read(weights: Weights | None = None, **settings: Any) -> AdapterFile:
    out = io.BytesIO()
    write_safetensors(out, halves(Q) if weights is None else weights)
    return run(read_peft(json.dumps(CONFIG | settings).encode(), out.getvalue(), "mine"))


def refused(*arguments: Any, **settings: Any) -> str:
    with pytest.raises(AdapterError) as caught:
        read(*arguments, **settings)
    return str(caught.value)


# -- how it is read


def test_a_pair_has_its_shape_and_scale() -> None:
    found = read(base_model_name_or_path="google/gemma-4-E2B")
    assert found.base == "google/gemma-4-E2B"
    q = found.pairs["blk.0.attn_q.weight"]
    assert (q.rank, q.columns, q.rows, q.scale) == (2, 8, 6, 4)
    assert (q.a, q.b) == (numbers(1, 16), numbers(2, 12))


def test_the_adapters_own_name_may_stand_in_the_keys() -> None:
    assert read(halves(Q, suffix=".default.weight")).pairs == read().pairs


def test_rslora_divides_by_the_root() -> None:
    assert read(use_rslora=True, lora_alpha=3).pairs["blk.0.attn_q.weight"].scale == 3 / 2**0.5


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("q_proj", True),
        ("self_attn.q_proj", True),
        ("layers.0.self_attn.q_proj", True),
        (r".*\.layers\.[0-9]+\.self_attn\.(q|k)_proj", True),
        ("model.language_model.layers.0.self_attn.q_proj", True),
        ("_proj", False),  # only whole name parts match
        ("layers.1.self_attn.q_proj", False),
        ("k_proj", False),
        ("self_attn", False),
    ],
)
def test_patterns_match_whole_parts_at_the_end_of_a_path(pattern: str, matches: bool) -> None:
    found = read(halves(Q, rank=3 if matches else 2), rank_pattern={pattern: 3}, alpha_pattern={pattern: 12})
    assert found.pairs["blk.0.attn_q.weight"].scale == 4
    assert found.pairs["blk.0.attn_q.weight"].rank == (3 if matches else 2)


def test_the_first_pattern_that_matches_counts() -> None:
    assert read(alpha_pattern={"k_proj": 1, "q_proj": 2, "self_attn.q_proj": 3}).pairs["blk.0.attn_q.weight"].scale == 1


def test_the_embedding_is_turned() -> None:
    table = "base_model.model.model.language_model.embed_tokens"
    tokens, width = numbers(1, 2 * 10), numbers(2, 6 * 2)
    weights: Weights = {f"{table}.lora_embedding_A": ((2, 10), tokens), f"{table}.lora_embedding_B": ((6, 2), width)}
    found = read(weights).pairs["token_embd.weight"]
    expected = 4 * (np.reshape(width, (6, 2)) @ np.reshape(tokens, (2, 10))).T  # [tokens, width]
    np.testing.assert_allclose(difference(found), expected, atol=1e-8)
    # PEFT also saves the model's own table, which is not needed.
    copy: Weights = {f"{table}.base_layer.weight": ((10, 6), numbers(3, 60))}
    assert read(weights | copy).pairs["token_embd.weight"] == found
    grown: Weights = {f"{table}.base_layer.weight": ((11, 6), numbers(3, 66))}
    assert "replaces a matrix of the model" in refused(weights | grown)
    assert "replaces a matrix of the model" in refused(halves(Q) | copy)
    assert "ensure_weight_tying" in refused(weights, ensure_weight_tying=True)


def test_of_both_matrices_of_the_experts_the_inner_is_gate_and_up() -> None:
    experts = f"{LAYERS}0.experts"
    weights = halves(experts, 6, columns=4, rows=8) | halves(f"{experts}.base_layer", 6, columns=8, rows=8)
    found = read(weights, target_parameters=["experts.down_proj", "experts.gate_up_proj"])
    assert {name: pair.shape for name, pair in found.pairs.items()} == {
        "blk.0.ffn_gate_up_exps.weight": (8, 8, 3), "blk.0.ffn_down_exps.weight": (4, 8, 3)
    }  # fmt: skip
    down = found.pairs["blk.0.ffn_down_exps.weight"]
    a, b = np.reshape(numbers(1, 24), (3, 2, 4)), np.reshape(numbers(2, 48), (8, 2, 3))
    np.testing.assert_allclose(difference(down), 4 * np.einsum("ore,eri->eoi", b, a).reshape(24, 4), atol=1e-8)


@pytest.mark.parametrize("parameters", [None, [], ["experts.gate_up_proj", "experts.down_proj"], ["router.proj"]])
def test_experts_without_a_word_which_are_refused(parameters: list[str] | None) -> None:
    message = refused(halves(f"{LAYERS}0.experts", 6), target_parameters=parameters)
    assert "experts adapts experts, but target_parameters does not say which of their matrices." in message


# -- what is refused


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("use_dora", True, "this adapter uses DoRA (use_dora), which wgemma does not support."),
        ("use_qalora", True, "this adapter uses QALoRA (use_qalora), which wgemma does not support."),
        ("use_novelty", True, "this adapter uses a variant (use_novelty), which wgemma does not support."),
        ("fan_in_fan_out", True, "(fan_in_fan_out), which wgemma does not support."),
        ("lora_bias", True, "its own biases (lora_bias)"),
        ("bias", "lora_only", "this adapter changes biases (bias = 'lora_only'), which wgemma does not support."),
        ("modules_to_save", ["lm_head"], "its own full modules (modules_to_save)"),
        ("trainable_token_indices", [5], "its own tokens (trainable_token_indices)"),
        ("alora_invocation_tokens", [1, 2], "activated LoRA (aLoRA) (alora_invocation_tokens)"),
        ("layer_replication", [[0, 2]], "repeated layers (layer_replication)"),
        ("init_lora_weights", "pissa_niter_4", "initialised with 'pissa_niter_4' (init_lora_weights)"),
        ("peft_type", "LOHA", "peft_type is 'LOHA'; wgemma applies LORA only."),
        ("peft_type", None, "peft_type is None; wgemma applies LORA only."),
        ("r", 0, "r is 0; a rank is a whole number from 1 to 65536."),
        ("r", 2.0, "r is 2.0; a rank is a whole number"),
        ("r", True, "r is True; a rank is a whole number"),
        ("lora_alpha", "8", "lora_alpha is '8'; it must be a number up to 1e+09."),
        ("lora_alpha", 10**30, "lora_alpha is 1000000000000000000000000000000; it must be a number up to 1e+09."),
        ("lora_alpha", float("inf"), "adapter_config.json is not JSON: a number is not finite."),
        ("lora_alpha", 10**400, "it must be a number up to 1e+09."),
        ("lora_alpha", float("nan"), "adapter_config.json is not JSON: a number is not finite."),
        ("r", 10**400, "a rank is a whole number"),
        ("bias", [[[[[]]]]], "changes biases"),
        ("r", 4, "q_proj.lora_A.weight has rank 2, but adapter_config.json says 4."),
        ("rank_pattern", {"q_proj": "2"}, "rank_pattern is '2'; a rank is a whole number"),
        ("alpha_pattern", [1], "rank_pattern or alpha_pattern is not a JSON object."),
        ("rank_pattern", {"q_(proj": 2}, "the pattern 'q_(proj' cannot be used: it does not close a group."),
        ("target_parameters", [1], "target_parameters is not a list of names."),
    ],
)
def test_a_setting_that_is_not_supported_is_refused_by_name(setting: str, value: Any, reason: str) -> None:
    assert reason in refused(**{setting: value})


@pytest.mark.parametrize("pattern", [".?" * 60, "(a+)+b", ".*.*.*.*.*x", "(a|aa)+$"])
def test_no_pattern_keeps_the_matcher_busy(pattern: str) -> None:
    start = time.perf_counter()
    read(rank_pattern={pattern: 2})
    assert time.perf_counter() - start < 1


def test_more_patterns_than_modules_are_refused() -> None:
    patterns = {f"q{i}": 2 for i in range(5000)}
    assert refused(rank_pattern=patterns) == "rank_pattern or alpha_pattern has more than 4096 patterns."


@pytest.mark.parametrize("setting", ["layers_to_transform", "lora_dropout", "loftq_config", "auto_mapping", "revision"])
def test_settings_of_training_do_not_matter(setting: str) -> None:
    assert read(**{setting: [0]}).pairs == read().pairs


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({}, "this file adapts no matrix."),
        ({f"{Q}.lora_A.weight": ((2, 8), numbers(1, 16))}, f"{Q} has only lora_A; its partner is missing."),
        (halves(Q) | halves(Q, suffix=".default.weight"), "appears twice, with and without an adapter's name."),
        (halves(Q) | halves("model.layers.0.self_attn.q_proj"), "blk.0.attn_q.weight is adapted twice, the"),
        (halves(f"{LAYERS}0.self_attn.x_proj"), "x_proj; it adapts q_proj, k_proj"),
        (halves("base_model.model.model.vision_tower.layers.0.mlp.up_proj.linear"), "is part of the vision tower;"),
        (halves(Q) | {f"{Q}.lora_magnitude_vector": ((6,), numbers(1, 6))}, "belongs to DoRA, which wgemma does"),
        (halves(Q) | {f"{Q}.lora_B.bias": ((6,), numbers(1, 6))}, f"{Q}.lora_B.bias is not part of a LoRA adapter."),
        (halves(Q) | {f"{Q}.weight": ((6, 8), numbers(1, 48))}, f"{Q}.weight is not part of a LoRA adapter."),
        (halves(Q) | {"model.norm.weight": ((6,), numbers(1, 6))}, "model.norm; it adapts"),
        (halves("base_model.model.model.embed_tokens"), "is the wrong name for an adapter of token_embd.weight."),
        (
            {f"{Q}.lora_A.weight": ((2, 8), numbers(1, 16)), f"{Q}.lora_B.weight": ((6, 3), numbers(1, 18))},
            "do not fit together: [2, 8] and [6, 3].",
        ),
        (
            {f"{Q}.lora_A.weight": ((2, 2, 4), numbers(1, 16)), f"{Q}.lora_B.weight": ((6, 2), numbers(1, 12))},
            "do not fit together: [2, 2, 4] and [6, 2].",
        ),
    ],
)  # fmt: skip
def test_tensors_that_are_not_understood_are_refused_by_name(weights: Weights, reason: str) -> None:
    assert reason in refused(weights)


@pytest.mark.parametrize("config", [b"", b"[1]", b"\xff", b"[" * 100_000])
def test_a_configuration_that_is_none_is_refused(config: bytes) -> None:
    with pytest.raises(AdapterError, match=r"adapter_config\.json is not"):
        run(read_peft(config, b"", "mine"))


# -- how it is written

MANY = adapter(
    token_embd=pair(8, 10, rank=3, scale=0.25),
    blk__0__attn_q=pair(8, 6, rank=2),
    blk__0__ffn_gate_up_exps=pair(8, 8, experts=3),
    blk__0__ffn_down_exps=pair(4, 8, experts=3),
    blk__1__attn_q=pair(8, 6, rank=3, scale=4 / 3),
    blk__1__inp_gate=pair(8, 6, rank=2, scale=2**0.5),
    blk__1__ffn_down_exps=pair(4, 8, experts=3),
    blk__2__ffn_gate_up_exps=pair(8, 8, experts=3),
    output=pair(8, 10),
)


def test_ranks_scales_tables_and_experts_all_come_back(tmp_path: Path) -> None:
    write_peft(MANY, tmp_path, base="a model", settings={"lora_dropout": 0.05})
    again = read_adapter(tmp_path)
    assert again.base == "a model"
    assert list(again.pairs) == list(MANY.pairs)
    for name, made in MANY.pairs.items():
        found = again.pairs[name]
        assert (found.a, found.b, found.rank, found.shape) == (made.a, made.b, made.rank, made.shape)
        assert found.scale == pytest.approx(made.scale, rel=1e-14)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (2, 4, 0.05)


def test_an_adapter_of_one_rank_needs_no_patterns(tmp_path: Path) -> None:
    write_peft(adapter(blk__0__attn_q=pair(8, 6), blk__2__attn_q=pair(8, 6), blk__2__ffn_up=pair(8, 6)), tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["rank_pattern"] == config["alpha_pattern"] == {}
    assert config["target_modules"] == (
        r"model\.language_model\.layers\.(0|2)\.(self_attn\.q_proj)|model\.language_model\.layers\.(2)\.(mlp\.up_proj)"
    )
    with Safetensors.open(tmp_path / "adapter_model.safetensors") as opened:
        assert sorted(opened.tensors) == sorted(
            f"{LAYERS}{module}.lora_{half}.weight"
            for module in ("0.self_attn.q_proj", "2.self_attn.q_proj", "2.mlp.up_proj")
            for half in "AB"
        )


# -- and PEFT itself


def changes_in(model: Any) -> dict[str, Any]:
    """What PEFT would add to each matrix, by its path."""
    from peft.tuners.lora.layer import LoraLayer

    found = {}
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            path = name.removeprefix("base_model.model.").replace(".base_layer", "")
            parameter = getattr(module, "parameter_name", None)
            found[f"{path}.{parameter}" if parameter else path] = module.get_delta_weight("default").detach().numpy()
    return found


@pytest.fixture
def tiny(shared: Path) -> Any:
    """Makes transformers' tiny models with random weights."""
    pytest.importorskip("peft")
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")

    def make(base: str) -> Any:
        torch.manual_seed(0)
        config = json.loads((shared / base / "hf_config.json").read_text())
        return transformers.Gemma4ForConditionalGeneration(transformers.Gemma4Config(**config))

    return make


def assert_same(model: Any, read: AdapterFile) -> None:
    found = changes_in(model)
    assert sorted(found) == sorted(map(module_of_tensor, read.pairs))
    for name, made in read.pairs.items():
        expected = difference(made)
        there = found[module_of_tensor(name)].reshape(expected.shape)
        np.testing.assert_allclose(there, expected, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("name", "base"), [("e2b-lora9", "tiny-e2b"), ("e2b-rslora", "tiny-e2b"), ("31b-pattern", "tiny-31b")]
)
def test_peft_loads_what_is_written(tiny: Any, shared: Path, tmp_path: Path, name: str, base: str) -> None:
    from peft import PeftModel

    original = read_adapter(shared / "lora" / "adapters" / name)
    write_peft(original, tmp_path)
    assert_same(PeftModel.from_pretrained(tiny(base), tmp_path), original)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("base", "settings"),
    [
        ("tiny-e2b", {"target_modules": r"model\.language_model\.(layers\.\d\.mlp\.up_proj|embed_tokens)|lm_head"}),
        ("tiny-26b-a4b", {"target_parameters": ["experts.gate_up_proj", "experts.down_proj"], "use_rslora": True}),
        ("tiny-26b-a4b", {"target_parameters": ["experts.down_proj"], "rank_pattern": {"down_proj": 3}}),
    ],
)
def test_tables_and_experts_are_read_and_written_as_peft_has_them(
    tiny: Any, tmp_path: Path, base: str, settings: dict[str, Any]
) -> None:
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model

    model = get_peft_model(tiny(base), LoraConfig(r=2, lora_alpha=6, **({"target_modules": []} | settings)))
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, 0, 0.1)
    model.save_pretrained(tmp_path / "theirs")
    read = read_adapter(tmp_path / "theirs")
    assert_same(model, read)
    write_peft(read, tmp_path / "ours")
    assert_same(PeftModel.from_pretrained(tiny(base), tmp_path / "ours"), read)
