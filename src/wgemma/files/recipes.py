"""What a model is to be made of, as Ollama's /api/create asks for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wgemma.errors import SettingsError, StoreError
from wgemma.files.keeping import checked_digest
from wgemma.files.layers import as_json
from wgemma.files.manifests import MAX_LAYERS, ROLES, is_message
from wgemma.files.modelfile import is_no_template
from wgemma.files.ollama import MAX_TEXT
from wgemma.files.params import check_param

INSTEAD = {  # of fields that older or other servers know
    "template": "wgemma renders Gemma's prompts itself",
    "quantize": "wgemma keeps files as they are",
    "modelfile": "send what it says in from, files, adapters, system, parameters, messages and license",
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model to create, as Ollama's /api/create asks for it. Files are named by the digests of blobs in wgemma's
    store; one of them is the model unless `base` is another model's name."""

    base: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)  # names → digests, of models, their parts, and projectors
    adapters: Mapping[str, str] = field(default_factory=dict)
    system: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Mapping[str, Any]] = ()
    licenses: Sequence[str] = ()

    def texts(self, params: Mapping[str, Any]) -> dict[str, list[bytes]]:
        """The contents of the layers that it asks for, by their kind; `params` are those of its base. An empty text
        takes the base's away; licenses add up."""
        texts = {}
        if self.system is not None:
            texts["system"] = [self.system.encode()] if self.system else []
        if self.parameters:
            texts["params"] = [as_json({**params, **self.parameters})]
        if self.messages:
            texts["messages"] = [as_json([dict(message) for message in self.messages])]
        if self.licenses:
            texts["license"] = [text.encode() for text in self.licenses if text]
        return texts


def recipe_from(fields: Mapping[str, Any]) -> Recipe:
    """The recipe in the body of Ollama's /api/create; raises `StoreError` for what is no recipe."""
    base, system = _text(fields, "from"), _text(fields, "system")
    for key, instead in INSTEAD.items():
        if (text := _text(fields, key)) and not (key == "template" and is_no_template(text)):
            raise StoreError(f"{key} is not supported: {instead}.", "bad_recipe")
    licenses = fields.get("license") or []
    licenses = [licenses] if isinstance(licenses, str) else licenses
    parameters, messages = fields.get("parameters") or {}, fields.get("messages") or []
    if not isinstance(licenses, list) or not all(isinstance(license, str) for license in licenses):
        raise StoreError("license must be a string or a list of strings.", "bad_recipe")
    if not isinstance(parameters, dict):
        raise StoreError("parameters must be an object.", "bad_recipe")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise StoreError("messages must be a list of objects.", "bad_recipe")
    files, adapters = _digests(fields, "files"), _digests(fields, "adapters")
    for key, found in (("license", licenses), ("files", files), ("adapters", adapters)):
        if len(found) > MAX_LAYERS:
            raise StoreError(f"{key} has {len(found)} items; the limit is {MAX_LAYERS}.", "bad_recipe")
    parameters = {key: value for key, value in parameters.items() if value is not None}
    return Recipe(base or None, files, adapters, system, parameters, messages, licenses)


def _text(fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise StoreError(f"{key} must be a string.", "bad_recipe")
    return value


def _digests(fields: Mapping[str, Any], key: str) -> dict[str, str]:
    value = fields.get(key) or {}
    if not isinstance(value, dict):
        raise StoreError(f"{key} must be an object of names and digests.", "bad_recipe")
    return {str(name): checked_digest(digest) for name, digest in value.items()}


def check_settings(recipe: Recipe) -> None:
    """Raises `StoreError` for settings and texts that no model can have."""
    for key, value in recipe.parameters.items():
        try:
            check_param(key, value)
        except SettingsError as error:
            raise StoreError(str(error), "bad_recipe") from None
    for i, message in enumerate(recipe.messages):
        if not is_message(message):
            reason = f"messages[{i}] must have a role ({', '.join(ROLES)}) and a text as its content."
            raise StoreError(reason, "bad_recipe")
    for kind, contents in recipe.texts({}).items():
        if sum(map(len, contents)) > MAX_TEXT:
            raise StoreError(f"{kind} is larger than {MAX_TEXT >> 20} MiB.", "bad_recipe")
