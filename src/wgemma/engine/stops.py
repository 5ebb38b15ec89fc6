"""Stop strings in a stream of text: what might be the start of one is held back until it is known not to be."""

from collections.abc import Sequence


class StopStrings:
    """Feeds text through until one of `stops` appears; `found` tells that it did. The stop itself is never shown."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """The text that is certain not to belong to a stop string."""
        if self.found or not self._stops:
            return "" if self.found else text
        self._held += text
        places = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if places:
            self.found = True
            shown, self._held = self._held[: min(places)], ""
            return shown
        keep = max(self._overlap(stop) for stop in self._stops)
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        return shown

    @property
    def pending(self) -> bool:
        """Whether text is held back."""
        return bool(self._held)

    def finish(self) -> str:
        """What was held back for a stop string that never came."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """The length of the longest end of the held text that begins `stop`."""
        most = min(len(stop) - 1, len(self._held))
        return next((n for n in range(most, 0, -1) if self._held.endswith(stop[:n])), 0)
