"""Ctrl-C while the command is still starting: it ends quietly, whatever is being imported."""

import os
import signal
import subprocess
import sys

import pytest

import wgemma

SCRIPT = ("-c", "import sys; from wgemma.cli import main; sys.exit(main())")  # as the installed script does it
MODULE = ("-m", "wgemma")
PATIENCE = 120


@pytest.mark.parametrize("start", [SCRIPT, MODULE])
@pytest.mark.parametrize("moment", ["argparse", "wgemma.engine.request", "wgemma.cli.chat_render"])
def test_ctrl_c_while_modules_are_imported_is_quiet(start: tuple[str, ...], moment: str) -> None:
    """Python tells each import on standard error; the prompt never comes, so nothing else ends it."""
    command = [sys.executable, "-X", "importtime", *start, "run"]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"}, **streams) as child:  # type: ignore[call-overload]
        assert child.stderr is not None
        for line in child.stderr:
            if line.split(b"|")[-1].strip().decode() == moment:
                break
        else:
            pytest.fail(f"{moment} was not imported")
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read()
        assert child.wait(PATIENCE) == 130
    told = [line for line in rest.splitlines() if not line.startswith(b"import time:")]
    assert told in ([], [b"Using wgemma-tiny, the tiny demonstration model that comes with wgemma."]), rest


def test_every_public_name_can_be_imported_and_asked_for() -> None:
    for name in wgemma.__all__:
        assert getattr(wgemma, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'lode'"):
        wgemma.lode  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_imports_no_engine() -> None:
    code = "import sys, wgemma.cli; print(sorted(name for name in sys.modules if name.startswith('wgemma')))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert eval(found) == ["wgemma", "wgemma.cli", "wgemma.errors", "wgemma.version"]
