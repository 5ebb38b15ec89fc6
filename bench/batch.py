"""Compares `wgemma batch` with `chat_many`: `python bench/batch.py FILE --requests 1000 --words 480 --tokens 64`.

Both answer the same questions, each in a process of its own that has just loaded the model; loading is not counted.
Printed are the tokens per second of each, and their ratio. `--memory` also tells how much the resident memory of
`wgemma batch` grew between the first tenth of the requests and the last.

`--ray 1,2,4` measures something else: what a request costs besides the model, with so many of Ray's workers and without
Ray. Every request is refused by the translator, so no engine computes anything. The cost per request is the slope
between a fifth of the requests and all of them; what remains is the time to start Ray and load the models.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from serving import question

import wgemma


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model's name or file")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--words", type=int, default=480, help="of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="the most of an answer")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--memory", action="store_true", help="follow the memory; leaves chat_many out")
    parser.add_argument("--ray", type=lambda text: list(map(int, text.split(","))), default=[], metavar="1,2,4")
    parser.add_argument("--many", action="store_true", help=argparse.SUPPRESS)  # this process runs chat_many
    options = parser.parse_args()
    if options.many:
        print(json.dumps(many(options)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        report = (overheads if options.ray else measure)(options, Path(folder))
    print(json.dumps(report, indent=1))
    return 0


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    requests = folder / "requests.jsonl"
    write(requests, options, options.requests)
    here = batch(options, requests, folder / "here.jsonl")
    report = {"requests": options.requests, "batch": here}
    if not options.memory:
        command = [sys.executable, __file__, *sys.argv[1:], "--many"]
        other = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        ratio = here["tokens_per_s"] / other["tokens_per_s"]
        report |= {"chat_many": other, "batch of chat_many": round(ratio, 3)}
    return report


def overheads(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What a request costs besides the model."""
    report: dict[str, Any] = {"requests": options.requests}
    fewer, more = options.requests // 5, options.requests
    for workers in (0, *options.ray):
        words = ["--ray", "--workers", str(workers)] if workers else []
        times = []
        for count in (fewer, more):
            requests, results = folder / f"{count}.jsonl", folder / f"{count}-{workers}.jsonl"
            write(requests, options, count, temperature="hot")
            times.append(batch(options, requests, results, *words)["seconds"])
        each = (times[1] - times[0]) / (more - fewer)
        name = f"{workers} workers" if workers else "without Ray"
        report[name] = {"ms per request": round(1e3 * each, 3), "s to start": round(times[0] - fewer * each, 1)}
    return report


def write(path: Path, options: argparse.Namespace, count: int, temperature: object = 1) -> None:
    with path.open("w") as file:
        for i in range(count):
            asked = question(i, options.words)
            body = {"messages": asked, "max_tokens": options.tokens, "temperature": temperature}
            row = {"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(row) + "\n")


def batch(options: argparse.Namespace, requests: Path, results: Path, *more: str) -> dict[str, Any]:
    """`wgemma batch`'s own summary, and its memory."""
    command = [sys.executable, "-m", "wgemma", "batch", requests, "-o", results, "-m", options.model]
    command += ["--slots", str(options.slots), "--json", *more]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE) as process:
        sizes: list[tuple[int, int]] = []
        if options.memory:
            threading.Thread(target=follow, args=(process, results, sizes), daemon=True).start()
        said, _ = process.communicate()
    if process.returncode:
        sys.exit(process.returncode)
    summary: dict[str, Any] = json.loads(said)
    if sizes:
        tenth = options.requests // 10
        early = max(size for done, size in sizes if done <= 2 * tenth)
        late = max(size for done, size in sizes if done >= 9 * tenth)
        summary["MB resident"] = {"up to the second tenth": early, "in the last": late}
    return summary


def follow(process: "subprocess.Popen[bytes]", results: Path, sizes: list[tuple[int, int]]) -> None:
    """Notes (records, resident megabytes) while the process runs."""
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        try:
            size = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
            done = results.read_bytes().count(b"\n") if results.exists() else 0
        except (OSError, StopIteration):
            return
        sizes.append((done, int(size.split()[1]) // 1000))
        time.sleep(0.5)


def many(options: argparse.Namespace) -> dict[str, Any]:
    """The same questions to `chat_many`."""
    chats = (question(i, options.words) for i in range(options.requests))
    with wgemma.load(options.model, precision="fast", slots=options.slots) as model:
        begun = time.perf_counter()
        answers = model.chat_many(chats, max_tokens=options.tokens, temperature=1).answers
        seconds = time.perf_counter() - begun
    usages = [answer.usage for answer in answers]
    tokens, prompt = sum(used.generated for used in usages), sum(used.prompt for used in usages)
    return {"seconds": seconds, "prompt_tokens": prompt, "tokens": tokens, "tokens_per_s": tokens / seconds}


if __name__ == "__main__":
    sys.exit(main())
