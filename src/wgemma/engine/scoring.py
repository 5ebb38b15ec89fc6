"""The logits or the hidden state of every position of a sequence, some rows at a time."""

from collections.abc import AsyncGenerator, Sequence

from wgemma.engine.programs import Finish
from wgemma.engine.runner import Runner, check_ids
from wgemma.engine.sequence import TokenSequence
from wgemma.engine.soft import outside
from wgemma.gpu.tape import Tape
from wgemma.sync import breathe


async def logits(
    runner: Runner, sequence: TokenSequence, ids: Sequence[int], chunks: Sequence[int] = ()
) -> AsyncGenerator[bytes, None]:
    """Yields f32 [rows, vocab], some rows at a time; computes the sequence from its start, in passes of `chunks`."""
    check_ids(ids, runner.engine.config.vocab_size, runner.engine.context, runner.senses)
    sequence.reset()
    await runner.enter(sequence)
    most, sizes, images = runner.logit_rows, list(chunks), runner.images(ids)
    position = 0
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


async def hidden(runner: Runner, sequence: TokenSequence, ids: Sequence[int]) -> AsyncGenerator[bytes, None]:
    """Yields f32 [rows, width], some rows at a time: the last hidden state, after the final norm."""
    engine = runner.engine
    check_ids(ids, engine.config.vocab_size, engine.context, runner.senses)
    sequence.reset()
    await runner.enter(sequence)
    position = 0
    while position < len(ids):
        count = await runner.chunk(sequence, ids[position:], "settled")
        yield await runner.device.read(engine.decoder.settled, 0, count * 4 * engine.config.width)
        position += count
        await breathe()


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
