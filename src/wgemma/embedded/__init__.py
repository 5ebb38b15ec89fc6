"""The model that comes with wgemma: tiny, trained from scratch on a small world of its own (tools/tiny).

It is there so that a machine without any model can do the real job at once. In a web page it is a download like any
other, so this folder has no file there.
"""

from pathlib import Path

NAME = "wgemma-tiny"
TITLE = "wgemma tiny"  # `general.name` in the file
SHA256 = "c7da37c1f8623161c41481146916eeaa18a64ef829110abc22bd8dd2e7dee513"
_FILE = Path(__file__).parent / "wgemma-tiny.gguf"


def is_embedded(name: str) -> bool:
    """Whether this is its name, with or without the tag that Ollama's clients add."""
    return name.removesuffix(":latest") == NAME


def embedded_model() -> Path | None:
    """Where the embedded model lies; None where the package came without it."""
    return _FILE if _FILE.is_file() else None
