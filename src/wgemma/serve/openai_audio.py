"""OpenAI's transcriptions: a recording in a form → what is said in it. A long one is transcribed piece by piece."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from wgemma.serve import openai
from wgemma.serve.ask import Ask, Transcribe, Whole
from wgemma.serve.bounds import BOUNDS
from wgemma.serve.content import Media
from wgemma.serve.exchange import Json, Streaming, failure, read_body, unless_gone
from wgemma.serve.forms import Form, parse_form
from wgemma.serve.problems import Problem, bad, problem_of
from wgemma.serve.service import Service
from wgemma.serve.wire import SSE, event
from wgemma.transcribing import MOST_TOKENS, prompt_for

FORMS = ("json", "text", "verbose_json", "srt", "vtt")


@dataclass(frozen=True, slots=True)
class Spoken:
    """What is said from `start` to `end`, in seconds."""

    start: float
    end: float
    text: str


def read_transcription(form: Form) -> Transcribe:
    model, sound = form.text("model"), form.values.get("file", b"")
    if not model or len(model) > BOUNDS.name:
        raise bad("model is missing.", "model")
    if not sound:
        raise bad("file is missing.", "file")
    Media().listen(sound, "file")
    written = form.text("response_format") or "json"
    if written not in FORMS:
        raise bad(f"response_format must be one of {', '.join(FORMS)}.", "response_format")
    try:
        temperature = float(form.text("temperature") or 0)
    except ValueError:
        temperature = -1.0
    if not 0 <= temperature <= 2:
        raise bad("temperature must be a number from 0 to 2.", "temperature")
    streams = form.text("stream").lower() in ("true", "1") and written == "json"
    return Transcribe(model, sound, temperature, written, streams)


async def transcribe(service: Service, request: Request) -> Response:
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise Problem(415, "Send the recording as multipart/form-data.")
    ask = read_transcription(parse_form(kind, await read_body(request)))
    service.find(ask.model)
    return Transcribing(service, ask)


async def pieces(service: Service, ask: Transcribe) -> AsyncGenerator[Spoken, None]:
    """What is said, piece by piece."""
    wanted = service.find(ask.model)
    with service.place():
        async with service.models.borrow(wanted) as lent:
            if not lent.model.hears:
                raise bad("This model cannot hear.", "model")
            sounds = await asyncio.to_thread(lent.model.cut_audio, ask.sound)
            prompt = prompt_for(wanted.files)
            start = 0.0
            for sound in sounds:
                question = [{"type": "audio", "audio": sound}, {"type": "text", "text": prompt}]
                chat = Ask(
                    ask.model,
                    [{"role": "user", "content": question}],
                    max_tokens=MOST_TOKENS,
                    sampling={"temperature": ask.temperature},
                )
                answer, end = Whole(), start + len(sound.samples) / sound.rate
                async with aclosing(service.answer_with(lent, chat)) as events:
                    async for one in events:
                        answer.add(one)
                yield Spoken(start, end, answer.choices[0].text.strip())
                start = end


class Transcribing(Response):
    """A transcript, whole or as it is written."""

    def __init__(self, service: Service, ask: Transcribe) -> None:
        self.service = service
        self.ask = ask
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(receive, self._answer(scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        streaming, found = Streaming(send, SSE), list[Spoken]()
        try:
            async with aclosing(pieces(self.service, self.ask)) as spoken:
                async for piece in spoken:
                    found.append(piece)
                    if self.ask.stream and piece.text:
                        gap = " " if len(found) > 1 else ""
                        await streaming.send([event({"type": "transcript.text.delta", "delta": gap + piece.text})])
            if self.ask.stream:
                await streaming.send([event({"type": "transcript.text.done", "text": _text(found)})])
                await streaming.end()
            else:
                await _written(found, self.ask.form)(scope, receive, send)
        except Exception as error:
            problem = problem_of(error)
            if not streaming.begun:
                await failure(openai.error, problem)(scope, receive, send)
            else:
                await streaming.send([event({"type": "error", **openai.error(problem)})])
                await streaming.end()


def _written(found: list[Spoken], form: str) -> Response:
    match form:
        case "text":
            return PlainTextResponse(_text(found) + "\n")
        case "srt":
            cues = [f"{i + 1}\n{_time(p.start, ',')} --> {_time(p.end, ',')}\n{p.text}\n" for i, p in enumerate(found)]
            return PlainTextResponse("\n".join(cues))
        case "vtt":
            cues = [f"{_time(p.start, '.')} --> {_time(p.end, '.')}\n{p.text}\n" for p in found]
            return PlainTextResponse("\n".join(["WEBVTT\n", *cues]), media_type="text/vtt")
        case "verbose_json":
            return Json(_verbose(found))
    return Json({"text": _text(found)})


def _verbose(found: list[Spoken]) -> dict[str, Any]:
    segments = [
        {
            "id": i,
            "seek": 0,
            "start": round(piece.start, 3),
            "end": round(piece.end, 3),
            "text": piece.text,
            "tokens": [],
            "temperature": 0.0,
            "avg_logprob": 0.0,
            "compression_ratio": 1.0,
            "no_speech_prob": 0.0 if piece.text else 1.0,
        }
        for i, piece in enumerate(found)
    ]
    duration = found[-1].end if found else 0.0
    return {"task": "transcribe", "language": "", "duration": duration, "text": _text(found), "segments": segments}


def _text(found: list[Spoken]) -> str:
    return " ".join(piece.text for piece in found if piece.text)


def _time(seconds: float, point: str) -> str:
    whole, thousandths = divmod(round(1000 * seconds), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{thousandths:03}"
