"""How much one request may ask for. What exceeds a bound is refused by name before anything is computed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    body: int = 64 << 20  # bytes of a request's body
    blob: int = 1 << 38  # bytes of a file that is uploaded to the store
    bodies: int = 1 << 30  # bytes of all bodies that are being worked on
    values: int = 1 << 20  # commas and brackets of a body: parsing a million takes a moment, and nobody else runs
    pictures: int = 32
    pixels: int = 50_000_000  # of one picture
    seconds: float = 1800  # of all sounds together
    prompt: int = 2 << 20  # characters of all messages together: twice what fills the largest context
    messages: int = 4096
    tools: int = 256
    schema: int = 256 << 10  # characters of a schema or of all tool declarations
    n: int = 16
    prompts: int = 64  # of one completions request
    texts: int = 2048  # to embed
    stops: int = 16
    biases: int = 1024
    logprobs: int = 20
    tokens: int = 1 << 24  # no context is larger
    name: int = 400  # characters of a model's name


BOUNDS = Bounds()
