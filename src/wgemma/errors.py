"""Everything wgemma raises on purpose. Each message is a sentence to a person and says what to do next."""


class Error(Exception):
    """The root of all errors a user of wgemma may meet."""


class GgufError(Error):
    """A file is not the GGUF it should be. The message carries the byte offset and the reason."""


class CutOff(GgufError):
    """A GGUF that ends before its own header says it should."""


class SourceError(Error):
    """Bytes could not be had: a missing file, a server that does not answer, a range outside the file."""


class StoreError(Error):
    """A name, manifest or blob of the Ollama store cannot be used.

    `reason` is one word for machines: not_found, invalid_name, missing_blob, bad_manifest, invalid_digest,
    no_model_layer, unsupported_architecture, unsupported_format, bad_digest.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class TemplateError(Error):
    """Messages or tools that cannot be rendered into a prompt."""


class ModelError(Error):
    """A file that cannot be run: another architecture, a key or tensor that is missing or does not fit the others."""


class AdapterError(Error):
    """An adapter that cannot be used: damaged, of another kind, or made for another model."""


class MediaError(Error):
    """A picture or a sound that cannot be read: damaged, too large, of another kind, or not there."""


class DeviceError(Error):
    """The GPU cannot be used, or was lost."""


class DeviceLost(DeviceError):
    """The GPU went away: a driver reset, a closed lid, a device that was closed."""


class OutOfMemory(DeviceError):
    """The GPU has no room for what was asked. The message names the numbers."""


class ContextOverflow(Error):
    """More tokens than the context holds."""


class SettingsError(Error):
    """A setting outside its range, or one that does not exist."""


class BadLogits(Error):
    """The model computed NaN or Inf. The message names the first layer that did."""


class SessionError(Error):
    """A session that cannot go on, or a saved one that does not fit."""


class DataError(Error):
    """Examples that cannot be trained on. The message lists the bad lines by their numbers."""


class TrainingError(Error):
    """A training that cannot go on: a loss that is no number, a checkpoint that cannot be written or does not fit."""
