"""Finds where NaN or Inf came from: reruns the layers, one more each time, until a result is not finite."""

from wgemma.engine.programs import depth_of
from wgemma.engine.runner import Runner
from wgemma.engine.sequence import TokenSequence
from wgemma.gpu.tape import Tape
from wgemma.model.passes import Pass


async def damaged(runner: Runner, sequence: TokenSequence, token: int) -> str:
    """A sentence that names the first layer with a bad result for the token that follows the sequence."""
    engine, lows, position = runner.engine, runner.engine.at_work(sequence.adapter), len(sequence.ids)
    engine.weigh(sequence.adapter)
    await runner.put_rows(sequence, [token], position, 1)
    rows, arena = runner.prompt, runner.paging.arena
    names = ["the embedding", *(f"layer {i}" for i in range(len(engine.weights.layers)))]
    for count, name in enumerate(names):
        tape = Tape(engine.device, "blame")
        passing = Pass(tape, 1, rows.buffer, rows.tables, arena, depth_of(position + 1), lows)
        stream = engine.decoder.record(passing, layers=count)
        tape.program().replay()
        parts = [await engine.device.read(b, 0, 4 * engine.config.width) for b in (stream.h, stream.pending)]
        tape.free()
        if not all(map(_finite, parts)):
            whose = "its weights or the adapter's" if lows else "its weights"
            return f"the model computed NaN or Inf in {name} at position {position}: {whose} are damaged."
    return f"the logits contain NaN or Inf at position {position}: the output matrix is damaged."


def _finite(data: bytes) -> bool:
    words = memoryview(data).cast("I")
    return all(word & 0x7F800000 != 0x7F800000 for word in words)
