"""The forward pass on the GPU against transformers' goldens: every model, every weight type, on the floor too."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import wgemma
from wgemma.gpu.device import Device
from wgemma.gpu.native import NativeDevice
from wgemma.model import decoder, forms, matmul
from wgemma.model.forms import middle_form
from wgemma.model.passes import SOFT

Floats = NDArray[np.float32]
DENSE = ("tiny-e2b", "tiny-31b", "tiny-heads", "tiny-12b")
FILES = [
    ("tiny-e2b", "F16"),
    ("tiny-e2b", "Q8_0"),
    ("tiny-e2b", "Q4_0"),
    ("tiny-e2b", "Q4_K_M"),
    ("tiny-31b", "F16"),
    ("tiny-31b", "Q4_K_M"),
    ("tiny-26b-a4b", "F16"),
    ("tiny-26b-a4b", "Q4_K_M"),
    ("tiny-heads", "F16"),
    ("tiny-heads", "Q4_K_M"),
    ("tiny-12b", "F16"),
    ("tiny-12b", "Q4_K_M"),
]
ALL = ("short", "mid", "long", "repeat", "chat")
CASES = [(*file, ALL if file == FILES[0] else ALL[:2]) for file in FILES]
CASES_AT_LENGTH = [
    pytest.param(*file, ALL[2:], marks=pytest.mark.slow, id="-".join((*file, "at length"))) for file in FILES
]

# Like the others, in what these tests are about.
SLOW_E2B, SLOW_31B, SLOW_26B = (
    pytest.param(f"tiny-{model}", marks=pytest.mark.slow) for model in ("e2b", "31b", "26b-a4b")
)


def errors(got: Floats, golden: Floats) -> NDArray[np.float64]:
    """rms(Δ) / rms(golden) at every position."""
    difference = (got - golden).astype(np.float64)
    return np.sqrt((difference**2).mean(1) / (golden.astype(np.float64) ** 2).mean(1))


def goldens(shared: Path, model: str, kind: str, names: Sequence[str] = ALL) -> list[tuple[str, list[int], Floats]]:
    """(name, ids, logits) of the sequences of these names that there are for this file."""
    folder = shared / model
    suffix = "" if kind == "F16" else f".{kind}"
    sequences = json.loads((folder / "golden.json").read_text())["sequences"]
    found = []
    for name, ids in sequences.items():
        path = folder / f"logits_{name}{suffix}.npy"
        if name in names and path.exists():
            found.append((name, ids, np.load(path)))
    return found


def check_top_tokens(got: Floats, golden: Floats) -> None:
    """The most likely token is the same wherever the golden leaves no doubt."""
    ordered = np.sort(golden, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 0.1
    assert (got.argmax(1) == golden.argmax(1))[clear].all()


@pytest.mark.parametrize(("model", "kind", "names"), [*CASES, *CASES_AT_LENGTH])
def test_logits_equal_transformers_with_f32_keys_and_values(
    shared: Path, floor: NativeDevice, model: str, kind: str, names: Sequence[str]
) -> None:
    with wgemma.load(shared / f"models/{model}-{kind}.gguf", device=floor, kv="f32") as loaded:
        for _, ids, golden in goldens(shared, model, kind, names):
            got = loaded.logits(ids)
            assert errors(got, golden).max() <= 5e-4
            check_top_tokens(got, golden)


@pytest.mark.parametrize(
    ("model", "kind", "names"),
    [case if case[1] == "Q4_K_M" else pytest.param(*case, marks=pytest.mark.slow) for case in CASES] + CASES_AT_LENGTH,
)
def test_logits_stay_near_with_f16_keys_and_values(
    shared: Path, gpu: NativeDevice, model: str, kind: str, names: Sequence[str]
) -> None:
    with wgemma.load(shared / f"models/{model}-{kind}.gguf", device=gpu) as loaded:
        for name, ids, golden in goldens(shared, model, kind, names):
            got = errors(loaded.logits(ids), golden)
            if model in DENSE:
                assert got.max() <= 2e-3
            else:
                far = np.flatnonzero(got > 5e-3)
                assert len(far) <= 0.03 * len(got)
                assert all(came_close(shared / model, name, position) for position in far)


def came_close(folder: Path, name: str, position: int) -> bool:
    """Whether some router came close to another choice up to here: from there on it may rightly have made it."""
    gaps = np.load(folder / f"router_gap_{name}.npy")[:, : position + 1, 0]  # [layer, token]
    return bool(gaps.min() < 0.02)


@pytest.mark.slow
def test_positions_past_the_window_at_1500_tokens(shared: Path, gpu: NativeDevice) -> None:
    for model in ("tiny-e2b", "tiny-31b"):
        told = json.loads((shared / f"long-context/{model}.json").read_text())
        golden = np.load(shared / f"long-context/{model}.logits.npy")
        with wgemma.load(shared / f"models/{model}-F16.gguf", device=gpu, kv="f32") as loaded:
            assert errors(loaded.logits(told["ids"])[told["rows"]], golden).max() <= 5e-4


def test_ollamas_single_file_flavour(shared: Path, gpu: NativeDevice) -> None:
    sequences = json.loads((shared / "tiny-e2b-ollama/golden.json").read_text())["sequences"]
    with wgemma.load(shared / "models/tiny-e2b-ollama.gguf", device=gpu, kv="f32") as loaded:
        for name, ids in sequences.items():
            path = shared / f"tiny-e2b-ollama/logits_{name}.npy"
            if name in ALL[:2] and path.exists():
                assert errors(loaded.logits(ids), np.load(path)).max() <= 5e-4


@pytest.mark.parametrize("name", ["short", "mid"])
def test_a_clone_alone_proves_the_forward_pass(data: Path, floor: NativeDevice, name: str) -> None:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    blob = data / "ollama-store" / store["gemma4:tiny"]["model"]
    ids = json.loads((data / "micro/golden.json").read_text())["sequences"][name]
    with wgemma.load(blob, device=floor, kv="f32") as loaded:
        assert errors(loaded.logits(ids), np.load(data / f"micro/logits_{name}.npy")).max() <= 5e-4


@pytest.mark.parametrize("ple", ["gpu", "host"])
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_K_M"])
def test_both_producers_of_the_per_layer_table_agree(shared: Path, gpu: NativeDevice, ple: str, kind: str) -> None:
    _, ids, golden = next(entry for entry in goldens(shared, "tiny-e2b", kind) if entry[0] == "mid")
    with wgemma.load(shared / f"models/tiny-e2b-{kind}.gguf", device=gpu, kv="f32", ple=ple) as loaded:
        assert errors(loaded.logits(ids), golden).max() <= 5e-4
        assert loaded.backend.engine.fetches_rows == (ple == "host")  # type: ignore[attr-defined]


@pytest.mark.parametrize("model", ["tiny-e2b", SLOW_31B, SLOW_26B])
def test_prefill_in_odd_chunks_and_token_by_token_equals_one_chunk(shared: Path, gpu: NativeDevice, model: str) -> None:
    ids = next(ids for name, ids, _ in goldens(shared, model, "F16") if name == "long")[:120]
    with wgemma.load(shared / f"models/{model}-F16.gguf", device=gpu, kv="f32") as loaded:
        whole = loaded.logits(ids, chunks=[120])
        odd = loaded.logits(ids, chunks=[7, 1, 64, 3, 2, 33])
        single = loaded.logits(ids[:20], chunks=[1] * 20)
    assert errors(odd, whole).max() < 1e-3
    assert errors(single, whole[:20]).max() < 1e-3


def in_shares(
    found: list[int], device: Device, rows: int, n: int, blocks: int, *, most: int = 1, **how: bool
) -> tuple[dict[str, Any], int]:
    """A form of middle.wgsl with up to three shares; how many is noted."""
    form, _ = middle_form(device, rows, n, blocks, quick=how["quick"], fine=how.get("fine", False), most=most)
    found.append(min(most, blocks, 3))
    return form, found[-1]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("model", ["tiny-e2b", SLOW_26B])
def test_fast_logits_are_as_close_in_chunks_as_token_by_token(
    shared: Path, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch, model: str, large: bool
) -> None:
    left: list[int] = []
    if large:  # as if the matrices were, and every sum that can be shared
        monkeypatch.setattr(matmul.Matmuls, "work", (0, 0))
        monkeypatch.setattr(matmul, "middle_form", partial(in_shares, left))
        monkeypatch.setattr(forms, "ROUNDING_GRID", 1)
    _, ids, golden = next(entry for entry in goldens(shared, model, "Q4_K_M") if entry[0] == "mid")
    path, ids, golden = shared / f"models/{model}-Q4_K_M.gguf", ids[:42], golden[:42]
    with wgemma.load(path, device=gpu, kv="f32", precision="fast") as loaded:
        single = loaded.logits(ids, chunks=[1] * 42)
        chunks = loaded.logits(ids, chunks=[4, 8, 17, 13])
    # Where a sum's last bit changes how a number is rounded, later layers differ by a step of that rounding.
    rounding = np.median(errors(single, golden))
    assert 1e-3 < np.median(errors(chunks, golden)) < 1.3 * rounding
    assert np.median(errors(chunks, single)) < rounding
    assert (3 in left) == large


def test_a_long_history_is_joined_in_the_bytes_that_the_next_product_reads(
    shared: Path, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[bool] = []
    put_together = decoder.put_together

    def counted(*given: Any) -> None:
        joined.append(len(given) > 4)
        put_together(*given)

    monkeypatch.setattr(decoder, "put_together", counted)
    ids = next(ids for name, ids, _ in goldens(shared, "tiny-e2b", "F16") if name == "long")
    found = []
    for precision, work in (("exact", (0, 0)), ("fast", matmul.Matmuls.work), ("fast", (0, 0))):
        monkeypatch.setattr(matmul.Matmuls, "work", work)
        with wgemma.load(shared / "models/tiny-e2b-Q4_K_M.gguf", device=gpu, kv="f32", precision=precision) as loaded:
            found.append(loaded.logits(ids, chunks=[192, 8])[-8:])
    assert True in joined and False in joined
    exact, alone, together = found
    rounding = np.median(errors(alone, exact))
    assert 1e-3 < np.median(errors(together, exact)) < 1.3 * rounding
    assert np.median(errors(together, alone)) < rounding


@pytest.mark.parametrize("model", ["tiny-e2b", SLOW_31B, SLOW_26B])
def test_logits_are_the_same_where_workgroups_share_every_sum_they_can(
    shared: Path, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr(matmul.Matmuls, "share", 1)  # of so few blocks nobody else would make parts
    seen: set[int] = set()
    shares_of = matmul.tile_shares

    def counted(*sizes: int, **bounds: int) -> int:
        seen.add(shares_of(*sizes, **bounds))
        return shares_of(*sizes, **bounds)

    monkeypatch.setattr(matmul, "tile_shares", counted)
    _, ids, golden = next(entry for entry in goldens(shared, model, "Q4_K_M") if entry[0] == "mid")
    with wgemma.load(shared / f"models/{model}-Q4_K_M.gguf", device=gpu, kv="f32") as loaded:
        first, second = loaded.logits(ids), loaded.logits(ids)
    assert seen & {2, 4, 8}
    assert errors(first, golden).max() <= 5e-4
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("kind", [pytest.param("F16", marks=pytest.mark.slow), "Q4_K_M"])
def test_rows_that_share_an_expert_go_together_and_find_what_each_would_alone(
    shared: Path, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    ids = next(ids for name, ids, _ in goldens(shared, "tiny-26b-a4b", kind) if name == "mid")[:100]
    found = []
    for crowd, grouped in ((matmul.CROWD, (0, 0)), (1 << 30, (1, 64)), (1 << 30, (1, 64)), (1 << 30, (0, 0))):
        monkeypatch.setattr(matmul, "CROWD", crowd)
        monkeypatch.setattr(matmul, "PACKED", 1 << 30)
        monkeypatch.setattr(matmul.Matmuls, "grouped", grouped)
        with wgemma.load(shared / f"models/tiny-26b-a4b-{kind}.gguf", device=gpu, kv="f32") as loaded:
            found.append(loaded.logits(ids, chunks=[len(ids)]))
    together, small, again, alone = found
    assert (small == again).all()
    assert 0 < errors(together, alone).max() < 1e-3
    assert 0 < errors(small, alone).max() < 1e-3
    assert errors(small, together).max() > 0


def test_the_12b_model_never_says_what_it_must_not(shared: Path, gpu: NativeDevice) -> None:
    told = json.loads((shared / "tiny-12b/golden.json").read_text())
    with wgemma.load(shared / "models/tiny-12b-F16.gguf", device=gpu) as loaded:
        case = told["suppress_case"]
        assert loaded.logits(case["ids"])[-1].argmax() == case["argmax_without_suppression"]
        assert next(loaded.generate(case["ids"], temperature=0)).id == case["argmax"]
        expected = told["greedy_short"]["tokens"]
        ids = told["sequences"]["short"]
        assert [piece.id for piece in loaded.generate(ids, max_tokens=len(expected), temperature=0)] == expected


@pytest.mark.parametrize(
    ("names", "count"), [(["chat"], 8), pytest.param(["short", "mid", "chat"], 32, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("model", ["tiny-e2b", "tiny-31b", "tiny-26b-a4b", "tiny-heads"])
def test_greedy_continuations_equal_transformers(
    shared: Path, gpu: NativeDevice, model: str, names: list[str], count: int
) -> None:
    told = json.loads((shared / model / "golden.json").read_text())
    with wgemma.load(shared / f"models/{model}-F16.gguf", device=gpu, kv="f32") as loaded:
        for name in names:
            greedy = told["greedy"][name]
            tokens = (greedy["hf"] if "hf" in greedy else greedy["tokens"])[:count]
            expected = tokens[: until_stop(tokens, loaded.tokenizer)]
            got = loaded.generate(told["sequences"][name], max_tokens=len(tokens), temperature=0)
            assert [piece.id for piece in got][: len(expected)] == expected


def until_stop(tokens: list[int], tokenizer: wgemma.Tokenizer) -> int:
    """Where our generation ends: before a stop token; and before a media slot, which transformers treats specially."""
    slots = {tokenizer.special[text] for text in ("<|image|>", "<|audio|>", "<|video|>")}
    ends = [i for i, token in enumerate(tokens) if token in tokenizer.stop_ids]
    ends += [i + 1 for i, token in enumerate(tokens) if token in slots]
    return min(ends, default=len(tokens))


# -- prompts that hold images and sounds

SENSES = [
    ("tiny-e2b", "F16", "mmproj-tiny-e2b-F16.gguf"),
    ("tiny-31b", "F16", "mmproj-tiny-31b-F16.gguf"),
    ("tiny-26b-a4b", "F16", "mmproj-tiny-26b-a4b-F16.gguf"),
    ("tiny-12b", "F16", "mmproj-tiny-12b-F16.gguf"),
    ("tiny-12b", "Q4_K_M", "mmproj-tiny-12b-F16.gguf"),
    ("tiny-e2b-ollama", "", None),
]
SLOW_SENSES = [pytest.param(*case, marks=pytest.mark.slow) for case in SENSES[:4]]


def media_prompts(shared: Path, model: str, kind: str) -> list[tuple[str, list[Any], Floats]]:
    """(name, parts, golden logits of the text positions): parts are ids, or an image or sound by its file's name."""
    folder, found = shared / model, []
    told = json.loads((folder / "golden.json").read_text())
    cases = {
        f"{sense}_{name}": (name, case) for sense in ("vision", "audio") for name, case in told.get(sense, {}).items()
    }
    cases |= {
        name: (name.partition("_")[2], told[name]) for name in ("vision_img_384x336", "audio_aud_1p37s") if name in told
    }
    for name, (medium, case) in cases.items():
        if (folder / f"{name}.logits.npy").exists():
            found.append(
                (name, [case["ids_before"], medium, case["ids_after"]], np.load(folder / f"{name}.logits.npy"))
            )
    whole = dict(told.get("prompts", {}), **({"mixed": told["mixed"]} if "mixed" in told else {}))
    for name, case in whole.items():
        path = folder / (f"{name}.logits.npy" if kind != "Q4_K_M" else f"{name}.logits.{kind}.npy")
        names = {"image": "img_384x336", "audio": "aud_1p37s"}
        if path.exists():
            found.append((name, [names.get(part[0], part) for part in case["parts"]], np.load(path)))
    return found


def with_media(loaded: wgemma.Model, shared: Path, parts: list[Any]) -> tuple[list[int], list[int]]:
    """The ids of such a prompt, and the positions of its text."""
    ids: list[int] = []
    for part in parts:
        if isinstance(part, str):
            kind = "image" if part.startswith("img") else "audio"
            path = shared / "media" / f"{part}.{'png' if kind == 'image' else 'wav'}"
            opening, *numbers, _ = loaded.media_ids({"type": kind, kind: path, "budget": 70})
            assert ids[-1] == opening
            ids += numbers
        else:
            ids += part
    return ids, [position for position, number in enumerate(ids) if number < SOFT]


@pytest.mark.parametrize(("model", "kind", "projector"), [*SENSES[4:], *SLOW_SENSES])
def test_logits_around_images_and_sounds_equal_transformers(
    shared: Path, gpu: NativeDevice, model: str, kind: str, projector: str | None
) -> None:
    file = f"models/{model}-{kind}.gguf" if kind else f"models/{model}.gguf"
    towers = shared / "models" / projector if projector else None
    prompts = media_prompts(shared, model, kind)
    assert len(prompts) >= (1 if kind == "Q4_K_M" else 2)
    with wgemma.load(shared / file, projector=towers, device=gpu, kv="f32") as loaded:
        for _, parts, golden in prompts:
            ids, text = with_media(loaded, shared, parts)
            got = loaded.logits(ids)[text]
            assert errors(got, golden).max() <= 5e-4
            check_top_tokens(got, golden)


@pytest.mark.parametrize(("model", "kind", "projector"), [*SENSES[4:], *SLOW_SENSES[:2], *SLOW_SENSES[3:]])
def test_logits_around_media_stay_near_with_f16_keys_and_values(
    shared: Path, gpu: NativeDevice, model: str, kind: str, projector: str | None
) -> None:
    file = f"models/{model}-{kind}.gguf" if kind else f"models/{model}.gguf"
    towers = shared / "models" / projector if projector else None
    _, parts, golden = media_prompts(shared, model, kind)[-1]
    with wgemma.load(shared / file, projector=towers, device=gpu) as loaded:
        ids, text = with_media(loaded, shared, parts)
        assert errors(loaded.logits(ids)[text], golden).max() <= 2e-3


@pytest.mark.parametrize("model", [SLOW_E2B, SLOW_31B, "tiny-12b"])
def test_prefill_in_odd_chunks_equals_one_chunk_with_images_too(shared: Path, gpu: NativeDevice, model: str) -> None:
    towers = shared / f"models/mmproj-{model}-F16.gguf"
    with wgemma.load(shared / f"models/{model}-F16.gguf", projector=towers, device=gpu, kv="f32") as loaded:
        picture = loaded.media_ids({"type": "image", "image": shared / "media/img_384x336.png", "budget": 70})
        ids = [2, *range(300, 330), *picture, *range(400, 403), *picture, *range(500, 520)]
        whole = loaded.logits(ids, chunks=[len(ids)])
        odd = loaded.logits(ids, chunks=[7, 1, 64, 3, 2, 33, 30])
        assert errors(odd, whole).max() < 1e-3


@pytest.mark.parametrize("ple", [pytest.param("gpu", marks=pytest.mark.slow), "host"])
def test_soft_rows_take_the_padding_row_of_either_per_layer_table(shared: Path, gpu: NativeDevice, ple: str) -> None:
    _, parts, golden = media_prompts(shared, "tiny-e2b-ollama", "")[-1]
    with wgemma.load(shared / "models/tiny-e2b-ollama.gguf", device=gpu, kv="f32", ple=ple) as loaded:
        ids, text = with_media(loaded, shared, parts)
        assert errors(loaded.logits(ids)[text], golden).max() <= 5e-4


def test_numpy_sees_and_hears_the_same(shared: Path) -> None:
    for model, projector in (("tiny-e2b-ollama.gguf", None), ("tiny-12b-F16.gguf", "mmproj-tiny-12b-F16.gguf")):
        towers = shared / "models" / projector if projector else None
        _, parts, golden = media_prompts(shared, model.removesuffix(".gguf").removesuffix("-F16"), "")[-1]
        with wgemma.load(shared / "models" / model, projector=towers, device="reference") as loaded:
            ids, text = with_media(loaded, shared, parts)
            assert errors(loaded.logits(ids)[text], golden).max() <= 5e-4
