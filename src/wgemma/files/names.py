"""The names of models, as Ollama writes them.

However a host is spelt, one model has one name: hf.co/user/repo:tag for what is on Hugging Face.
"""

import re
from dataclasses import dataclass

from wgemma.errors import StoreError
from wgemma.files.hub_names import hub_name
from wgemma.files.web import without_password

DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_TAG = "registry.ollama.ai", "library", "latest"
HUB = "hf.co"  # Hugging Face
_SPELLINGS = {
    **dict.fromkeys(("huggingface.co", "www.huggingface.co", "www.hf.co"), HUB),
    **dict.fromkeys(("ollama.com", "www.ollama.com"), DEFAULT_HOST),
}

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}")
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")


@dataclass(frozen=True, order=True, slots=True)
class Name:
    """A model's name in four parts; `parse` accepts only well-formed names."""

    host: str
    namespace: str
    model: str
    tag: str

    @classmethod
    def parse(cls, text: str) -> "Name":
        """`[scheme://][host/][namespace/]model[:tag]`, or an address on Hugging Face."""
        rest = _without_scheme(text)
        if is_on_hub(text):
            namespace, model, tag = hub_name(text, rest.partition("/")[2])
            return cls(HUB, namespace, model, tag or DEFAULT_TAG)
        tag = DEFAULT_TAG
        if rest.rfind(":") > rest.rfind("/"):
            rest, _, tag = rest.rpartition(":")
        parts = rest.split("/")
        if len(parts) > 3 or ("://" in text and (len(parts) < 3 or rest.lower().endswith(".gguf"))):
            raise _bad_name(text)
        model = parts[-1]
        namespace = parts[-2] if len(parts) > 1 else DEFAULT_NAMESPACE
        host = parts[-3] if len(parts) > 2 else DEFAULT_HOST
        forms = ((_HOST, host), (_NAMESPACE, namespace), (_PART, model), (_PART, tag))
        if not all(form.fullmatch(part) for form, part in forms):
            raise _bad_name(text)
        return cls(one_host(host), namespace, model, tag)

    def __str__(self) -> str:
        """The shortest spelling that means this name."""
        short = f"{self.model}:{self.tag}"
        if self.host != DEFAULT_HOST:
            return f"{self.host}/{self.namespace}/{short}"
        return short if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}/{short}"


def one_host(host: str) -> str:
    """The one spelling of a host that names have."""
    return _SPELLINGS.get(host.lower(), host.lower())


def is_on_hub(text: str) -> bool:
    """Whether this names something on Hugging Face."""
    return one_host(_without_scheme(text).partition("/")[0]) == HUB


def _without_scheme(text: str) -> str:
    return text.partition("://")[2] or text if "://" in text else text


def _bad_name(text: str) -> StoreError:
    reason = f"{without_password(text)!r:.200} is not a model name. Names look like gemma4, gemma4:e2b or me/model:tag."
    hint = " `wgemma run` takes the address of a .gguf file as it is." if "://" in text else ""
    return StoreError(reason + hint, "invalid_name")
