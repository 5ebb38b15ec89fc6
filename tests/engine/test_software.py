"""Software adapters: the processor as a GPU, against the same processor with NumPy."""

import time
from collections.abc import Callable

import pytest

import wgemma

PROMPT = [2, *(24 + 7 * i % 1900 for i in range(1867))]


def processor_seconds(work: Callable[[], object]) -> float:
    """The least of three; unlike the clock, it does not depend on what else the machine does."""
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def prompt_seconds(device: str | None) -> float:
    with wgemma.load(device=device, precision="fast") as model:

        def read() -> None:
            model.reset()
            assert model.generate(PROMPT, max_tokens=1).usage

        read()  # compiles what is needed
        return processor_seconds(read)


@pytest.mark.slow
def test_a_software_adapter_reads_prompts_at_least_as_fast_as_numpy() -> None:
    assert prompt_seconds(None) <= prompt_seconds("reference")
