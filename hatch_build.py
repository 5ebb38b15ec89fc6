"""Puts Pyodide into the wheel. From a source archive, which comes without it, the hook fetches it first."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PyodideHook(BuildHookInterface):  # type: ignore[type-arg]
    """An editable install needs nothing of this: there the Makefile sees to it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            sys.path.insert(0, str(Path(self.root) / "tools"))
            from fetch_pyodide import fetch

            fetch()
