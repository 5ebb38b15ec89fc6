"""Text from outside: store manifests, training data, messages, replies, options and URLs."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import wgemma
from fuzz.containers import GGUFS
from fuzz.harness import Reader
from fuzz.mutation import HUGE, ODD_TEXT, changed, json_bytes, odd
from wgemma.files.ollama import Store
from wgemma.text.reply import ReplyParser
from wgemma.train.data import read_data

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Oslo"}'}}
MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    {"role": "assistant", "content": "Hi", "tool_calls": [CALL], "reasoning_content": "hm"},
    {"role": "tool", "name": "weather", "tool_call_id": "1", "content": "rain"},
    {"role": "user", "content": "Thanks"},
]
LINES: list[Any] = [
    {"messages": MESSAGES, "tools": [TOOL]},
    {"prompt": "a", "completion": "b"},
    {"instruction": "a", "input": "", "output": "b"},
    {"input_ids": [2, 5, 6], "labels": [-100, 5, 6]},
]
OPTIONS: dict[str, Any] = {
    "max_tokens": 4,
    "stop": ["x"],
    "temperature": 0.5,
    "top_k": 5,
    "top_p": 0.5,
    "min_p": 0.1,
    "seed": 1,
    "repeat_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repeat_last_n": 8,
    "logit_bias": {5: -1.0},
    "logprobs": 2,
    "thinking_budget": 5,
    "think": True,
    "tools": [TOOL],
    "adapter": None,
}
MARKUP = (
    "<|channel>",
    "<channel|>",
    "thought",
    "<|tool_call>",
    "<tool_call|>",
    "call:",
    "{",
    "}",
    '<|"|>',
    ":",
    ",",
    "a",
)
PARAMS = {"temperature": 0.5, "top_k": 5, "stop": ["<turn|>"], "num_ctx": 512, "num_predict": 8, "seed": 3}


def manifest_reader(real: Path, scratch: Path) -> Reader:
    """A store of one model; its manifest and small layers are the attacker's."""
    store, name = scratch / "store", Path("manifests/registry.ollama.ai/library/gemma4/tiny")
    manifest = store / name
    manifest.parent.mkdir(parents=True)
    (store / "blobs").mkdir()
    good = json.loads((real / name).read_bytes())
    for layer in (good["config"], *good["layers"]):
        blob = Path("blobs") / layer["digest"].replace(":", "-")
        if layer["mediaType"].endswith("model"):
            (store / blob).write_bytes(GGUFS[0])  # quick to open
        else:
            shutil.copyfile(real / blob, store / blob)
    small = {layer["digest"]: layer["mediaType"].rpartition(".")[2] for layer in good["layers"] if layer["size"] < 5000}
    texts = {
        store / "blobs" / digest.replace(":", "-"): PARAMS if kind == "params" else MESSAGES
        for digest, kind in small.items()
        if kind in ("params", "messages")
    }

    def make(dice: Random) -> tuple[bytes, dict[Path, bytes]]:
        if dice.random() < 0.5:
            return json_bytes(good, dice), {}
        return json.dumps(good).encode(), {path: json_bytes(text, dice) for path, text in texts.items()}

    def examine(case: tuple[bytes, dict[Path, bytes]]) -> str:
        manifest.write_bytes(case[0])
        for path, data in case[1].items():
            path.write_bytes(data)
        Store(store).models()
        found = Store(store).model("gemma4:tiny")
        found.open().close()
        _ = found.params, found.system, found.template, found.licenses, found.messages, found.capabilities
        _ = found.projectors, found.adapters, found.parent, found.prompt_style
        return "opened"

    return Reader("manifest", 50, make, examine)


def readers(model: wgemma.Model) -> list[Reader]:
    def make_lines(dice: Random) -> bytes:
        return b"\n".join(json_bytes(dice.choice(LINES), dice) for _ in range(dice.randrange(1, 4)))

    def examine_lines(data: bytes) -> str:
        read = read_data(data, model.tokenizer, model.prompt_style, 512, skip_bad=True)
        return "read with bad lines" if read.bad else "read"

    def make_messages(dice: Random) -> tuple[Any, Any]:
        return changed(MESSAGES, dice), changed([TOOL], dice)

    def examine_messages(case: tuple[Any, Any]) -> str:
        list(model.chat(case[0], tools=case[1], max_tokens=1))
        return "answered"

    def make_reply(dice: Random) -> list[str]:
        return [
            "".join(dice.choices((*MARKUP, *ODD_TEXT), k=dice.randrange(1, 12))) for _ in range(dice.randrange(1, 5))
        ]

    def examine_reply(pieces: list[str]) -> str:
        parser = ReplyParser(think=True, tools=[TOOL])
        for piece in pieces:
            parser.feed(piece)
        parser.finish()
        return "parsed"

    def make_options(dice: Random) -> dict[str, Any]:
        options = changed(dict(dice.sample(sorted(OPTIONS.items()), 4)), dice)
        options = options if isinstance(options, dict) else {"stop": options}
        options[dice.choice(list(OPTIONS))] = odd(dice) if dice.random() < 0.8 else int(HUGE[:4000]) ** 3
        return {str(key): value for key, value in options.items()}

    def examine_options(options: dict[str, Any]) -> str:
        list(model.chat(MESSAGES, **options))
        return "answered"

    return [
        Reader("JSONL", 60, make_lines, examine_lines),
        Reader("messages", 50, make_messages, examine_messages),
        Reader("reply", 50, make_reply, examine_reply),
        Reader("options", 40, make_options, examine_options),
    ]
