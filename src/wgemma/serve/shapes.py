"""Which API's JSON an error has, where only the address is known."""

from wgemma.serve import anthropic, ollama, openai
from wgemma.serve.exchange import Shape


def shape_for(path: str) -> Shape:
    if path.startswith("/v1/messages"):
        return anthropic.error
    return ollama.error if path == "/" or path.startswith("/api/") else openai.error
