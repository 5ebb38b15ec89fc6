"""The body of a request to create is a recipe, or refused."""

from typing import Any

import pytest

from store_models import made
from wgemma.errors import StoreError
from wgemma.files.recipes import recipe_from
from wgemma.files.stores import Stores


def test_a_request_is_a_recipe(stores: Stores) -> None:
    body = {
        "model": "mine",
        "from": "gemma4:tiny",
        "system": "Be brief.",
        "license": "MIT",
        "parameters": {"top_k": 3},
        "messages": [{"role": "user", "content": "Hi"}],
        "adapters": {},
        "stream": False,
    }
    model = made("mine", recipe_from(body))
    assert (model.system, model.params["top_k"], model.licenses[-1]) == ("Be brief.", 3, "MIT")
    assert recipe_from({"files": {"a.gguf": "sha256:" + "a" * 64}, "license": ["a", "b"]}).licenses == ["a", "b"]


@pytest.mark.parametrize(
    "body",
    [
        *({key: value} for key in ("from", "system", "files", "adapters", "parameters") for value in (5, ["x"])),
        *({key: "x"} for key in ("template", "quantize", "modelfile", "files", "messages", "parameters")),
        *({"messages": [5]}, {"license": 5}, {"license": [5]}, {"files": {"x": 5}}, {"files": {"x": "../x"}}),
    ],
)
def test_a_request_that_is_no_recipe_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        recipe_from(body)
