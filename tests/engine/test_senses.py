"""Pictures and sounds in a sequence: the same content has the same numbers, and memory stays within bounds."""

import json
import sys
import threading
from array import array
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import wgemma
from media_maker import wav, wav_format
from wgemma.engine import senses as module
from wgemma.engine.backend import GpuBackend
from wgemma.engine.senses import Medium, Senses
from wgemma.errors import MediaError, ModelError, SessionError, TemplateError
from wgemma.files.images import Pixels
from wgemma.files.sounds import Sound
from wgemma.gpu.native import NativeDevice
from wgemma.model.passes import SOFT
from wgemma.model.tower import Step, unwatched
from wgemma.sync import run
from wgemma.text.parts import content_of

WIDTH = 8


class FakeTowers:
    """One row for every pixel's worth of colour: shows what is encoded when, and what is given back."""

    def require(self, kind: str) -> None:
        pass

    def __init__(self) -> None:
        self.encoded: list[Any] = []
        self.dropped: list[bytes] = []
        self.released = 0

    def image_tokens(self, width: int, height: int, budget: int) -> int:
        return width * height

    def sound_tokens(self, samples: int) -> int:
        return samples // 640

    async def see(self, pixels: Pixels, budget: int, step: Step = unwatched) -> bytes:
        self.encoded.append((pixels, budget))
        return pixels.rgba

    async def resample(self, sound: Sound) -> "array[float]":
        return sound.samples

    async def hear(self, samples: "array[float]", step: Step = unwatched) -> bytes:
        self.encoded.append(samples)
        return samples.tobytes()

    def drop(self, rows: Any) -> None:
        self.dropped.append(rows)

    def release(self) -> None:
        self.released += 1


@pytest.fixture
def towers() -> FakeTowers:
    return FakeTowers()


@pytest.fixture
def media(towers: FakeTowers) -> Senses[bytes]:
    return Senses(towers, WIDTH)


def picture(seed: int, width: int = 3, height: int = 2) -> Pixels:
    return Pixels(width, height, np.random.default_rng(seed).bytes(4 * width * height))


def see(media: Senses[bytes], source: Any, **options: Any) -> Medium[bytes]:
    (medium,) = run(media.take(content_of({"type": "image", "image": source, **options})))
    return medium


def test_the_same_picture_has_the_same_numbers_however_it_comes(media: Senses[bytes], tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    sources = [tmp_path / "a.png", str(tmp_path / "a.png"), (tmp_path / "a.png").read_bytes(), pixels]
    sources.append(Image.fromarray(pixels))
    first = see(media, sources[0])
    assert first.numbers == range(SOFT, SOFT + 20)
    assert all(see(media, source) is first for source in sources)


def test_other_pixels_another_shape_and_another_budget_are_other_media(media: Senses[bytes]) -> None:
    found = [see(media, picture(1)), see(media, picture(2)), see(media, picture(1), budget=70)]
    found.append(see(media, Pixels(2, 3, picture(1).rgba)))
    firsts = [medium.first for medium in found]
    assert len(set(firsts)) == 4
    assert [b - a for a, b in pairwise(firsts)] == [7, 7, 7]  # six rows, and one left out


def test_numbers_are_known_and_others_are_not(media: Senses[bytes]) -> None:
    medium = see(media, picture(1))
    assert all(media.holds(number) for number in medium.numbers)
    assert not media.holds(medium.first - 1) and not media.holds(medium.first + 6)
    assert media.is_image(medium.first)


def test_a_picture_is_encoded_when_it_is_needed_and_only_once(media: Senses[bytes], towers: FakeTowers) -> None:
    medium = see(media, picture(1), budget=140)
    assert towers.encoded == []
    for number in (medium.first, medium.first + 4):
        assert run(media.rows(number)) == (picture(1).rgba, number - medium.first)
    assert towers.encoded == [(picture(1), 140)]


def test_a_known_file_is_not_decoded_again(
    media: Senses[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (4, 4), "red").save(tmp_path / "a.png")
    first = see(media, tmp_path / "a.png")
    monkeypatch.setattr(module, "read_image", lambda source: pytest.fail("it was decoded"))
    assert see(media, tmp_path / "a.png") is first


def test_rows_stay_within_their_budget_and_are_made_again(
    media: Senses[bytes], towers: FakeTowers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROW_BYTES", 2 * 4 * WIDTH * 6)
    pictures = [see(media, picture(seed)) for seed in range(3)]
    for medium in pictures:
        run(media.rows(medium.first))
    assert towers.dropped == [picture(0).rgba]
    run(media.rows(pictures[1].first))  # used again, so the next to go is the last
    run(media.rows(pictures[0].first))
    assert towers.dropped == [picture(0).rgba, picture(2).rgba]
    assert len(towers.encoded) == 4


def test_a_picture_that_lost_its_content_must_be_sent_again(
    media: Senses[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONTENT_BYTES", 30)
    both = [content_of({"type": "image", "image": picture(seed)}) for seed in (1, 2)]
    (first,), (second,) = placed = run(media.place(both))
    assert first.content and second.content  # a prompt's own pictures are held, whatever they take
    media.let_go(placed)
    run(media.place(both[1:]))
    with pytest.raises(SessionError, match=r"an image in this chat is no longer cached\. Send it again"):
        run(media.rows(first.first))
    assert see(media, picture(1)) is first
    assert run(media.rows(first.first))[0] == picture(1).rgba


def test_many_media_are_forgotten_in_the_end(media: Senses[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MEDIA", 3)
    pictures = [see(media, picture(seed)) for seed in range(5)]
    assert all(media.holds(medium.first) for medium in pictures)  # as long as prompts are at work on them
    media.let_go([pictures])
    pictures.append(see(media, picture(5)))
    assert [media.holds(medium.first) for medium in pictures] == [False, False, False, True, True, True]
    assert media.is_image(pictures[0].first)  # assumed, so that nothing is cut that must not be
    assert see(media, picture(0)).first > pictures[-1].first


def test_prompts_of_many_threads_hold_and_let_go_of_their_pictures(media: Senses[bytes]) -> None:
    medium = see(media, picture(1))
    media.let_go([[medium]])
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def hold_and_let_go() -> None:
        for _ in range(1000):
            media._hold([medium])
            media.let_go([[medium]])

    threads = [threading.Thread(target=hold_and_let_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)
    assert not media._placed


def test_a_long_sound_is_several_media_in_order(media: Senses[bytes]) -> None:
    samples = array("f", np.random.default_rng(0).uniform(-1, 1, 16_000 * 70).astype("f4").tobytes())
    pieces = run(media.take(content_of({"type": "audio", "audio": Sound(16_000, 1, samples)})))
    assert [medium.kind for medium in pieces] == ["audio"] * 3
    held = [medium.content for medium in pieces]
    assert all(isinstance(piece, array) and len(piece) <= 480_000 for piece in held)
    assert b"".join(piece.tobytes() for piece in held if isinstance(piece, array)) == samples.tobytes()
    assert not media.is_image(pieces[0].first)


def test_a_sound_too_short_to_be_heard_is_a_sentence(media: Senses[bytes]) -> None:
    with pytest.raises(MediaError, match="too short: 10 samples"):
        run(media.take(content_of({"type": "audio", "audio": Sound(16_000, 1, array("f", [0.1] * 10))})))


def test_a_damaged_file_is_told_by_its_name(media: Senses[bytes], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(30))
    with pytest.raises(MediaError, match=r"a\.png is truncated or damaged"):
        see(media, tmp_path / "a.png")


def test_a_saved_chat_finds_its_pictures_by_their_hashes(media: Senses[bytes], towers: FakeTowers) -> None:
    see(media, picture(9))
    image = see(media, picture(1))
    ids = [2, *image.numbers, 3]
    told = json.loads(json.dumps(media.describe(ids)))
    fresh: Senses[bytes] = Senses(towers, WIDTH)
    renamed = fresh.recognise(ids, told)
    assert renamed == [2, *range(SOFT, SOFT + 6), 3] != ids
    assert [2, *see(fresh, picture(1)).numbers, 3] == renamed
    for wrong in ([], [{**told[0], "count": 5}], [{**told[0], "first": 3}], [{**told[0], "kind": "smell"}]):
        with pytest.raises(ValueError):
            Senses(towers, WIDTH).recognise(ids, wrong)


def place(media: Senses[bytes], *sources: Any, kind: str = "image") -> list[list[Medium[bytes]]]:
    return run(media.place([content_of({"type": kind, kind: source}) for source in sources]))


def refuse(*_: Any) -> None:
    raise AssertionError("decoded too early")


def test_too_many_pixels_in_one_prompt_are_refused_before_any_is_decoded(
    media: Senses[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    large = np.broadcast_to(np.uint8(0), (10_000, 10_000))
    monkeypatch.setattr(module, "read_image", refuse)
    with pytest.raises(MediaError, match="500 million pixels together; the limit is 400 million"):
        place(media, *[large] * 5)


def test_too_many_seconds_in_one_prompt_are_refused_before_any_is_decoded(
    media: Senses[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = wav(bytes(1000 * 1300), wav_format(rate=1000, bits=8))
    monkeypatch.setattr(module, "read_sound", refuse)
    with pytest.raises(MediaError, match="65 minutes long together; the limit is 60"):
        place(media, slow, slow + b"1", slow + b"22", kind="audio")


def test_what_is_cached_or_comes_twice_does_not_count_again(
    media: Senses[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [saved(np.full((4, 5), shade, np.uint8)) for shade in range(4)]
    monkeypatch.setattr(module, "MAX_TOTAL_PIXELS", 40)
    first = place(media, files[0], files[0], files[1], files[0])
    assert first[0] == first[1] == first[3]
    again = place(media, *files[:2], *files[2:])
    assert again[:2] == [first[0], first[2]]
    with pytest.raises(MediaError, match="one after the other"):
        place(media, *(saved(np.full((4, 5), shade, np.uint8)) for shade in range(9, 12)))


def saved(values: Any) -> bytes:
    file = BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def entry(medium: Medium[bytes], **changed: Any) -> dict[str, Any]:
    return {name: getattr(medium, name) for name in ("key", "kind", "first", "count", "budget")} | changed


@pytest.mark.parametrize(
    "changed",
    [
        {"count": 7},  # of a picture that is known here with 6 rows
        {"kind": "audio"},
        {"budget": 70},
        {"key": "f" * 64, "first": SOFT + 100},  # not in the ids
        {"key": "f" * 64, "first": SOFT + 1},  # not all of the ids
        {"key": "f" * 65},
        {"key": "f" * 64, "count": True},
        {"key": "f" * 64, "count": 10**9},
        {"key": "f" * 64, "first": 1e9},
    ],
)
def test_a_saved_chat_that_lies_about_its_media_registers_nothing(
    media: Senses[bytes], changed: dict[str, Any]
) -> None:
    medium = see(media, picture(1))
    ids = [5, *medium.numbers, 6]
    with pytest.raises(ValueError):
        media.recognise(ids, [entry(medium, **changed)])
    with pytest.raises(ValueError):
        media.recognise(ids, [entry(medium), entry(medium, key="e" * 64)])  # both have the same ids
    assert [each.key for each in media._media.values()] == [medium.key]


def test_a_saved_chat_cannot_change_how_many_rows_a_picture_has(media: Senses[bytes], towers: FakeTowers) -> None:
    lie = entry(see(Senses(towers, WIDTH), picture(1)), count=2000, first=SOFT)
    media.recognise([SOFT], [lie])
    medium = see(media, picture(1))
    assert medium.count == 6
    assert len(run(media.rows(medium.first))[0]) == 4 * medium.count


def test_everything_encoded_is_given_back(media: Senses[bytes], towers: FakeTowers) -> None:
    run(media.rows(see(media, picture(1)).first))
    media.free()
    assert towers.dropped == [picture(1).rgba]
    assert towers.released == 1


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image"}, 'a part of type "image" is empty'),
        ({"type": "video", "video": "x"}, "videos are not supported"),
        ({"type": "image", "image": b"", "budget": "much"}, "the budget of an image is 'much'"),
        (
            {"type": "image_url", "image_url": {"url": "https://x/cat.png"}},
            "wgemma does not fetch a picture from the web",
        ),
    ],
)
def test_a_part_that_holds_nothing_useful_is_a_sentence(media: Senses[bytes], part: dict[str, Any], words: str) -> None:
    with pytest.raises(TemplateError, match=words):
        run(media.take(content_of(part)))


# -- with a real model


def blob(data: Path, name: str) -> Path:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    return data / "ollama-store" / store[name]["model"]


@pytest.fixture
def model(data: Path, gpu: NativeDevice) -> Any:
    with wgemma.load(blob(data, "gemma4:tiny"), device=gpu) as loaded:
        yield loaded


PART = {"type": "image", "image": picture(5, 96, 60), "budget": 70}
ASKED = [{"role": "user", "content": [PART, {"type": "text", "text": "What is this?"}]}]


def test_towers_come_when_they_are_needed_and_go_when_they_are_released(model: wgemma.Model, gpu: NativeDevice) -> None:
    assert isinstance(model.backend, GpuBackend)
    before = gpu.allocated
    model.media_ids(PART)
    assert (model.backend.towers.nbytes, gpu.allocated) == (0, before)
    rows = model.encode_image(PART["image"], 70)
    assert model.backend.towers.nbytes > 0
    model.release_towers()
    assert gpu.allocated == before + rows.nbytes
    assert (model.encode_image(PART["image"], 70) == rows).all()  # those that were kept
    assert model.backend.towers.nbytes == 0


def test_the_gpu_does_not_grow_over_many_images(data: Path, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    before = gpu.allocated
    with wgemma.load(blob(data, "gemma4:tiny"), device=gpu) as model:
        monkeypatch.setattr(module, "ROW_BYTES", 40_000)
        sizes = []
        for seed in range(14):
            part = {"type": "image", "image": picture(seed, 60, 40), "budget": 70}
            list(model.chat([{"role": "user", "content": [part]}], max_tokens=2, seed=1))
            model.reset()
            sizes.append(gpu.allocated)
        assert max(sizes[8:]) == max(sizes[4:8])
    assert gpu.allocated == before


def test_loading_a_tower_is_progress(data: Path, gpu: NativeDevice) -> None:
    heard: list[int] = []
    with wgemma.load(blob(data, "gemma4:tiny"), device=gpu, progress=heard.append) as model:
        loaded = sum(heard)
        model.encode_image(picture(1, 64, 64), 70)
        assert sum(heard) > loaded


def test_a_lost_device_sees_again(data: Path) -> None:
    with wgemma.load(blob(data, "gemma4:tiny")) as model:
        assert isinstance(model.backend, GpuBackend)
        expected = [part.text for part in model.chat(ASKED, max_tokens=6, temperature=0)]
        rows = model.encode_image(PART["image"], 70)
        for again in (
            lambda: [part.text for part in model.chat(ASKED, max_tokens=6, temperature=0)] == expected,
            lambda: bool((model.encode_image(PART["image"], 70) == rows).all()),
        ):
            device = model.backend.device
            assert isinstance(device, NativeDevice)
            device._device.destroy()
            assert again()


def test_numpy_and_the_gpu_see_and_hear_the_same(data: Path, model: wgemma.Model) -> None:
    samples = np.random.default_rng(1).uniform(-0.5, 0.5, 9000).astype(np.float32)
    with wgemma.load(blob(data, "gemma4:tiny"), device="reference") as slow:
        for encode in (lambda m: m.encode_image(PART["image"], 70), lambda m: m.encode_audio((samples, 8000))):
            ours, theirs = encode(model), encode(slow)
            assert ours.shape == theirs.shape
            assert np.abs(ours - theirs).max() < 1e-3
        ids = [2, *model.media_ids(PART), 30, 31]
        assert [2, *slow.media_ids(PART), 30, 31] == ids
        assert np.abs(slow.logits(ids) - model.logits(ids)).max() < 0.05


def test_a_model_without_a_tower_says_so(data: Path, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    with wgemma.load("gemma4:legacy", device=gpu) as model:
        assert model.sees and not model.hears
        with pytest.raises(ModelError, match="gemma4:legacy cannot hear: it has no audio tower"):
            model.encode_audio(np.zeros(16_000, np.float32))
    with wgemma.load(blob(data, "hf.co/acme/gemma4-micro-GGUF:Q8_0"), device=gpu) as model:
        assert not model.sees
        with pytest.raises(ModelError, match=r"cannot see: it has no vision tower\. Leave images out, or load it with"):
            list(model.chat(ASKED))
        assert list(model.chat([{"role": "user", "content": "Hello"}], max_tokens=1))


def test_a_projector_comes_with_its_model_or_is_named(
    data: Path, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    name = "hf.co/acme/gemma4-micro-GGUF:Q8_0"
    projector = (
        data
        / "ollama-store"
        / json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"][name]["projectors"][0]
    )
    with (
        wgemma.load(name, device=gpu) as stored,
        wgemma.load(blob(data, name), projector=projector, device=gpu) as named,
    ):
        assert stored.sees and stored.hears and named.sees and named.hears
        assert (stored.encode_image(PART["image"], 70) == named.encode_image(PART["image"], 70)).all()


def test_a_projector_of_another_model_is_refused_by_name(shared: Path, data: Path, gpu: NativeDevice) -> None:
    before = gpu.allocated
    with pytest.raises(ModelError, match=r"mmproj-tiny-31b-F16.gguf was made for a model 256 wide; .* is 64 wide"):
        wgemma.load(blob(data, "gemma4:tiny"), projector=shared / "models/mmproj-tiny-31b-F16.gguf", device=gpu)
    with pytest.raises(ModelError, match="has neither a vision nor an audio tower"):
        wgemma.load(blob(data, "gemma4:tiny"), projector=shared / "models/tiny-31b-F16.gguf", device=gpu)
    assert gpu.allocated == before
