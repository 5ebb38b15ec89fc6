"""A disk that is full: the kernel refuses to write larger files."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
