"""Models made in wgemma's store, and what goes wrong there."""

from typing import Any

import pytest

from registry_server import digest
from wgemma.errors import StoreError
from wgemma.files.creating import create
from wgemma.files.keeping import put_blob
from wgemma.files.ollama import StoredModel
from wgemma.files.recipes import Recipe
from wgemma.files.stores import Stores


def put(stores: Stores, data: bytes) -> str:
    put_blob(stores.own, digest(data), [data])
    return digest(data)


def reason(work: Any) -> str:
    with pytest.raises(StoreError) as caught:
        list(work)
    return caught.value.reason


def made(name: str, recipe: Recipe) -> StoredModel:
    assert list(create(name, recipe))[-1] == {"status": "success"}
    model = Stores.find().own.model(name)
    model.verify()
    return model
