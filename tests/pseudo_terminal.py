"""Programs in a pseudo-terminal."""

import os
import pty
import select
import subprocess
import sys
import time

PATIENCE = 20.0  # seconds to wait for expected output
PASTE_MODE = ("\x1b[?2004h", "\x1b[?2004l\r")  # readline wants pastes to be marked, and no longer


class Terminal:
    """Python in a pseudo-terminal; `wgemma run` unless `program` says otherwise. `until` waits for a text and returns
    everything up to it."""

    def __init__(self, *arguments: str, program: tuple[str, ...] = ("-m", "wgemma", "run"), **environment: str) -> None:
        self.fd, theirs = pty.openpty()
        command = [sys.executable, *program, *arguments]
        env = {**os.environ, **environment}
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        # A separate session with this terminal in the foreground, so that ^C becomes SIGINT.
        self.process = subprocess.Popen(command, env=env, start_new_session=True, preexec_fn=_take_terminal, **streams)
        os.close(theirs)
        self.seen = ""  # and not asked for yet
        self.transcript = ""

    def until(self, text: str) -> str:
        deadline = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert self.hear(deadline - time.monotonic()), f"{text!r} did not come, but {self.seen!r}"
        before, _, self.seen = self.seen.partition(text)
        return before

    def hear(self, seconds: float) -> bool:
        """Whether anything more came within that time."""
        if not select.select([self.fd], [], [], max(0, seconds))[0]:
            return False
        try:
            new = os.read(self.fd, 65536)
        except OSError:  # the other end is closed
            return False
        text = new.decode(errors="replace")
        self.transcript += text
        self.seen = (self.seen + text).replace("\r\n", "\n")
        for switch in PASTE_MODE:
            self.seen = self.seen.replace(switch, "")
        return bool(new)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def paste(self, text: str) -> None:
        """What a terminal sends when text is pasted, while the program wants to know."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def say(self, line: str) -> str:
        """Enters a line, and gives what follows up to the next prompt."""
        self.type(line + "\n")
        self.until(line)
        return self.until(">>> ")

    def leave(self) -> int:
        """The exit code, once it has ended by itself."""
        while self.hear(PATIENCE):
            pass
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.fd)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
