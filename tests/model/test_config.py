"""The config is read right from every kind of file, and a file that does not fit together is refused by a sentence."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wgemma.errors import ModelError
from wgemma.files.gguf import Gguf, Tensor
from wgemma.model.config import Config, find_tensors, text_tensors
from wgemma.model.planes import PLANES

MODELS = ("tiny-e2b-F16", "tiny-e2b-ollama", "tiny-heads-Q4_K_M", "tiny-12b-F16", "tiny-26b-a4b-Q4_K_M", "tiny-31b-F16")
PATTERN = "gemma4.attention.sliding_window_pattern"
Opener = Callable[[str], Gguf]


@pytest.fixture(scope="module")
def header(shared: Path) -> Opener:
    """A file's metadata and tensor table, free to be altered: nothing here reads a weight."""
    files = {path.stem: Gguf.open(path) for path in (shared / "models").glob("*.gguf")}

    def copy(name: str) -> Gguf:
        file = files[name]
        return Gguf(file.source, file.version, dict(file.metadata), dict(file.tensors))

    return copy


def read(gguf: Gguf, **keys: Any) -> Config:
    """The config with some `gemma4.*` keys changed (`__` for a dot) or, where None, taken out."""
    for key, value in keys.items():
        name = "gemma4." + key.replace("__", ".")
        if value is None:
            gguf.metadata.pop(name, None)
        else:
            gguf.metadata[name] = value
    return Config.from_gguf(gguf)


def rename(gguf: Gguf, old: str, new: str) -> None:
    for name in [name for name in gguf.tensors if name.endswith(old)]:
        spelled = name.removesuffix(old) + new
        gguf.tensors[spelled] = replace(gguf.tensors.pop(name), name=spelled)


def refused(gguf: Gguf, **keys: Any) -> str:
    with pytest.raises(ModelError) as caught:
        read(gguf, **keys)
    message = str(caught.value)
    assert message.startswith(f"{gguf.source.name}: ") and message.endswith(".")
    return message.removeprefix(f"{gguf.source.name}: ")


def test_an_e2b_shares_kv_and_widens_its_last_layers(header: Opener) -> None:
    config = read(header("tiny-e2b-F16"))
    assert (config.width, config.vocab_size, config.context_length, config.ple_dim) == (256, 1024, 4096, 256)
    assert (config.window, config.softcap, config.tied, config.image_attention) == (32, 30.0, True, "causal")
    assert config.eps == pytest.approx(1e-6)
    assert [layer.index for layer in config.layers] == [0, 1, 2, 3, 4, 5]
    assert [layer.sliding for layer in config.layers] == [True, True, False] * 2
    assert [layer.window for layer in config.layers] == [32, 32, None] * 2
    assert [layer.donor for layer in config.layers] == [None, None, None, 1, 1, 2]
    assert [layer.has_v for layer in config.layers] == [True, True, True, False, False, False]
    assert [layer.ffn_width for layer in config.layers] == [256] * 3 + [512] * 3
    assert [layer.head_dim for layer in config.layers] == [64, 64, 128] * 2
    assert [layer.rope_base for layer in config.layers] == [1e4, 1e4, 1e6] * 2
    assert [layer.rotary_pairs for layer in config.layers] == [32, 32, 64] * 2
    assert [layer.rope_factors for layer in config.layers] == [False, False, True] * 2
    assert {(layer.heads, layer.kv_heads) for layer in config.layers} == {(4, 1)}


def test_an_ollama_blob_reads_like_the_file_it_was_made_from(header: Opener) -> None:
    assert read(header("tiny-e2b-ollama")) == read(header("tiny-e2b-F16"))


def test_a_31b_makes_v_of_k_in_full_layers(header: Opener) -> None:
    config = read(header("tiny-31b-F16"))
    assert [layer.has_v for layer in config.layers] == [True, True, False] * 2
    assert [layer.kv_heads for layer in config.layers] == [2, 2, 1] * 2
    assert {layer.donor for layer in config.layers} == {None}
    assert (config.ple_dim, config.expert_count, config.image_attention) == (0, 0, "both")
    assert config.image_windowed


def test_a_26b_has_experts(header: Opener) -> None:
    config = read(header("tiny-26b-a4b-Q4_K_M"))
    assert (config.expert_count, config.experts_used, config.expert_width) == (12, 4, 96)
    assert all(layer.fused_experts and layer.ffn_width == 288 for layer in config.layers)


def test_a_12b_suppresses_tokens_and_lets_images_reach_beyond_the_window(header: Opener) -> None:
    config = read(header("tiny-12b-F16"))
    assert config.suppress_tokens == (22, 21)
    assert not config.image_windowed


@pytest.mark.parametrize("model", MODELS)
def test_every_text_tensor_of_the_file_is_wanted_but_the_unused_ones(header: Opener, model: str) -> None:
    gguf = header(model)
    config = read(gguf)
    found = find_tensors(config, gguf.tensors)
    unused = {name for name in gguf.tensors if not name.startswith(("v.", "a.", "mm."))} - found.keys()
    shared = [layer.index for layer in config.layers if layer.donor is not None] if model == "tiny-e2b-ollama" else []
    assert unused == {f"blk.{i}.attn_{part}.weight" for i in shared for part in ("k", "v", "k_norm")}
    assert set(text_tensors(config)) - found.keys() == {"output.weight"}


def test_scalars_and_arrays_say_the_same(header: Opener) -> None:
    expected = read(header("tiny-31b-F16"))
    six = {
        "attention__head_count": [4] * 6,
        "feed_forward_length": [512] * 6,
        "embedding_length": [256] * 6,
        "attention__key_length": [64, 64, 128] * 2,
        "attention__key_length_swa": None,
        "rope__freq_base": [1e4, 1e4, 1e6] * 2,
        "final_logit_softcapping": [30] * 6,
    }
    assert read(header("tiny-31b-F16"), **six) == expected


@pytest.mark.parametrize("pattern", [[1, 1, 0, 1, 1, 0], [True, True, False, True, True, False], 3])
def test_the_pattern_may_be_booleans_numbers_or_a_period(header: Opener, pattern: Any) -> None:
    assert read(header("tiny-e2b-F16"), attention__sliding_window_pattern=pattern) == read(header("tiny-e2b-F16"))


def test_older_keys_are_understood(header: Opener) -> None:
    older = read(
        header("tiny-31b-F16"),
        attention__head_count_kv=2,
        attention__global_head_count_kv=1,
        rope__freq_base_swa=None,
        rope__local__freq_base=1e4,
        attention__shared_kv_layers=None,
        attention__value_length=None,
        attention__value_length_swa=None,
        rope__dimension_count=None,
        rope__dimension_count_swa=None,
    )
    assert older == read(header("tiny-31b-F16"))


def test_without_a_cap_logits_are_not_capped(header: Opener) -> None:
    assert read(header("tiny-31b-F16"), final_logit_softcapping=None).softcap is None
    assert read(header("tiny-31b-F16"), final_logit_softcapping=0.0).softcap is None


@pytest.mark.parametrize(("factor", "pairs"), [(None, 16), (0.25, 16), (0.5, 32), (1.0, 64)])
def test_without_rope_freqs_a_part_of_the_pairs_rotates(header: Opener, factor: float | None, pairs: int) -> None:
    gguf = header("tiny-31b-F16")
    del gguf.tensors["rope_freqs.weight"]
    config = read(gguf, rope__partial_rotary_factor=factor)
    assert [layer.rotary_pairs for layer in config.layers] == [32, 32, pairs] * 2
    assert not any(layer.rope_factors for layer in config.layers)


@pytest.mark.parametrize(
    ("usual", "other"),
    [
        ("post_attention_norm.weight", "attn_post_norm.weight"),
        ("ffn_norm.weight", "ffn_pre_norm.weight"),
        ("post_ffw_norm.weight", "ffn_post_norm.weight"),
        ("layer_output_scale.weight", "layer_scalar.weight"),
        ("layer_output_scale.weight", "layer_scalar"),
        ("ffn_down_exps.scale", "ffn_gate_inp.per_expert_scale"),
    ],
)
def test_other_spellings_are_found_under_the_usual_name(header: Opener, usual: str, other: str) -> None:
    gguf = header("tiny-26b-a4b-Q4_K_M")
    rename(gguf, usual, other)
    assert find_tensors(read(gguf), gguf.tensors)[f"blk.3.{usual}"].name == f"blk.3.{other}"


def test_experts_may_come_as_two_tensors(header: Opener) -> None:
    gguf = header("tiny-26b-a4b-Q4_K_M")
    for layer in range(6):
        fused = gguf.tensors.pop(f"blk.{layer}.ffn_gate_up_exps.weight")
        for half in (f"blk.{layer}.ffn_gate_exps.weight", f"blk.{layer}.ffn_up_exps.weight"):
            gguf.tensors[half] = replace(fused, name=half, shape=(256, 96, 12))
    config = read(gguf)
    assert not any(layer.fused_experts for layer in config.layers)
    assert "blk.5.ffn_up_exps.weight" in find_tensors(config, gguf.tensors)
    del gguf.tensors["blk.5.ffn_up_exps.weight"]
    assert refused(gguf) == "the tensor blk.5.ffn_up_exps.weight of shape [256, 96, 12] is missing."


def test_optional_tensors_may_be_absent_or_present(header: Opener) -> None:
    gguf = header("tiny-e2b-F16")
    for layer in range(6):
        del gguf.tensors[f"blk.{layer}.layer_output_scale.weight"]
    gguf.tensors["output.weight"] = replace(gguf.tensors["token_embd.weight"], name="output.weight")
    assert not read(gguf).tied


def test_k_and_v_of_layers_with_a_donor_are_not_looked_at(header: Opener) -> None:
    gguf = header("tiny-e2b-F16")
    gguf.tensors["blk.4.attn_k.weight"] = Tensor("blk.4.attn_k.weight", (7,), "IQ4_NL", 0, 1)
    assert read(gguf) == read(header("tiny-e2b-F16"))


REQUIRED = (
    "block_count", "context_length", "embedding_length", "embedding_length_per_layer_input", "feed_forward_length",
    "attention__head_count", "attention__head_count_kv", "attention__key_length", "rope__freq_base",
    "rope__freq_base_swa", "attention__layer_norm_rms_epsilon", "attention__sliding_window",
    "attention__sliding_window_pattern",
)  # fmt: skip


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(header: Opener, key: str) -> None:
    name = "gemma4." + key.replace("__", ".")
    assert refused(header("tiny-e2b-F16"), **{key: None}) == f"the key {name} is missing."


@pytest.mark.parametrize("key", REQUIRED)
@pytest.mark.parametrize("value", ["six", [], -1, True, [None] * 6, [[1]] * 6, 2**70])
def test_a_value_that_cannot_be_is_named(header: Opener, key: str, value: Any) -> None:
    assert "gemma4." + key.replace("__", ".") in refused(header("tiny-e2b-F16"), **{key: value})


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("block_count", 0, "gemma4.block_count is 0; it must be 1 to 1024."),
        ("block_count", 10**9, "it must be 1 to 1024."),
        ("block_count", 6.0, "must be a whole number, but it is 6.0."),
        ("block_count", 7, "has 6 entries for 7 layers."),
        ("embedding_length", 128, "token_embd.weight has shape [256, 1024], but the metadata says [128, 1024]."),
        ("embedding_length", [256] * 5 + [128], "gemma4.embedding_length must be the same in all layers"),
        ("feed_forward_length", [256] * 5, "gemma4.feed_forward_length has 5 entries for 6 layers."),
        ("feed_forward_length", [256, 0, 1, 1, 1, 1], "gemma4.feed_forward_length[1] is 0"),
        ("attention__head_count", 6, "blk.0.attn_q.weight has shape [256, 256], but the metadata says [256, 384]."),
        ("attention__head_count_kv", 3, "layer 0 has 4 query heads, which 3 KV heads cannot share evenly."),
        ("attention__key_length", 127, "gemma4.attention.value_length is"),
        ("attention__value_length", 64, "gemma4.attention.value_length is"),
        ("rope__dimension_count", 32, "gemma4.rope.dimension_count is"),
        ("attention__sliding_window", 0, "gemma4.attention.sliding_window is 0"),
        ("attention__sliding_window_pattern", [2, 1, 0, 1, 1, 0], "must contain only true and false"),
        ("attention__sliding_window_pattern", [1.0, 1, 0, 1, 1, 0], "must contain only true and false"),
        ("attention__sliding_window_pattern", [True] * 5, "has 5 entries for 6 layers."),
        ("attention__sliding_window_pattern", 0, "is 0; it must be 1 to 1024."),
        ("attention__shared_kv_layers", 5, "layer 2 shares K and V, but none of the first 1 layers is full."),
        ("attention__shared_kv_layers", 6, "layer 0 shares K and V, but none of the first 0 layers is sliding."),
        ("attention__shared_kv_layers", 7, "gemma4.attention.shared_kv_layers is 7; it must be 0 to 6."),
        ("attention__shared_kv_layers", 2, "the tensor blk.3.attn_k.weight of shape [256, 64] is missing."),
        ("attention__layer_norm_rms_epsilon", float("nan"), "is nan; it must be 1e-30 to 1."),
        ("attention__layer_norm_rms_epsilon", 0.0, "is 0.0; it must be 1e-30 to 1."),
        ("rope__freq_base", float("inf"), "gemma4.rope.freq_base is inf"),
        ("rope__freq_base_swa", -1e4, "gemma4.rope.freq_base_swa is -10000.0"),
        ("rope__partial_rotary_factor", 1.5, "gemma4.rope.partial_rotary_factor is 1.5"),
        ("final_logit_softcapping", float("nan"), "gemma4.final_logit_softcapping is nan"),
        ("final_logit_softcapping", -30.0, "gemma4.final_logit_softcapping is -30.0"),
        ("embedding_length_per_layer_input", 0, "per_layer_token_embd.weight exists, but"),
        ("embedding_length_per_layer_input", 128, "per_layer_token_embd.weight has shape [1536, 1024]"),
        ("expert_count", 8, "the key gemma4.expert_used_count is missing."),
    ],
)
def test_a_number_that_does_not_fit_is_explained(header: Opener, key: str, value: Any, reason: str) -> None:
    assert reason in refused(header("tiny-e2b-F16"), **{key: value})


def test_odd_heads_are_refused(header: Opener) -> None:
    odd = {"attention__key_length": 127, "attention__value_length": 127, "rope__dimension_count": 127}
    assert "a head size is odd" in refused(header("tiny-e2b-F16"), **odd)


def test_heads_of_one_kind_have_one_size(header: Opener) -> None:
    dims = {"attention__key_length_swa": [64, 64, 128, 64, 32, 128], "attention__value_length_swa": None}
    message = refused(header("tiny-e2b-F16"), **dims, rope__dimension_count_swa=None)
    assert "layers of one kind have heads of different sizes" in message


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("expert_count", 0, "blk.0.ffn_gate_inp.weight exists, but gemma4.expert_count says there are no experts."),
        ("expert_count", None, "blk.0.ffn_gate_inp.weight exists"),
        ("expert_count", 16, "blk.0.ffn_gate_inp.weight has shape [256, 12], but the metadata says [256, 16]."),
        ("expert_used_count", 13, "gemma4.expert_used_count is 13; it must be 1 to 12."),
        ("expert_used_count", 0, "gemma4.expert_used_count is 0; it must be 1 to 12."),
        ("expert_feed_forward_length", None, "the key gemma4.expert_feed_forward_length is missing."),
        ("expert_feed_forward_length", 64, "blk.0.ffn_down_exps.weight has shape [96, 256, 12]"),
    ],
)
def test_experts_that_do_not_fit_are_explained(header: Opener, key: str, value: Any, reason: str) -> None:
    assert reason in refused(header("tiny-26b-a4b-Q4_K_M"), **{key: value})


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("mmproj-tiny-e2b-F16", "the architecture is 'clip'; wgemma runs gemma4 only. This is a projector"),
        (
            "tiny-e2b-assistant-F16",
            "the architecture is 'gemma4-assistant'; wgemma runs gemma4 only. This is a drafter",
        ),
    ],
)
def test_other_parts_of_a_model_are_named(header: Opener, file: str, reason: str) -> None:
    assert refused(header(file)).startswith(reason)


@pytest.mark.parametrize("architecture", ["llama", 7, ["gemma4"], "x" * 10_000])
def test_another_architecture_is_named(header: Opener, architecture: Any) -> None:
    gguf = header("tiny-e2b-F16")
    gguf.metadata["general.architecture"] = architecture
    message = refused(gguf)
    assert message.startswith(f"the architecture is {architecture!r}"[:60]) and len(message) < 200
    del gguf.metadata["general.architecture"]
    assert "general.architecture is missing" in refused(gguf)


@pytest.mark.parametrize("model", MODELS)
def test_every_tensor_that_is_missing_or_misshapen_is_named(header: Opener, model: str) -> None:
    config = read(header(model))
    full_v = [f"blk.{layer.index}.attn_v.weight" for layer in config.layers if not layer.sliding]
    full_v = [name for name in full_v if name in header(model).tensors]
    for name, want in text_tensors(config).items():
        gguf = header(model)
        tensor = gguf.tensors.pop(name, None)
        if tensor is None or want.optional or full_v == [name]:  # without any V in full layers, it is made of K
            assert read(gguf).width == config.width
        else:
            assert name in refused(gguf)
        if tensor is not None:
            gguf.tensors[name] = replace(tensor, shape=(*want.shape, 2))
            assert name in refused(gguf)


@pytest.mark.parametrize(
    ("name", "kind", "takes"),
    [
        ("blk.0.attn_q.weight", "NVFP4", ", ".join(PLANES)),
        ("token_embd.weight", "I8", ", ".join(PLANES)),
        ("blk.2.attn_norm.weight", "Q8_0", "F32, F16, BF16"),
        ("rope_freqs.weight", "I32", "F32, F16, BF16"),
    ],
)
def test_a_type_that_is_not_computed_with_is_named(header: Opener, name: str, kind: str, takes: str) -> None:
    gguf = header("tiny-e2b-F16")
    gguf.tensors[name] = replace(gguf.tensors[name], type=kind)
    message = refused(gguf)
    assert f"{name} has type {kind}" in message and message.endswith(f"it takes {takes}.")


def test_a_v_that_only_some_full_layers_lack_is_missing(header: Opener) -> None:
    gguf = header("tiny-31b-F16")
    gguf.tensors["blk.2.attn_v.weight"] = replace(gguf.tensors["blk.2.attn_k.weight"], name="blk.2.attn_v.weight")
    assert refused(gguf) == "the tensor blk.5.attn_v.weight of shape [256, 128] is missing."


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("tokens", ["a"] * 1023, "token_embd.weight holds 1024 tokens, but tokenizer.ggml.tokens lists 1023."),
        ("tokens", "a", "tokenizer.ggml.tokens must be an array, but it is 'a'."),
        ("suppress_tokens", 21, "tokenizer.ggml.suppress_tokens must be an array, but it is 21."),
        ("suppress_tokens", [21, 1024], "tokenizer.ggml.suppress_tokens[1] is 1024; it must be 0 to 1023."),
        ("suppress_tokens", [-1], "tokenizer.ggml.suppress_tokens[0] is -1; it must be 0 to 1023."),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_explained(header: Opener, key: str, value: Any, reason: str) -> None:
    gguf = header("tiny-12b-F16")
    gguf.metadata[f"tokenizer.ggml.{key}"] = value
    assert refused(gguf) == reason


# Whatever a GGUF can hold, near the values that belong there and far from them.
NUMBERS = st.one_of(
    st.integers(-2, 8), st.integers(-(2**63), 2**64 - 1), st.floats(), st.booleans(), st.sampled_from([64, 128, 256])
)
VALUES = st.one_of(
    NUMBERS, st.text(max_size=3), st.lists(NUMBERS, max_size=8), st.lists(st.text(max_size=2), max_size=3)
)
SHAPES = st.lists(st.one_of(st.integers(1, 4), st.sampled_from([64, 256, 2**40])), min_size=1, max_size=4).map(tuple)
TYPES = st.sampled_from(["F32", "F16", "Q4_K", "Q8_0", "IQ4_NL", "NVFP4", "I32"])


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nothing_but_a_model_error_comes_of_a_hostile_file(header: Opener, data: st.DataObject) -> None:
    gguf = header(data.draw(st.sampled_from(MODELS)))
    keys = sorted(key for key in gguf.metadata if key.startswith("gemma4.") or key == "general.architecture")
    for key in data.draw(st.lists(st.sampled_from(keys), max_size=3)):
        gguf.metadata[key] = data.draw(VALUES)
    for name in data.draw(st.lists(st.sampled_from(sorted(gguf.tensors)), max_size=2)):
        gguf.tensors[name] = replace(gguf.tensors[name], shape=data.draw(SHAPES), type=data.draw(TYPES))
    try:
        assert isinstance(Config.from_gguf(gguf), Config)
    except ModelError as error:
        assert str(error).endswith(".") and len(str(error)) < 600
