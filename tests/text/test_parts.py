"""Where the content of an image or sound is in a message part, in every supported form."""

import base64
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wgemma.errors import Error, MediaError, TemplateError
from wgemma.files.images import contents
from wgemma.text.parts import KINDS, Content, content_of, file_of

WORDS = ["image", "audio", "path", "data", "url", "image_url", "input_audio", "budget", "rate", "format"]
DATA = b"\x89PNG\r\n\x1a\nrest"
BASE64 = base64.b64encode(DATA).decode()
ARRAY = object()


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ({"type": "image", "image": "cat.png"}, Content("image", "cat.png")),
        ({"type": "image", "image": DATA, "budget": 70}, Content("image", DATA, 70)),
        ({"type": "image", "image": DATA, "path": "/a/cat.png"}, Content("image", DATA, None, "/a/cat.png")),
        ({"type": "image", "image": ARRAY}, Content("image", ARRAY)),
        ({"type": "image", "image": {"url": f"data:image/png;base64,{BASE64}"}}, Content("image", DATA)),
        ({"type": "image", "path": "cat.png"}, Content("image", Path("cat.png"), None, "cat.png")),
        ({"type": "image", "data": BASE64}, Content("image", DATA)),
        ({"type": "image", "data": DATA}, Content("image", DATA)),
        ({"type": "image", "url": f"data:image/png;base64,{BASE64}"}, Content("image", DATA)),
        ({"type": "image", "url": "file:///a/my%20cat.png"}, Content("image", Path("/a/my cat.png"))),
        (
            {"type": "image_url", "image_url": {"url": f"data:;base64,{BASE64}"}, "budget": 560},
            Content("image", DATA, 560),
        ),
        ({"type": "image_url", "image_url": f"DATA:;base64,{BASE64}"}, Content("image", DATA)),
        ({"type": "audio", "audio": "a.wav", "budget": 70}, Content("audio", "a.wav")),
        ({"type": "audio", "audio": ARRAY, "rate": 8000}, Content("audio", (ARRAY, 8000))),
        ({"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}, Content("audio", DATA)),
    ],
)
def test_every_spelling_leads_to_the_content(part: dict[str, Any], content: Content) -> None:
    assert content_of(part) == content


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "/etc/passwd"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
        {"type": "image_url", "image_url": {"url": 7}},
        {"type": "image", "url": "http://example.org/cat.png"},
        {"type": "image", "url": "file://example.org/share/cat.png"},
        {"type": "input_audio", "input_audio": {"data": "/etc/passwd.wav!"}},
        {"type": "image", "data": "no base64!"},
        {"type": "image_url", "image_url": {"url": "data:image/png,plain"}},
    ],
)
def test_what_comes_over_a_network_names_no_file_and_fetches_nothing(part: dict[str, Any]) -> None:
    with pytest.raises((TemplateError, MediaError)):
        content_of(part)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image"}, 'write {"type": "image", "image": a path'),
        ({"type": "audio", "audio": None}, 'a part of type "audio" is empty'),
        ({"type": "image", "image": {}}, 'a part of type "image" is empty'),
        ({"type": "image_url"}, 'a part of type "image_url" is empty'),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, 'a part of type "input_audio" is empty'),
        ({"type": "video", "video": "a.mp4"}, "videos are not supported"),
        ({"type": "image", "image": DATA, "budget": True}, "the budget of an image is True"),
    ],
)
def test_a_part_without_content_says_how_to_write_one(part: dict[str, Any], words: str) -> None:
    with pytest.raises(TemplateError, match=words):
        content_of(part)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(WORDS), JSON, max_size=6), st.sampled_from([*KINDS, "video"]))
def test_no_json_makes_it_stumble(part: dict[str, Any], kind: str) -> None:
    with suppress(Error):
        content = content_of({**part, "type": kind})
        contents(content.source, "picture", lambda data: None)


def test_a_file_url_names_a_file_of_this_machine_only() -> None:
    assert file_of("file:///a/b%20c.png") == file_of("file://localhost/a/b%20c.png") == Path("/a/b c.png")
    assert file_of("file://elsewhere/a.png") is file_of("https://x/a.png") is file_of("/a.png") is None
