"""Loses a device in the middle of things.

The thread that uses the device must be the one that loses it: a real loss leaves mapped memory alone, `destroy` does
not.
"""

from collections.abc import Callable
from typing import Any

import pytest


def lose_at(patch: pytest.MonkeyPatch, place: type, method: str, lose: Callable[[], None]) -> None:
    """Calls `lose` when an async method of `place` is next called."""
    real = getattr(place, method)

    async def losing(*given: Any) -> Any:
        patch.undo()
        lose()
        return await real(*given)

    patch.setattr(place, method, losing)
