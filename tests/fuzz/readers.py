"""All readers, ready to be attacked."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path

import wgemma
from fuzz import bodies, containers, media, network, pulling, state, texts
from fuzz.harness import Reader
from wgemma.engine.request import Request, Token
from wgemma.engine.runner import check_ids

STORE = Path(__file__).resolve().parent.parent / "data" / "ollama-store"
MODEL = "sha256-66002a3e60d3ad89de72fa3ee7512bf25fddef7294dfb4a32aaba01dba6b6457"


@contextmanager
def open_readers() -> Iterator[list[Reader]]:
    """The readers of every kind of outside bytes; shares add up to a thousand."""
    with (
        state.scratch_folder() as folder,
        wgemma.load(STORE / "blobs" / MODEL, context=512) as model,
        network.readers(Path(folder)) as networked,
    ):
        scratch = Path(folder)
        session = state.session_reader(model, scratch)
        _answer_nothing(model)
        yield [
            *containers.readers(),
            session,
            state.checkpoint_reader(scratch),
            *media.readers(),
            texts.manifest_reader(STORE, scratch),
            *texts.readers(model),
            *pulling.readers(),
            *networked,
            bodies.reader(model, scratch),
        ]


def _answer_nothing(model: wgemma.Model) -> None:
    """Checks requests as the engine does and prepares its sampler, but generates no token."""
    backend = model.backend
    runner = backend.runner

    async def generate(request: Request) -> AsyncGenerator[Token, None]:
        check_ids(request.ids, runner.engine.config.vocab_size, backend.context, runner.senses)
        runner.slots.sampler.begin(0, request.sampling, backend.context)
        for token in ():
            yield token

    backend.generate = generate  # type: ignore[method-assign]
