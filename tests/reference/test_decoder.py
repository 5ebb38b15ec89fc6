"""The oracle gives the logits transformers gives, for every size of model, from every kind of file."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from wgemma.errors import ModelError
from wgemma.files.gguf import Gguf, Tensor
from wgemma.files.sources import MemorySource
from wgemma.reference import decoder
from wgemma.reference.decoder import Reference

Floats = NDArray[np.float32]

# Goldens per model: files with all sequences, and quantised files with the sequences transformers ran on them.
ALL = ("short", "mid", "long", "repeat", "chat")
FILES = [
    ("tiny-e2b", "F16", ALL),
    ("tiny-e2b", "Q8_0", ("short", "mid")),
    ("tiny-e2b", "Q4_0", ("short", "mid")),
    ("tiny-e2b", "Q4_K_M", ("short", "mid")),
    ("tiny-31b", "F16", ALL),
    ("tiny-31b", "Q4_K_M", ("short", "mid")),
    ("tiny-26b-a4b", "F16", ALL),
    ("tiny-26b-a4b", "Q4_K_M", ("short", "mid")),
    ("tiny-heads", "F16", ("short", "mid", "long", "chat")),
    ("tiny-heads", "Q4_K_M", ("short", "mid", "long")),
    ("tiny-12b", "F16", ("short", "mid", "long")),
    ("tiny-12b", "Q4_K_M", ("short", "mid")),
]
FIRST_SET = [(model, kind) for model, kind, _ in FILES if model != "tiny-12b"]

CLOSE = 5e-5  # several times what float32 costs these models

# Once transformers has generated one of these it takes it for an image, a sound or a video and goes astray.
PLACEHOLDERS = {19, 20, 23}


def relative_error(ours: Floats, golden: Floats) -> float:
    """rms(ours − golden) / rms(golden) of the worst position."""
    assert ours.shape == golden.shape and ours.dtype == np.float32
    return float(np.max(np.linalg.norm(ours - golden, axis=-1) / np.linalg.norm(golden, axis=-1)))


@cache
def reference(path: Path) -> Reference:
    return Reference(Gguf.open(path))


@cache
def golden(folder: Path) -> Any:
    return json.loads((folder / "golden.json").read_text())


def model_of(shared: Path, model: str, kind: str = "F16") -> Reference:
    return reference(shared / "models" / f"{model}-{kind}.gguf")


def model_in_store(shared: Path, name: str) -> Reference:
    expected = json.loads((shared / "ollama-store" / "EXPECTED.json").read_text())
    return reference(shared / "ollama-store" / expected["models"][name]["model"])


def greedy(model: Reference, ids: list[int], count: int) -> list[int]:
    """Continues `ids` by the most likely tokens that are not suppressed, one step at a time."""
    model.rewind()
    tokens: list[int] = []
    rows = model.step(ids)
    for _ in range(count):
        row = rows[-1].copy()
        row[list(model.config.suppress_tokens)] = -np.inf
        tokens.append(int(row.argmax()))
        rows = model.step(tokens[-1:])
    return tokens


def with_media(model: Reference, parts: list[Any], media: dict[str, Floats]) -> tuple[Floats, list[int]]:
    """The logits of the text positions of a prompt of id lists and ["image" | "audio", count], and those positions."""
    ids: list[int] = []
    text: list[int] = []
    spans = []
    embeddings = {}
    for part in parts:
        start = len(ids)
        if isinstance(part[0], str):
            kind, count = part
            assert len(media[kind]) == count
            embeddings[start] = media[kind]
            spans += [(start, start + count)] if kind == "image" else []
            ids += [-1] * count
        else:
            text += range(start, start + len(part))
            ids += part
    return model.logits(ids, embeddings=embeddings, spans=spans)[text], text


def around(medium: str, case: Any) -> list[Any]:
    return [case["ids_before"], [medium, case[f"n_{medium}_tokens"]], case["ids_after"]]


@pytest.mark.parametrize(("model", "kind", "sequences"), FILES)
def test_logits_are_those_of_transformers(shared: Path, model: str, kind: str, sequences: tuple[str, ...]) -> None:
    suffix = "" if kind == "F16" else f".{kind}"
    for name in sequences:
        ours = model_of(shared, model, kind).logits(golden(shared / model)["sequences"][name])
        assert relative_error(ours, np.load(shared / model / f"logits_{name}{suffix}.npy")) < CLOSE, name


@pytest.mark.parametrize("name", ["short", "mid", "long"])
def test_an_ollama_blob_gives_the_same_as_transformers(shared: Path, name: str) -> None:
    folder = shared / "tiny-e2b-ollama"
    ours = reference(shared / "models" / "tiny-e2b-ollama.gguf").logits(golden(folder)["sequences"][name])
    assert relative_error(ours, np.load(folder / f"logits_{name}.npy")) < CLOSE


@pytest.mark.parametrize(
    ("model", "name", "file"),
    [
        ("gemma4:tiny", "short", "logits_short.npy"),
        ("gemma4:tiny", "mid", "logits_mid.npy"),
        ("gemma4:legacy", "mid", "logits_mid.npy"),
        ("hf.co/acme/gemma4-micro-GGUF:Q8_0", "short", "logits_short.split.npy"),
    ],
)
def test_models_of_the_ollama_store_give_their_logits(shared: Path, model: str, name: str, file: str) -> None:
    ours = model_in_store(shared, model).logits(golden(shared / "micro")["sequences"][name])
    assert relative_error(ours, np.load(shared / "micro" / file)) < CLOSE


@pytest.mark.parametrize("model", ["tiny-e2b", "tiny-31b"])
def test_a_long_context_drifts_no_farther_than_float32(shared: Path, model: str) -> None:
    case = json.loads((shared / "long-context" / f"{model}.json").read_text())
    ours = model_of(shared, model).logits(case["ids"])[case["rows"]]
    assert relative_error(ours, np.load(shared / "long-context" / f"{model}.logits.npy")) < CLOSE


@pytest.mark.parametrize("model", ["tiny-e2b", "tiny-31b", "tiny-26b-a4b", "tiny-heads"])
def test_every_hidden_state_is_that_of_transformers(shared: Path, model: str) -> None:
    kept: dict[str, Floats] = {}
    reference = model_of(shared, model)
    reference.logits(golden(shared / model)["sequences"]["short"], keep=kept)
    last = len(reference.config.layers) - 1
    names = ["input", *(f"layer {index}" for index in range(last)), "output"]
    for name, expected in zip(names, np.load(shared / model / "hidden_short.npy"), strict=True):
        assert relative_error(kept[name], expected) < CLOSE, name
    if reference.config.ple_dim:
        assert relative_error(kept["ple"], np.load(shared / model / "ple_short.npy")) < CLOSE
    else:
        assert "ple" not in kept


@pytest.mark.parametrize(("model", "kind"), FIRST_SET)
def test_greedy_continuations_are_those_of_transformers(shared: Path, model: str, kind: str) -> None:
    case = golden(shared / model)
    if kind == "F16":
        expected = {name: case["greedy"][name]["hf"] for name in case["greedy"]}
    else:
        expected = {"short": case["quant"][kind]["short"]["greedy_hf_dequant"]}
    for name, tokens in expected.items():
        sound = next((i + 1 for i, token in enumerate(tokens) if token in PLACEHOLDERS), len(tokens))
        assert greedy(model_of(shared, model, kind), case["sequences"][name], sound) == tokens[:sound], name


@pytest.mark.parametrize(("kind", "key"), [("F16", "greedy_short"), ("Q4_K_M", "greedy_short.Q4_K_M")])
def test_greedy_continuations_of_the_12b_avoid_suppressed_tokens(shared: Path, kind: str, key: str) -> None:
    case = golden(shared / "tiny-12b")
    tokens = case[key]["tokens"]
    assert greedy(model_of(shared, "tiny-12b", kind), case["sequences"]["short"], len(tokens)) == tokens


def test_logits_are_not_suppressed_but_the_config_says_what_is(shared: Path) -> None:
    model, case = model_of(shared, "tiny-12b"), golden(shared / "tiny-12b")["suppress_case"]
    assert model.config.suppress_tokens == (22, 21)
    assert model.logits(case["ids"])[-1].argmax() == case["argmax_without_suppression"]
    assert greedy(model, case["ids"], 1) == [case["argmax"]]


def test_the_greedy_continuation_of_the_ollama_blob(shared: Path) -> None:
    case = golden(shared / "tiny-e2b-ollama")
    tokens = case["greedy_short"]["tokens"]
    model = reference(shared / "models" / "tiny-e2b-ollama.gguf")
    assert greedy(model, case["sequences"]["short"], len(tokens)) == tokens


@pytest.mark.parametrize("model", ["tiny-e2b", "tiny-31b", "tiny-26b-a4b"])
@pytest.mark.parametrize("image", ["img_384x336", "img_336x480"])
def test_an_image_in_the_prompt(shared: Path, model: str, image: str) -> None:
    folder = shared / model
    media = {"image": np.load(folder / f"vision_{image}.embd.npy")}
    ours, _ = with_media(model_of(shared, model), around("image", golden(folder)["vision"][image]), media)
    assert relative_error(ours, np.load(folder / f"vision_{image}.logits.npy")) < CLOSE


@pytest.mark.parametrize("sound", ["aud_2s", "aud_1p37s"])
def test_a_sound_in_the_prompt(shared: Path, sound: str) -> None:
    folder = shared / "tiny-e2b"
    media = {"audio": np.load(folder / f"audio_{sound}.embd.npy")}
    ours, _ = with_media(model_of(shared, "tiny-e2b"), around("audio", golden(folder)["audio"][sound]), media)
    assert relative_error(ours, np.load(folder / f"audio_{sound}.logits.npy")) < CLOSE


def second_set_media(folder: Path) -> dict[str, Floats]:
    return {
        "image": np.load(folder / "vision_img_384x336.embd.npy"),
        "audio": np.load(folder / "audio_aud_1p37s.embd.npy"),
    }


@pytest.mark.parametrize("folder", ["tiny-e2b-ollama", "micro"])
def test_media_in_single_file_models(shared: Path, folder: str) -> None:
    case, media = golden(shared / folder), second_set_media(shared / folder)
    model = (
        model_in_store(shared, "gemma4:tiny")
        if folder == "micro"
        else reference(shared / "models" / "tiny-e2b-ollama.gguf")
    )
    prompts = {
        "vision_img_384x336": around("image", case["vision_img_384x336"]),
        "audio_aud_1p37s": around("audio", case["audio_aud_1p37s"]),
        "mixed": case["mixed"]["parts"],
    }
    for name, parts in prompts.items():
        ours, _ = with_media(model, parts, media)
        assert relative_error(ours, np.load(shared / folder / f"{name}.logits.npy")) < CLOSE, name


@pytest.mark.parametrize(
    ("kind", "name", "file"),
    [
        ("F16", "image", "image.logits.npy"),
        ("F16", "audio", "audio.logits.npy"),
        ("F16", "mixed", "mixed.logits.npy"),
        ("Q4_K_M", "mixed", "mixed.logits.Q4_K_M.npy"),
    ],
)
def test_media_in_the_12b(shared: Path, kind: str, name: str, file: str) -> None:
    folder = shared / "tiny-12b"
    case = golden(folder)["prompts"][name]
    ours, text = with_media(model_of(shared, "tiny-12b", kind), case["parts"], second_set_media(folder))
    assert text == case["text_positions"]
    assert relative_error(ours, np.load(folder / file)) < CLOSE


@pytest.mark.parametrize("model", ["tiny-e2b", "tiny-31b", "tiny-26b-a4b"])
def test_steps_of_any_size_equal_one_pass(shared: Path, model: str) -> None:
    ids = golden(shared / model)["sequences"]["repeat"]
    reference = model_of(shared, model)
    reference.rewind()
    pieces = [reference.step(ids[start:end]) for start, end in ((0, 7), (7, 8), (8, 8), (8, 72), (72, len(ids)))]
    assert reference.position == len(ids)
    assert relative_error(np.concatenate(pieces), reference.logits(ids)) < CLOSE


def test_an_image_seen_in_a_later_step_is_the_same_image(shared: Path) -> None:
    folder = shared / "tiny-31b"
    case, rows = golden(folder)["vision"]["img_384x336"], np.load(folder / "vision_img_384x336.embd.npy")
    model = model_of(shared, "tiny-31b")
    model.rewind()
    before = model.step(case["ids_before"])
    model.step([0] * len(rows), embeddings={0: rows}, spans=[(0, len(rows))])
    ours = np.concatenate([before, model.step(case["ids_after"])])
    assert relative_error(ours, np.load(folder / "vision_img_384x336.logits.npy")) < CLOSE


def test_rewinding_takes_tokens_back(shared: Path) -> None:
    model = model_of(shared, "tiny-e2b")
    ids = golden(shared / "tiny-e2b")["sequences"]["mid"]
    model.rewind()
    expected = model.step(ids)
    model.rewind(20)
    model.step([5, 6, 7])
    model.rewind(20)
    assert relative_error(model.step(ids[20:]), expected[20:]) < CLOSE
    with pytest.raises(ModelError, match="position 49"):
        model.rewind(len(ids) + 1)


def test_sliding_layers_forget_beyond_the_window_and_full_layers_do_not() -> None:
    positions = np.arange(50)
    sliding, full = decoder.visible(positions, 32), decoder.visible(positions)
    assert np.flatnonzero(sliding[40]).tolist() == list(range(9, 41))
    assert np.flatnonzero(full[40]).tolist() == list(range(41))


@pytest.mark.parametrize(("windowed", "last_of_image"), [(True, [14, 15, 16]), (False, [12, 13, 14, 15, 16])])
def test_the_tokens_of_an_image_see_each_other(windowed: bool, last_of_image: list[int]) -> None:
    mask = decoder.visible(np.arange(10, 20), 3, [(12, 17)], windowed)
    seen = {10 + row: np.flatnonzero(mask[row]).tolist() for row in range(10)}
    assert seen[11] == [9, 10, 11]
    assert seen[12] == [10, 11, 12, 13, 14, 15, 16]
    assert seen[16] == last_of_image
    assert seen[17] == [15, 16, 17]


def with_split_experts(path: Path) -> Gguf:
    """The same weights with gate and up of the experts in two tensors each, appended to the file."""
    fused, data = Gguf.open(path), path.read_bytes()
    tensors = dict(fused.tensors)
    for name in [name for name in tensors if name.endswith("ffn_gate_up_exps.weight")]:
        columns, rows, experts = tensors.pop(name).shape
        halves = np.split(np.frombuffer(fused.read(name), "<f2").reshape(experts, rows, columns), 2, axis=1)
        for half, values in zip(("ffn_gate_exps.weight", "ffn_up_exps.weight"), halves, strict=True):
            split = name.replace("ffn_gate_up_exps.weight", half)
            tensors[split] = Tensor(split, (columns, rows // 2, experts), "F16", len(data), values.nbytes)
            data += values.tobytes()
    return Gguf(MemorySource(data), fused.version, fused.metadata, tensors)


def test_experts_in_two_tensors_give_the_same(shared: Path) -> None:
    ids = golden(shared / "tiny-26b-a4b")["sequences"]["short"]
    split = Reference(with_split_experts(shared / "models" / "tiny-26b-a4b-F16.gguf"))
    assert relative_error(split.logits(ids), np.load(shared / "tiny-26b-a4b" / "logits_short.npy")) < CLOSE


def test_without_rope_freqs_the_same_pairs_rotate(shared: Path) -> None:
    gguf = Gguf.open(shared / "models" / "tiny-31b-F16.gguf")
    del gguf.tensors["rope_freqs.weight"]
    ids = golden(shared / "tiny-31b")["sequences"]["mid"]
    assert relative_error(Reference(gguf).logits(ids), np.load(shared / "tiny-31b" / "logits_mid.npy")) < CLOSE


def test_an_output_matrix_of_its_own_is_used(shared: Path) -> None:
    gguf = Gguf.open(shared / "models" / "tiny-12b-F16.gguf")
    table = gguf.tensors["token_embd.weight"]
    one_row = table.nbytes // table.shape[1]
    # The table read one row later: the logits of token t become those of token t + 1.
    gguf.tensors["output.weight"] = Tensor(
        "output.weight", table.shape, table.type, table.offset + one_row, table.nbytes
    )
    ids = golden(shared / "tiny-12b")["sequences"]["short"]
    golden_logits = np.load(shared / "tiny-12b" / "logits_short.npy")
    assert relative_error(Reference(gguf).logits(ids)[:, :-1], golden_logits[:, 1:]) < CLOSE


def test_a_model_larger_than_the_cache_gives_the_same(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = golden(shared / "tiny-26b-a4b")["sequences"]["short"]
    expected = model_of(shared, "tiny-26b-a4b").logits(ids)
    monkeypatch.setattr(decoder, "CACHE_BYTES", 1 << 20)
    monkeypatch.setattr(decoder, "SLAB_BYTES", 40_000)
    small = Reference(Gguf.open(shared / "models" / "tiny-26b-a4b-F16.gguf"))
    assert relative_error(small.logits(ids), expected) < CLOSE


def test_no_tokens_have_no_logits(shared: Path) -> None:
    assert model_of(shared, "tiny-e2b").logits([]).shape == (0, 1024)


@pytest.mark.parametrize("token", [-1, 1024])
def test_a_token_outside_the_vocabulary_is_refused(shared: Path, token: int) -> None:
    with pytest.raises(ModelError, match=f"token {token} is outside the vocabulary of 1024"):
        model_of(shared, "tiny-e2b").logits([2, token])


@pytest.mark.parametrize(("start", "shape"), [(2, (2, 256)), (-1, (1, 256)), (0, (1, 255)), (0, (256,))])
def test_embeddings_that_do_not_fit_are_refused(shared: Path, start: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=f"at row {start} do not fit 3 rows of 256"):
        model_of(shared, "tiny-e2b").logits([2, 3, 4], embeddings={start: np.zeros(shape, dtype=np.float32)})
