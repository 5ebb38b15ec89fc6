"""The logits or the hidden state of every position of a sequence, some rows at a time."""

from collections.abc import AsyncGenerator, Iterator, Sequence

from wgemma.engine.adapting import BARE, Setting
from wgemma.engine.buckets import TILES
from wgemma.engine.programs import Finish
from wgemma.engine.runner import Runner, check_ids
from wgemma.engine.sequence import TokenSequence
from wgemma.engine.soft import outside
from wgemma.gpu.tape import Tape
from wgemma.sync import breathe


async def logits(
    runner: Runner, ids: Sequence[int], chunks: Sequence[int] = (), adapter: Setting = BARE
) -> AsyncGenerator[bytes, None]:
    """Yields f32 [rows, vocab], some rows at a time; computes all of `ids`, in passes of `chunks`."""
    check_ids(ids, runner.engine.config.vocab_size, runner.engine.context, runner.senses)
    most, sizes, images = runner.logit_rows, list(chunks), runner.images(ids)
    sequence, position = runner.paging.alone(adapter), 0
    try:
        while position < len(ids):
            size = min(sizes.pop(0) if sizes else most, most)
            end = outside(min(position + size, len(ids)), images)
            if end == position:  # an image larger than the pass
                end = next(end for start, end in images if start == position)
            finish: Finish = "logits" if runner.share(ids[position:end])[1] <= most else "settled"
            count = await runner.chunk(sequence, ids[position:end], finish)
            async for part in _read(runner, sequence, count, finish):
                yield part
            position += count
            await breathe()
    finally:
        runner.paging.drop(sequence)


async def hidden(runner: Runner, ids: Sequence[int], adapter: Setting = BARE) -> AsyncGenerator[bytes, None]:
    """Yields f32 [rows, width], some rows at a time: the last hidden state, after the final norm."""
    engine = runner.engine
    check_ids(ids, engine.config.vocab_size, engine.context, runner.senses)
    sequence, position = runner.paging.alone(adapter), 0
    try:
        while position < len(ids):
            count = await runner.chunk(sequence, ids[position:], "settled")
            yield await runner.device.read(engine.decoder.settled, 0, count * 4 * engine.config.width)
            position += count
            await breathe()
    finally:
        runner.paging.drop(sequence)


async def hidden_of(
    runner: Runner, texts: Sequence[Sequence[int]], adapter: Setting = BARE
) -> AsyncGenerator[tuple[int, bytes], None]:
    """`hidden` of several texts, as (number, rows) in their order; short ones share a pass."""
    engine, size = runner.engine, 4 * runner.engine.config.width
    for pack in packs([len(ids) for ids in texts], runner.pass_rows):
        if len(pack) == 1:
            async for part in hidden(runner, texts[pack[0]], adapter):
                yield pack[0], part
            continue
        some = [texts[number] for number in pack]
        for ids in some:
            check_ids(ids, engine.config.vocab_size, engine.context)
        rows = sum(map(len, some))
        await runner.whole(some, next(tile for tile in TILES if rows <= tile), adapter)
        data, at = await runner.device.read(engine.decoder.settled, 0, rows * size), 0
        for number, ids in zip(pack, some, strict=True):
            yield number, data[at : at + len(ids) * size]
            at += len(ids) * size
        await breathe()


def packs(lengths: Sequence[int], chunk: int) -> Iterator[range]:
    """Which texts share a pass of up to `chunk` rows, in their order."""
    most, first, rows = max((tile for tile in TILES if tile <= chunk), default=0), 0, 0
    for number, length in enumerate(lengths):
        if number > first and rows + length > most:
            yield range(first, number)
            first, rows = number, 0
        rows += length
    if first < len(lengths):
        yield range(first, len(lengths))


async def _read(runner: Runner, sequence: TokenSequence, count: int, finish: Finish) -> AsyncGenerator[bytes, None]:
    """The logits of the last pass; those of a settled pass are computed now, as many at a time as fit."""
    device, room, row_bytes = runner.device, runner.all_logits(), 4 * runner.engine.config.vocab_size
    if finish == "logits":
        yield await device.read(room, 0, count * row_bytes)
        return
    for first in range(0, count, runner.logit_rows):
        rows = min(runner.logit_rows, count - first)
        tape = Tape(device, "some logits")
        runner.engine.decoder.head_of_some(tape, first, rows, room, runner.engine.at_work(sequence.adapter))
        tape.program().replay()
        yield await device.read(room, 0, rows * row_bytes)
        tape.free()
