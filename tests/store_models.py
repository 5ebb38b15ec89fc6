"""Models made in wgemma's store, and what goes wrong there."""

from typing import Any

import pytest

from gguf_writer import write_gguf
from registry_server import digest
from wgemma.creating import create
from wgemma.errors import StoreError
from wgemma.files.keeping import put_blob
from wgemma.files.ollama import StoredModel
from wgemma.files.recipes import Recipe
from wgemma.files.stores import Stores
from wgemma.model.audio_config import CHUNK, PROJECTION


def projector(width: int) -> bytes:
    """A projector for sounds, for a model so wide."""
    metadata = {"general.architecture": "clip", "clip.has_audio_encoder": True}
    return write_gguf(metadata, {f"{PROJECTION}.weight": ("F32", (CHUNK, width), None)})


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
