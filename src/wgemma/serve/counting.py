"""How many tokens a prompt has, without computing it."""

from wgemma.api import Model
from wgemma.serve.ask import Ask
from wgemma.text.parts import content_of


def count_prompt(model: Model, ask: Ask) -> int:
    """The tokens of a chat's prompt; images and sounds count as many as they can take."""
    prompt = model._prelude.segments(
        list(ask.messages or ()), tools=ask.tools or None, think=bool(ask.think), size=model.prompt_style
    )
    media = [content_of(piece.media) for piece in prompt if piece.media is not None]
    texts = [(piece.text, piece.trusted) for piece in prompt if piece.media is None]
    return len(model.tokenizer.encode_segments(texts)) + sum(map(model.backend.weigh, media))
