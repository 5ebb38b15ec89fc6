"""How often this process was forked off another. A GPU, its threads and held locks belong to the process that opened
them: a child that used them would wait forever."""

import os

count = 0


def _forked() -> None:
    global count
    count += 1


if hasattr(os, "register_at_fork"):  # not on Windows, nor in a web page
    os.register_at_fork(after_in_child=_forked)
