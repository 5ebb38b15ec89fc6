"""OpenAI's embeddings: lists of numbers, or the same as base64 of little-endian floats."""

import base64
from typing import TYPE_CHECKING, Any

from wgemma.serve.ask import Embed
from wgemma.serve.bounds import BOUNDS
from wgemma.serve.fields import Fields, model_of
from wgemma.serve.openai_completions import read_prompts
from wgemma.serve.problems import bad
from wgemma.serve.service import Service

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


async def embeddings(service: Service, fields: Fields) -> dict[str, Any]:
    form = fields.choice("encoding_format", ("float", "base64")) or "float"
    model = model_of(fields)
    texts = [
        one if isinstance(one, str) else await service.decode(model, one)
        for one in read_prompts(fields, "input", BOUNDS.texts)
    ]
    for i, text in enumerate(texts):
        if not text:
            raise bad(f"input[{i}] is empty.", "input")
    ask = Embed(model, texts, fields.whole("dimensions", 1, 1 << 20))
    vectors, count, _ = await service.embed(ask)
    return {
        "object": "list",
        "model": model,
        "data": [
            {"object": "embedding", "index": i, "embedding": written(vector, form)} for i, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }


def written(vector: "NDArray[np.float32]", form: str) -> Any:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode() if form == "base64" else vector.tolist()
