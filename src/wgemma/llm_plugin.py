"""wgemma's models in `llm`, Simon Willison's command line tool: `llm -m wgemma/wgemma-tiny "What is 2+3?"`.

`pip install wgemma[llm]` registers this module as a plugin. It translates between llm's types and ours, in this process
and without a server; llm keeps the conversations, calls the tools and writes the logs. Nothing else imports it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Literal

import llm
from llm.models import EmbeddingModel
from llm.parts import AttachmentPart, ReasoningPart, StreamEvent, TextPart, ToolCallPart, ToolResultPart
from pydantic import Field

import wgemma
from wgemma.embedded import NAME, embedded_model
from wgemma.files.stores import Stores

PREFIX = "wgemma/"
FAMILY = "gemma4"
IMAGES = {"image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"}
SOUNDS = {
    "audio/wav",
    "audio/x-wav",
    "audio/wave",
    "audio/mpeg",
    "audio/mp3",
    "audio/flac",
    "audio/x-flac",
    "audio/ogg",
}


# -- which models there are


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    for name, aliases in model_names():
        register(Chat(name), AsyncChat(name), aliases=aliases)


@llm.hookimpl
def register_embedding_models(register: Callable[..., None]) -> None:
    for name, aliases in model_names():
        register(Embedding(name), aliases=aliases)


def model_names() -> Iterator[tuple[str, list[str]]]:
    """The embedded model and the Gemma 4 models in the stores, with their aliases in llm. No model file is opened: llm
    asks at every start."""
    if embedded_model():
        yield NAME, []
    try:
        stored = Stores.find().models()
    except (wgemma.Error, OSError):  # an unreadable store has nothing to offer
        return
    for model in stored:
        if model.details["family"] in (FAMILY, "", None):
            name = str(model.name)
            short = name.removesuffix(":latest")
            yield name, [PREFIX + short] if short != name else []


_loaded: dict[str, wgemma.Model] = {}
_loading = Lock()


def loaded(name: str) -> wgemma.Model:
    """The model of that name, loaded once per process."""
    with _loading:
        if name not in _loaded:
            _loaded[name] = wgemma.load(None if name == NAME else name)
        return _loaded[name]


@contextmanager
def told_to_llm() -> Iterator[None]:
    """Our errors as llm's, which it shows as a sentence."""
    try:
        yield
    except wgemma.Error as error:
        raise llm.ModelError(str(error)) from error


# -- from llm's prompt to our messages


def messages_of(prompt: llm.Prompt) -> list[dict[str, Any]]:
    """The whole chat. llm keeps the results of several calls in one message; here each has its own."""
    messages: list[dict[str, Any]] = []
    for message in prompt.messages:
        results = [part for part in message.parts if isinstance(part, ToolResultPart)]
        messages += map(_result, results)
        if len(results) < len(message.parts):
            messages.append(_message(message))
    return messages


def _message(message: llm.Message) -> dict[str, Any]:
    text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
    media = [_medium(part.attachment) for part in message.parts if isinstance(part, AttachmentPart) and part.attachment]
    # Gemma wants pictures and sounds before the question about them.
    said: dict[str, Any] = {
        "role": message.role,
        "content": [*media, {"type": "text", "text": text}] if media else text,
    }
    thinking = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    if thinking:
        said["thinking"] = thinking
    if calls:
        said["tool_calls"] = [
            {"id": call.tool_call_id, "function": {"name": call.name, "arguments": call.arguments}} for call in calls
        ]
    return said


def _medium(attachment: llm.Attachment) -> dict[str, Any]:
    kind = "audio" if attachment.resolve_type() in SOUNDS else "image"
    return {"type": kind, kind: attachment.content_bytes()}


def _result(result: ToolResultPart) -> dict[str, Any]:
    return {"role": "tool", "name": result.name, "tool_call_id": result.tool_call_id, "content": result.output}


def options_of(prompt: llm.Prompt) -> dict[str, Any]:
    """The options of `chat`."""
    options: dict[str, Any] = prompt.options.model_dump(exclude_none=True)
    if prompt.schema:
        options["format"] = prompt.schema
    if prompt.tools:
        options["tools"] = [_declaration(tool) for tool in prompt.tools]
    return options


def _declaration(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, llm.Tool):
        raise llm.ModelError(f"{tool.name} runs on a provider's server; a model on this computer cannot use it.")
    about = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": about}


# -- from our answer to llm's response


def events_of(part: wgemma.Part, response: Any) -> Iterator[StreamEvent]:
    """What llm is told of a part; calls and token counts go to the response itself."""
    if part.tool_call is not None:
        if part.tool_call.error is not None:
            raise llm.ModelError(f"the model's tool call cannot be read: {part.tool_call.error}")
        response.add_tool_call(llm.ToolCall(part.tool_call.name, part.tool_call.arguments))
    elif part.text:
        yield StreamEvent("reasoning" if part.kind == "thinking" else "text", part.text)
    if part.usage is not None:
        used = part.usage
        response.set_usage(input=used.prompt, output=used.generated, details={"cached_tokens": used.reused})


class Options(llm.Options):
    """The options of `chat` that fit on a command line; `chat` itself checks them."""

    temperature: float | None = Field(None, description="How freely to choose the next token; 0 takes the likeliest")
    top_k: int | None = Field(None, description="Choose among this many tokens")
    top_p: float | None = Field(None, description="Choose among the likeliest tokens of this total probability")
    min_p: float | None = Field(None, description="Leave out tokens this much less likely than the likeliest")
    repeat_penalty: float | None = Field(None, description="Make tokens less likely that were there before")
    presence_penalty: float | None = Field(None, description="Subtract this from tokens that were there before")
    frequency_penalty: float | None = Field(None, description="Subtract this for each time a token was there")
    seed: int | None = Field(None, description="The same seed gives the same answer")
    max_tokens: int | None = Field(None, description="The most tokens of the reply")
    stop: str | None = Field(None, description="End the reply before this string")
    think: bool | Literal["low", "medium", "high"] | None = Field(None, description="Think before the answer")
    thinking_budget: int | None = Field(None, description="The most tokens of a thought")


class _Known:
    """What both kinds of chat models tell llm."""

    can_stream = True
    supports_schema = True
    supports_tools = True
    attachment_types: set[str] | frozenset[str] = IMAGES | SOUNDS

    def __init__(self, name: str) -> None:
        self.name = name
        self.model_id = PREFIX + name


class Chat(_Known, llm.Model):
    """A model to chat with."""

    class Options(Options):
        pass

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[StreamEvent]:
        with told_to_llm(), loaded(self.name).chat(messages_of(prompt), **options_of(prompt)) as answer:
            for part in answer:
                yield from events_of(part, response)


class AsyncChat(_Known, llm.AsyncModel):
    """The same for event loops."""

    class Options(Options):
        pass

    async def execute(
        self, prompt: Any, stream: bool, response: Any, conversation: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        with told_to_llm():
            model = await asyncio.to_thread(loaded, self.name)
            async with model.achat(messages_of(prompt), **options_of(prompt)) as answer:
                async for part in answer:
                    for event in events_of(part, response):
                        yield event


class Embedding(EmbeddingModel):
    """A model as a source of embeddings."""

    batch_size = 32

    def __init__(self, name: str) -> None:
        self.name = name
        self.model_id = PREFIX + name

    def embed_batch(self, items: Iterable[str | bytes], *, key: str | None = None) -> Iterator[list[float]]:
        with told_to_llm():
            texts: list[Any] = list(items)
            yield from loaded(self.name).embed(texts).tolist()
