"""Many generations in all kinds of trouble, on tiny models of every kind; tests/soak.py says what is checked."""

from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from one_sequence import engine_on
from random_towers import RandomTowers
from soak import Soak
from wgemma.constraints import Constraints, Wanted
from wgemma.engine.adapting import BARE, Adapters, Setting
from wgemma.engine.constraint import Constraint
from wgemma.engine.options import Options, most_pages
from wgemma.engine.runner import Runner
from wgemma.engine.senses import Senses
from wgemma.files.adapters import AdapterFile, Pair
from wgemma.files.gguf import Gguf
from wgemma.files.images import Pixels
from wgemma.gpu.device import Buffer
from wgemma.gpu.native import NativeDevice
from wgemma.model.cache import page_costs
from wgemma.model.config import Config, find_tensors
from wgemma.model.rows import pages_of
from wgemma.sync import run
from wgemma.text.grammar import compile_regex, compile_schema
from wgemma.text.parts import content_of
from wgemma.text.tokenizer import Tokenizer

SECONDS = 10
CONTEXT = 400
SLOTS = 5
ROOM = 2  # contexts that the arena holds, for five slots: somebody always has to make room
KINDS = {"e2b": "tiny-e2b-Q8_0", "12b": "tiny-12b-F16", "26b": "tiny-26b-a4b-Q4_K_M", "31b": "tiny-31b-Q4_K_M"}


def lora(gguf: Gguf, config: Config, name: str, seed: int) -> AdapterFile:
    """An adapter on all queries and feed-forward outputs."""
    dice, pairs = np.random.default_rng(seed), {}
    for tensor_name, tensor in find_tensors(config, gguf.tensors).items():
        if tensor_name.endswith(("attn_q.weight", "ffn_down.weight")):
            columns, rows = tensor.shape
            a, b = (array("f", dice.normal(0, 0.05, 4 * n).astype(np.float32).tobytes()) for n in (columns, rows))
            pairs[tensor_name] = Pair(4, columns, rows, a, b, 1.0)
    return AdapterFile(name, pairs, 4.0)


def constraints(tokenizer: Tokenizer) -> list[Constraint]:
    """Of JSON, with and without forced text, of a pattern, and of tool calls."""
    known = Constraints(tokenizer)
    texts = {"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 2, "maxItems": 3}
    person = {"type": "object", "properties": {"a long name": {"enum": [1, 2]}, "texts": texts}, "required": ["texts"]}
    tool = {"type": "function", "function": {"name": "find", "parameters": person}}
    made = [
        known.of(Wanted(compile_schema(person))),
        known.of(Wanted(compile_schema(person), forces=False)),
        known.of(Wanted(compile_regex("(a|bc|[^x-z]{2,5})*"), thinks=True)),
        known.of(Wanted(), [tool], "required"),
        known.of(Wanted(), [tool]),
    ]
    return [constraint for constraint in made if constraint is not None]


class World:
    """A runner with an arena that is too small, two adapters, and prompts that share their beginnings."""

    def __init__(self, device: NativeDevice, path: Path) -> None:
        gguf = Gguf.open(path)
        config = Config.from_gguf(gguf)
        costs = page_costs(config, "f32")
        images = config.image_attention == "both"
        options = Options(context=CONTEXT, kv="f32", slots=SLOTS, chunk=128, images=images)
        windows = most_pages(config, options, 0)[True] * costs[True]
        options = replace(options, arena=windows + ROOM * pages_of(CONTEXT) * costs[False])
        self.engine = engine_on(device, gguf, options)
        senses: Senses[Buffer] = Senses(RandomTowers(device, config.width), config.width)
        self.runner = Runner(self.engine, senses)
        adapters = Adapters()
        for seed, name in enumerate(("one", "two")):
            adapters = adapters.having(lora(gguf, config, name, seed), name, 1.0)
        run(self.engine.adapt(adapters))
        self.settings: list[Setting] = [BARE, BARE, adapters.choose("one"), adapters.choose({"one": 0.5, "two": -0.5})]
        dice, last = np.random.default_rng(5), min(config.vocab_size, 1000)
        words = [dice.integers(24, last, count).tolist() for count in (90, 150, 200)]
        picture = Pixels(1, 1, b"abcd")
        (media,) = run(senses.place([content_of({"type": "image", "image": picture, "budget": 70})]))
        seen = [2, 30, *media[0].numbers, 31, *words[0][:40]]
        self.stems = [[2, *words[0]], [2, *words[1]], [2, *words[1][:80], *words[2][:60]], seen]
        self.constraints = constraints(Tokenizer.from_gguf(gguf))


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, shared: Path, gpu: NativeDevice) -> Iterator[World]:
    made = World(gpu, shared / "models" / f"{KINDS[request.param]}.gguf")
    yield made
    made.runner.free()
    made.engine.free()


def soaked(world: World, seconds: float, seed: int) -> None:
    soak = Soak(world.runner, world.stems, world.settings, world.constraints, seed)
    soak.soak(seconds)
    assert soak.most > SLOTS
    world.runner.paging.prefixes.clear()
    assert [pages.held for pages in world.runner.paging.pages.values()] == [0, 0]


def test_every_generation_is_what_it_is_alone(world: World) -> None:
    soaked(world, SECONDS, seed=1)


@pytest.mark.slow
def test_every_generation_is_what_it_is_alone_for_long(world: World) -> None:
    for seed in range(5):
        soaked(world, 30, seed=100 + seed)
