"""How the server runs: what `wgemma serve` was given, and the environment variables of Ollama that mean the same."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wgemma.engine.options import SLOTS
from wgemma.errors import SettingsError, StoreError
from wgemma.files.names import Name
from wgemma.gpu.device import Device
from wgemma.model.matmul import Precision

KEEP_ALIVE = 300.0
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(ns|us|µs|ms|s|m|h)")


@dataclass(frozen=True, slots=True)
class Settings:
    """`adapters` are those that may be asked for as model+name; `extra` are models besides the store's."""

    precision: Precision = "fast"
    kv: str = "f16"
    device: Device | str | int | None = None
    context: int | None = None
    memory: int | None = None
    slots: int = SLOTS  # answers that a model writes at the same time
    queue: int = 512  # requests that may wait for a slot
    loaded: int = 3  # models in memory
    keep_alive: float = KEEP_ALIVE
    adapters: Mapping[str, Path] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()  # web pages that may use the server
    names: tuple[str, ...] = ()  # host names it answers to, besides loopback
    registries: tuple[str, ...] = ()  # that requests may pull from, besides Ollama's and Hugging Face
    key: str | None = None
    drain: int = 30  # seconds for open requests when the server ends


def seconds(value: Any) -> float | None:
    """A `keep_alive`: seconds, or Go's way to write a duration; negative is for ever. None if it is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return math.inf if value < 0 else float(min(value, 1e12))
    if not isinstance(value, str):
        return None
    text = value.strip()
    negative, text = text.startswith("-"), text.lstrip("+-")
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text):
        found = float(text)
    elif text and not _DURATION.sub("", text):
        found = sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))
    else:
        return None
    return math.inf if negative else found


def registry_host(text: str) -> str:
    """The host of a registry, as the names of models spell it."""
    host = re.sub("^https?://", "", text.strip().lower()).removesuffix("/")
    _, colon, port = host.partition(":")
    try:
        if colon and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 1 << 16):
            raise ValueError
        return Name.parse(f"{host}/library/any").host
    except (StoreError, ValueError):
        raise SettingsError(
            f"--registry {text!r:.80} is not a host; write registry.example, or localhost:5000."
        ) from None


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """The settings that Ollama's variables give."""
    found: dict[str, Any] = {}
    for name, variable, least in (
        ("slots", "OLLAMA_NUM_PARALLEL", 1),
        ("queue", "OLLAMA_MAX_QUEUE", 0),
        ("loaded", "OLLAMA_MAX_LOADED_MODELS", 1),
        ("context", "OLLAMA_CONTEXT_LENGTH", 1),
    ):
        text = environment.get(variable, "").strip()
        if not text or (text == "0" and least):  # 0 is Ollama's word for "choose yourself"
            continue
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
            raise SettingsError(f"{variable} is {text[:40]!r}; it must be a whole number of at least {least}.")
        found[name] = int(text)
    if "slots" in found:
        found["slots"] = min(found["slots"], 64)
    if text := environment.get("OLLAMA_KEEP_ALIVE", "").strip():
        kept = seconds(text)
        if kept is None:
            raise SettingsError(f"OLLAMA_KEEP_ALIVE is {text[:40]!r}; write 5m, 300, or -1 for ever.")
        found["keep_alive"] = kept
    if text := environment.get("OLLAMA_ORIGINS", "").strip():
        found["origins"] = tuple(origin.strip() for origin in text.split(",") if origin.strip())
    if text := environment.get("OLLAMA_KV_CACHE_TYPE", "").strip():
        if text not in ("f16", "f32"):
            raise SettingsError(f"OLLAMA_KV_CACHE_TYPE is {text[:40]!r}; wgemma has f16 and f32.")
        found["kv"] = text
    return found
