"""What goes wrong, as callers are told: a status and a sentence. Each API wraps it in its own JSON."""

import logging
import re

from wgemma.errors import (
    AdapterError,
    ContextOverflow,
    Error,
    GrammarError,
    MediaError,
    OutOfMemory,
    SessionError,
    SettingsError,
    StoreError,
    TemplateError,
)

log = logging.getLogger("wgemma.serve")

_CALLERS = (ContextOverflow, GrammarError, SettingsError, TemplateError)  # their sentences quote the request only
BAD_MEDIA = (
    "A picture or sound cannot be read: it is damaged, too large, or of another kind than PNG, JPEG, WebP, GIF, WAV, "
    "MP3, FLAC and Ogg."
)


class Problem(Exception):
    """An error response. `param` is the field of the request, `code` a word for programs; `close` ends the
    connection."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.close = close

    @property
    def headers(self) -> dict[str, str]:
        found = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return {**found, "Connection": "close"} if self.close else found


def bad(message: str, param: str | None = None) -> Problem:
    """The request is wrong."""
    return Problem(400, message, param=param)


def no_model(name: str) -> Problem:
    shown = name if len(name) <= 100 and name.isprintable() else "of that name"
    return Problem(404, f"model '{shown}' not found", param="model", code="model_not_found")


def problem_of(error: BaseException) -> Problem:
    """What a caller is told of an error. Whatever is not the caller's fault is logged and told in general words."""
    match error:
        case Problem():
            return error
        case MediaError():
            return bad(BAD_MEDIA)
        case StoreError(reason="not_found" | "invalid_name"):
            return Problem(404, "This model was not found.", param="model", code="model_not_found")
        case OutOfMemory():
            log.error("%s", error)
            return Problem(503, "There is not enough GPU memory for this.", code="out_of_memory", retry_after=30)
        case SessionError():
            log.info("%s", error)
            return Problem(503, "The model was unloaded in the meantime. Ask again.", code="unloaded", retry_after=1)
        case AdapterError():
            log.error("%s", error)
            return Problem(500, "The adapter cannot be used with this model.", code="bad_adapter")
        case ContextOverflow():
            return Problem(400, _sentence(error), code="context_length_exceeded")
        case Error() if isinstance(error, _CALLERS):
            return bad(_sentence(error))
        case Error():
            log.error("%s", error)
            return Problem(500, "The model cannot be run. The server's log says why.", code="model_failed")
    log.error("a request failed", exc_info=error)
    return Problem(500, "Something went wrong inside the server. Its log says what.", code="internal_error")


def _sentence(error: Error) -> str:
    """The message, as the start of a sentence and in JSON's words."""
    text = in_json(str(error))
    return text[:1].upper() + text[1:]


def in_json(text: str) -> str:
    """A text about values, in JSON's words."""
    return re.sub(r"\bTrue\b", "true", re.sub(r"\bFalse\b", "false", re.sub(r"\bNone\b", "null", text)))
