"""Puts load on a running `wgemma serve`: `python bench/serving.py URL MODEL --clients 64 --seconds 60`.

Every client streams one chat after the other from /v1/chat/completions. `--cancel` is the chance that it leaves in the
middle of an answer; the last `--slow` clients read a few bytes at a time. Printed are the tokens and pieces per second
that arrived at the sockets, the times to the first piece and between two pieces, how far the full-speed client with the
fewest pieces, and the one with the fewest requests, are behind the mean, and every answer that was not well-formed.
Answers differ in length, so pieces are compared in runs of many answers per client, requests in any.

With `--requests N` the clients ask N questions in all, however long that takes. `python bench/serving.py FILE` asks
the same questions without a server, by `chat_many`, and prints its tokens per second to compare with.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import mean
from urllib.parse import urlsplit

import wgemma


@dataclass
class Client:
    """What one client saw."""

    slow: bool = False
    tokens: int = 0  # of complete answers
    pieces: int = 0
    answers: int = 0
    cancelled: int = 0
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of the server, or a file to run without one")
    parser.add_argument("model", nargs="?", default="wgemma-tiny")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--requests", type=int, help="ask so many instead")
    parser.add_argument("--tokens", type=int, default=64, help="the most of an answer")
    parser.add_argument("--words", type=int, default=50, help="of a prompt")
    parser.add_argument("--cancel", type=float, default=0.0)
    parser.add_argument("--slow", type=int, default=0)
    parser.add_argument("--key", default="")
    options = parser.parse_args()
    if not options.url.startswith("http"):
        print(json.dumps(without_server(options), indent=1))
        return 0
    clients = [Client(slow=i >= options.clients - options.slow) for i in range(options.clients)]
    begun = time.perf_counter()
    asyncio.run(_load(options, clients))
    report = summary(clients, time.perf_counter() - begun)
    print(json.dumps(report, indent=1))
    return 1 if report["failures"] else 0


async def _load(options: argparse.Namespace, clients: list[Client]) -> None:
    numbers = iter(range(options.requests)) if options.requests else _until(options.seconds)
    await asyncio.gather(*(_talk(options, client, numbers) for client in clients))


def _until(seconds: float) -> Iterator[int]:
    """Numbers for so many seconds."""
    end = time.perf_counter() + seconds
    for number in count():
        if time.perf_counter() > end:
            return
        yield number


async def _talk(options: argparse.Namespace, client: Client, numbers: Iterator[int]) -> None:
    for number in numbers:
        try:
            await _ask(options, client, number)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            client.failures.append(repr(error)[:200])
            await asyncio.sleep(0.1)


def question(number: int, words: int) -> list[dict[str, str]]:
    """A chat that asks something of its own."""
    dice = random.Random(number)
    said = " ".join(dice.choice(("red", "green", "one", "two", "cat", "dog")) for _ in range(words))
    return [{"role": "user", "content": f"{said}. Tell me more about it."}]


def without_server(options: argparse.Namespace) -> dict[str, object]:
    """The same questions to `chat_many`, as many at a time as there would be clients."""
    chats = [question(number, options.words) for number in range(options.requests or options.clients)]
    with wgemma.load(options.url, precision="fast", slots=options.clients) as model:
        rates = []
        for chosen in (chats[: options.clients], chats):  # the first round only warms up
            begun = time.perf_counter()
            answers = model.chat_many(chosen, max_tokens=options.tokens, temperature=1).answers
            rates.append(sum(answer.usage.generated for answer in answers) / (time.perf_counter() - begun))
    return {"requests": len(chats), "tokens per second": round(rates[-1], 1)}


async def _ask(options: argparse.Namespace, client: Client, number: int) -> None:
    """One chat; leaves in its middle if the dice say so."""
    where, dice = urlsplit(options.url), random.Random(-number - 1)
    body = json.dumps(
        {
            "model": options.model,
            "messages": question(number, options.words),
            "max_tokens": options.tokens,
            "temperature": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    leaves = dice.randrange(1, options.tokens) if dice.random() < options.cancel else None
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1 << 16)
    try:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.hostname}\r\nAuthorization: Bearer {options.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        begun = last = time.perf_counter()
        writer.write(head.encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise ValueError(status.decode().strip())
        pieces = 0
        async for line in reader:
            if line.startswith(b"data: [DONE]"):
                client.answers += 1
                return
            if not line.startswith(b"data: "):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise ValueError(str(chunk["error"]))
            if chunk.get("usage"):
                client.tokens += chunk["usage"]["completion_tokens"]
            if not chunk["choices"] or not chunk["choices"][0]["delta"].get("content"):
                continue
            now = time.perf_counter()
            (client.between if pieces else client.first).append(now - (last if pieces else begun))
            last, pieces = now, pieces + 1
            client.pieces += 1
            if pieces == leaves:
                client.cancelled += 1
                return
            if client.slow:
                await asyncio.sleep(0.5)
        raise ValueError("the answer has no end")
    finally:
        writer.close()


def summary(clients: list[Client], seconds: float) -> dict[str, object]:
    quick = [client for client in clients if not client.slow]
    rates = [client.pieces / seconds for client in quick]
    failures = [failure for client in clients for failure in client.failures]
    return {
        "clients": len(clients),
        "answers": sum(client.answers for client in clients),
        "cancelled": sum(client.cancelled for client in clients),
        "seconds": round(seconds, 1),
        "tokens per second": round(sum(client.tokens for client in quick) / seconds, 1),
        "pieces per second": round(sum(rates), 1),
        "slowest of the mean": of_the_mean(rates),
        "fewest requests of the mean": of_the_mean([client.answers + client.cancelled for client in quick]),
        "seconds to the first": percentiles([x for client in quick for x in client.first]),
        "seconds between two": percentiles([x for client in quick for x in client.between]),
        "failures": failures[:20],
    }


def of_the_mean(found: Sequence[float]) -> float:
    return round(min(found) / mean(found), 2) if any(found) else 0.0


def percentiles(found: list[float]) -> dict[str, float]:
    ranked = sorted(found) or [0.0]
    return {
        name: round(ranked[min(int(p * len(ranked)), len(ranked) - 1)], 4) for name, p in (("p50", 0.5), ("p99", 0.99))
    }


if __name__ == "__main__":
    sys.exit(main())
