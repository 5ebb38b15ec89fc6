"""What the Python side of the page tells it, without a page."""

import re
from importlib.resources import files

from wgemma.api import Part, Usage
from wgemma.worker import shown

TYPES = (files("wgemma.web") / "wgemma.d.ts").read_text("utf-8")


def promised(field: str) -> set[str]:
    """The keys that wgemma.d.ts promises of a part's field."""
    found = re.search(rf"{field}\?: \{{ (.*?) \}};", TYPES)
    assert found is not None
    return set(re.findall(r"(\w+):", found[1]))


def test_the_last_part_tells_all_that_the_types_promise() -> None:
    used = Usage(9, 4, 3, computed=5, prompt_seconds=0.5, generation_seconds=0.25, dropped=2)
    told = shown(Part("content", finish_reason="stop", usage=used))
    assert told["usage"] == {"prompt": 9, "reused": 4, "generated": 3, "dropped": 2}
    assert told["timing"] == {"firstToken": 500.0, "tokensPerSecond": 8.0}
    assert (told["usage"].keys(), told["timing"].keys()) == (promised("usage"), promised("timing"))
