"""What a model's params layer may hold: the settings that Ollama knows."""

from typing import Any

from wgemma.checks import number, refuse_unknown, shown, texts, whole
from wgemma.errors import SettingsError
from wgemma.ranges import NUMBERS, WHOLE

# By what Ollama wants each to be. It ignores other keys, and so does wgemma.
_WHOLE = (
    "num_predict", "num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "seed", "top_k",
    "repeat_last_n",
)  # fmt: skip
_NUMBERS = (
    "temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
PARAMS = {
    **dict.fromkeys(_WHOLE, "a whole number"),
    **dict.fromkeys(_NUMBERS, "a number"),
    "use_mmap": "true or false",
    "stop": "a list of strings",
}
_LEAST = {"num_ctx": 0, "num_predict": -2}  # 0 is all that the model can; −1 and −2: no limit of its own


def is_kind(kind: str, value: Any) -> bool:
    """Whether a value is of a kind of `PARAMS`. JSON does not tell 64 from 64.0."""
    if kind == "true or false":
        return isinstance(value, bool)
    if kind == "a list of strings":
        return all(isinstance(text, str) for text in (value if isinstance(value, list) else [value]))
    if type(value) not in (int, float) or not abs(value) < 1 << 63:  # also true for NaN
        return False
    return kind == "a number" or value % 1 == 0


def lenient(key: str, value: Any) -> Any:
    """The value as wgemma takes it: 64.0 as 64, and a negative top_k, which to Ollama means all tokens, as 0."""
    value = int(value) if PARAMS[key] == "a whole number" else value
    return max(value, 0) if key == "top_k" else value


def check_param(key: str, value: Any) -> None:
    """Raises `SettingsError` for a setting that no model can run with."""
    refuse_unknown([key], PARAMS, "parameter")
    if not is_kind(PARAMS[key], value):
        raise SettingsError(f"{key} is {shown(value)}; it must be {PARAMS[key]}.")
    if key in NUMBERS:
        number(key, value, *NUMBERS[key])
    elif key in WHOLE:
        whole(key, lenient(key, value), *WHOLE[key])
    elif key in _LEAST:
        whole(key, value, _LEAST[key])
    elif key == "stop" and not all(texts(key, value)):
        raise SettingsError("a stop is empty; give the text that ends an answer, or leave it out.")
