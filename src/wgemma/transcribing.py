"""How a model is asked to write down what is said."""

from wgemma.embedded import TITLE
from wgemma.files.gguf import Gguf
from wgemma.files.locate import ModelFiles

PROMPT = (
    "Transcribe this recording in the language that is spoken. Write only the words that are said, on one line, with "
    "punctuation, and numbers in digits. If nobody speaks, write nothing."
)
TINY_PROMPT = "Transcribe this."  # how the embedded model learnt to be asked (tools/tiny/listening.py)
MOST_TOKENS = 1024  # for half a minute: nobody speaks faster


def prompt_for(files: ModelFiles) -> str:
    """How this model wants to be asked; a copy of the embedded one, even fine-tuned, keeps its title."""
    with Gguf.open(files.model) as gguf:
        return TINY_PROMPT if gguf.metadata.get("general.name") == TITLE else PROMPT
