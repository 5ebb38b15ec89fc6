"""Ollama's chat and generate: JSON → Ask, Events → lines of JSON. Durations are in nanoseconds."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from wgemma.engine.endings import TokenLogprob
from wgemma.engine.thinking import LEVELS
from wgemma.serve.ask import Ask, Call, Event, Finish, Started, Text, Thinking, Whole
from wgemma.serve.bounds import BOUNDS
from wgemma.serve.content import Media, arguments, checked_chat, checked_tools, tool
from wgemma.serve.fields import Fields, model_of, sampling_of
from wgemma.serve.openai import tokens
from wgemma.serve.problems import Problem, bad
from wgemma.serve.settings import seconds
from wgemma.serve.wire import NDJSON, fresh_id, line

_ROLES = ("system", "developer", "user", "assistant", "tool")


# -- requests


def read_chat(fields: Fields) -> Ask:
    ask, media, tools = _read(fields), Media(), list[dict[str, Any]]()
    messages = _answered([_message(given, media) for given in fields.objects("messages", BOUNDS.messages)])
    for given in fields.objects("tools", BOUNDS.tools):
        function = given.object("function")
        if function is None:
            raise bad(f"{given.where} has no function.", given.where)
        tools.append(tool(function.needed("name"), function.text("description"), function.schema("parameters")))
    return replace(ask, messages=checked_chat(messages) if messages else [], tools=checked_tools(tools))


def read_generate(fields: Fields) -> Ask:
    fields.refuse("suffix", "the model continues text, it does not fill gaps.")
    fields.refuse("template", "templates are not executed; send a raw prompt.")
    fields.refuse("context", "send a chat to /api/chat instead.")
    ask, prompt, media = _read(fields), fields.text("prompt"), Media()
    if len(prompt) > BOUNDS.prompt:
        raise bad(f"prompt has {len(prompt)} characters; the limit is {BOUNDS.prompt}.", "prompt")
    if fields.flag("raw"):
        fields.refuse("images", "a raw prompt is text only.")
        fields.refuse("format", "a raw prompt is continued as it is.")
        return replace(ask, prompts=[prompt] if prompt else [], think=False)
    if not prompt and not fields.items("images", BOUNDS.pictures):
        return replace(ask, messages=[])
    messages: list[dict[str, Any]] = [{"role": "user", "content": _content(fields, prompt, media)}]
    if fields.text("system"):
        messages.insert(0, {"role": "system", "content": fields.text("system")})
    return replace(ask, messages=checked_chat(messages))


def is_empty(ask: Ask) -> bool:
    """Whether there is nothing to answer: the request only loads or unloads the model."""
    return not ask.messages and not ask.prompts


def keep_alive_of(fields: Fields) -> float | None:
    if not fields.has("keep_alive"):
        return None
    found = seconds(fields.any("keep_alive"))
    if found is None:
        raise fields.wrong("keep_alive", 'a number of seconds or a duration such as "5m"')
    return found


def _read(fields: Fields) -> Ask:
    """What chat and generate have in common."""
    options = fields.object("options") or Fields({}, "options")
    most = options.whole("num_predict", -2, BOUNDS.tokens)
    top = fields.whole("top_logprobs", 0, BOUNDS.logprobs)
    return Ask(
        model=model_of(fields),
        stream=fields.flag("stream", True),
        max_tokens=None if most is None or most < 0 else most,
        stop=options.stops("stop"),
        sampling=sampling_of(options),
        logprobs=(top or 0) if fields.flag("logprobs") else None,
        format=_format(fields),
        think=_thinks(fields),
        shift=fields.flag("shift", True) and fields.flag("truncate", True),
        keep_alive=keep_alive_of(fields),
        context=options.whole("num_ctx", 1, BOUNDS.tokens),
    )


def _format(fields: Fields) -> Any:
    given = fields.any("format")
    if isinstance(given, dict):
        return fields.schema("format")
    return fields.choice("format", ("json", "")) or None


def _thinks(fields: Fields) -> bool | str:
    if not isinstance(fields.any("think"), str):
        return fields.flag("think")
    level = fields.choice("think", (*LEVELS, "max", "true", "false", ""))
    return level if level in LEVELS else level in ("max", "true")


def _message(given: Fields, media: Media) -> dict[str, Any]:
    role = given.choice("role", _ROLES)
    if role is None:
        raise bad(f"{given.where}.role is missing.", given.where)
    message: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": _content(given, given.text("content"), media),
    }
    for key in ("thinking", "tool_name", "tool_call_id"):
        if given.text(key):
            message[key] = given.text(key)
    calls = []
    for call in given.objects("tool_calls", BOUNDS.tools):
        function = call.object("function")
        if function is None:
            raise bad(f"{call.where} has no function.", call.where)
        values = arguments(function.any("arguments"), function.path("arguments"))
        calls.append({"id": call.text("id"), "function": {"name": function.needed("name"), "arguments": values}})
    return {**message, "tool_calls": calls} if calls else message


def _answered(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, in which a tool's result without its call is the user's text: some clients leave calls out."""
    found, called = list[dict[str, Any]](), False
    for message in messages:
        if message["role"] != "tool":
            called = "tool_calls" in message
        found.append(message if called or message["role"] != "tool" else {**message, "role": "user"})
    return found


def _content(given: Fields, text: str, media: Media) -> Any:
    images = given.items("images", BOUNDS.pictures)
    if not images:
        return text
    seen = [media.either(image, f"{given.path('images')}[{i}]") for i, image in enumerate(images)]
    return [*seen, {"type": "text", "text": text}]


# -- answers


class LineWriter:
    """An answer in Ollama's form; `chat` says of which endpoint."""

    media_type = NDJSON

    def __init__(self, ask: Ask, *, chat: bool) -> None:
        self.ask = ask
        self.chat = chat
        self._begun = perf_counter()
        self._started = Started(0, 0)
        self._finish: Finish | None = None

    def begin(self) -> Iterable[str]:
        return ()

    def write(self, event: Event) -> Iterable[str]:
        match event:
            case Started():
                self._started = event
            case Text():
                yield line(self._record(event.text, logprobs=event.logprobs))
            case Thinking():
                yield line(self._record("", thinking=event.text))
            case Call():
                yield line(self._record("", calls=[event]))
            case Finish():
                self._finish = event

    def end(self) -> Iterable[str]:
        yield line(self._record("") | self._ending())

    def fail(self, problem: Problem) -> Iterable[str]:
        yield line(error(problem))

    def whole(self, answer: Whole) -> dict[str, Any]:
        choice, self._started = answer.choices[0], answer.started
        self._finish = Finish(choice.reason, answer.usage())
        record = self._record(choice.text, choice.thinking, choice.calls, choice.logprobs)
        return record | self._ending()

    def loaded(self, load_seconds: float) -> dict[str, Any]:
        """The answer to a request that only loads or unloads the model."""
        reason = "unload" if self.ask.keep_alive == 0 else "load"
        return self._record("") | {"done": True, "done_reason": reason, "load_duration": _nano(load_seconds)}

    def _record(
        self, text: str, thinking: str = "", calls: Sequence[Call] = (), logprobs: Sequence[TokenLogprob] = ()
    ) -> dict[str, Any]:
        record: dict[str, Any] = {"model": self.ask.model, "created_at": stamp()}
        said: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if calls:
            said["tool_calls"] = [_call(call) for call in calls]
        if self.chat:
            record["message"] = {"role": "assistant", "content": text, **said}
        else:
            record |= {"response": text, **said}
        if logprobs:
            record["logprobs"] = tokens(logprobs)
        return {**record, "done": False}

    def _ending(self) -> dict[str, Any]:
        assert self._finish is not None
        used = self._finish.usage
        return {
            "done": True,
            "done_reason": "length" if self._finish.reason == "length" else "stop",
            "total_duration": _nano(perf_counter() - self._begun),
            "load_duration": _nano(self._started.load_seconds),
            "prompt_eval_count": used.prompt,
            "prompt_eval_duration": _nano(used.prompt_seconds),
            "eval_count": used.generated,
            "eval_duration": _nano(used.generation_seconds),
        }


def _call(call: Call) -> dict[str, Any]:
    function = {"index": call.number, "name": call.name, "arguments": call.arguments}
    return {"id": fresh_id("call_"), "function": function}


def _nano(seconds: float) -> int:
    return round(1e9 * seconds)


def stamp(when: float | None = None) -> str:
    """A time as Ollama writes it."""
    moment = datetime.now(UTC) if when is None else datetime.fromtimestamp(when, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def error(problem: Problem) -> dict[str, Any]:
    return {"error": problem.message}
