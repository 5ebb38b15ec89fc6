"""Files attached to a chat: named, dragged in, saved and loaded again."""

from pathlib import Path

import pytest
from PIL import Image

from wgemma.cli.chat_media import attach, find, message, name_of, named_media, packed, shown, unpacked
from wgemma.errors import MediaError

WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data\0\0\0\0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "my pictures"
    place.mkdir()
    Image.new("RGB", (4, 4), "red").save(place / "cat.png")
    Image.new("RGB", (4, 4), "red").save(place / "dog's.JPG")
    (place / "voice.wav").write_bytes(WAV)
    (place / "notes.txt").write_text("mine")
    return place


def test_paths_are_found_as_terminals_write_them(folder: Path) -> None:
    cat, dog, voice = folder / "cat.png", folder / "dog's.JPG", folder / "voice.wav"
    escaped = str(cat).replace(" ", "\\ ")
    for line, text, paths in (
        (f"what is '{cat}' about?", "what is about?", [cat]),
        (f'compare "{cat}" and "{dog}"', "compare and", [cat, dog]),
        (f"{escaped} what is this", "what is this", [cat]),
        (
            f"what's here: {str(dog).replace(' ', chr(92) + ' ').replace(chr(39), chr(92) + chr(39))}",
            "what's here:",
            [dog],
        ),
        (f"file://{str(voice).replace(' ', '%20')} who speaks?", "who speaks?", [voice]),
        (f"'{cat}'", "", [cat]),
    ):
        assert find(line) == (text, paths), line


def test_what_is_no_path_of_a_picture_or_sound_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for line in (
        "cat.png is a good name",  # a bare word
        f"read '{folder}/notes.txt'",
        'rename "a.png" to "b.png"',
        "![a cat](./nowhere/cat.png) in img/cat.png",
        "https://example.org/cat.png",
        "it's  'quoted'  \\ oddly",
        "",
    ):
        assert find(line) == (line, [])
    assert find("and ./cat.png?") == ("and", [Path("cat.png")])
    assert find("and ./cat.png ?") == ("and ?", [Path("cat.png")])


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("see /nowhere/cat.png", "/nowhere/cat.png"),
        ("what is in ./nope.JPG?", "./nope.JPG"),
        ("'/no where/voice.wav' who speaks?", "/no where/voice.wav"),
        ("file:///nowhere/cat.png", "file:///nowhere/cat.png"),
    ],
)
def test_a_picture_or_sound_that_is_not_there_is_named(line: str, path: str) -> None:
    with pytest.raises(MediaError) as caught:
        find(line)
    assert str(caught.value).startswith(f"{path}: no such file.")


def test_a_word_of_the_command_line_may_be_a_path_with_spaces(folder: Path) -> None:
    words = ["What is", str(folder / "cat.png"), "this?", "Not /a.png\nbut text."]
    assert named_media(words) == ("What is this? Not /a.png\nbut text.", [folder / "cat.png"])


def test_a_file_is_read_when_it_is_attached(folder: Path) -> None:
    data = (folder / "cat.png").read_bytes()
    part = attach(folder / "cat.png", budget=70)
    (folder / "cat.png").unlink()
    assert part == {"type": "image", "image": data, "path": str(folder / "cat.png"), "budget": 70}
    assert attach(folder / "voice.wav", budget=70) == {"type": "audio", "audio": WAV, "path": str(folder / "voice.wav")}


def test_what_cannot_be_attached_is_a_sentence(folder: Path) -> None:
    with pytest.raises(MediaError, match=r"notes\.txt is neither a picture nor a sound"):
        attach(folder / "notes.txt")
    with pytest.raises(MediaError, match="no such file"):
        attach(folder / "nothing.png", "image")
    with pytest.raises(MediaError, match="is a folder"):
        attach(folder, "audio")


def test_a_message_shows_before_it_speaks(folder: Path) -> None:
    part = attach(folder / "cat.png")
    assert message("what?", []) == "what?"
    assert message("what?", [part]) == [part, {"type": "text", "text": "what?"}]
    assert message(" ", [part]) == [part]
    assert name_of(part) == "image cat.png"
    assert shown(message("what?", [part])) == "[image cat.png] what?"
    assert shown("what?") == "what?"
    assert shown(None) == shown([1]) == "(not text)"


def test_a_saved_chat_names_its_files_and_reads_them_again(folder: Path) -> None:
    content = message("what?", [attach(folder / "cat.png", budget=70), attach(folder / "voice.wav")])
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "a cat"}, {"role": "assistant"}]
    lean = packed(messages)
    assert lean[0]["content"][0] == {"type": "image", "path": str(folder / "cat.png"), "budget": 70}
    assert unpacked(lean) == messages
    (folder / "cat.png").unlink()
    with pytest.raises(MediaError, match="no such file"):
        unpacked(lean)
