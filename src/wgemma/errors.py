"""The errors wgemma raises on purpose. Each message is written for the user and says what to do next."""


class Error(Exception):
    """The base class of all errors wgemma raises for its users."""

    def __str__(self) -> str:
        """The message, which any terminal can show: half of a surrogate pair, quoted from a file, is escaped."""
        return super().__str__().encode(errors="backslashreplace").decode()


class GgufError(Error):
    """A file is not a valid GGUF. The message has the byte offset and the reason."""


class CutOff(GgufError):
    """A GGUF is truncated: it ends before its header says it should."""


class PartsError(GgufError):
    """The parts of a GGUF are not all there, once each, and of one file."""


class SourceError(Error):
    """Bytes cannot be read: a missing file, a server that does not respond, a range outside the file."""


class StoreError(Error):
    """A name, manifest or blob of a stored model cannot be used.

    `reason` is a code for programs: not_found, not_in_registry, invalid_name, missing_blob, bad_blob, bad_manifest,
    invalid_digest, no_model_layer, unsupported_architecture, unsupported_format, bad_digest, bad_recipe, busy,
    no_space, not_written, not_allowed.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class TemplateError(Error):
    """Messages or tools cannot be rendered into a prompt."""


class ModelError(Error):
    """A model cannot be run: wrong architecture, or a key or tensor that is missing or does not fit the others."""


class AdapterError(Error):
    """An adapter cannot be used: damaged, of an unsupported kind, or made for another model."""


class MediaError(Error):
    """An image or sound cannot be read: damaged, too large, of an unsupported kind, or missing."""


class DeviceError(Error):
    """The GPU cannot be used, or was lost."""


class DeviceLost(DeviceError):
    """The GPU was lost: a driver reset, a closed lid, a closed device."""


class OutOfMemory(DeviceError):
    """The GPU is out of memory. The message has the numbers."""


class ContextOverflow(Error):
    """More tokens than fit in the context."""


class GrammarError(Error):
    """A schema, pattern or grammar cannot be enforced. The message names the keyword and where it stands."""


class SettingsError(Error):
    """A setting is out of range or does not exist."""


class BadLogits(Error):
    """The model computed NaN or Inf. The message names the first layer that did."""


class SessionError(Error):
    """A session cannot continue, or a saved one does not fit the model."""


class DataError(Error):
    """Examples cannot be trained on. The message lists the bad lines by number."""


class TrainingError(Error):
    """Training cannot continue: the loss is not finite, or a checkpoint cannot be written or does not fit."""
