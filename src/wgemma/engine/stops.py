"""Stop strings in a text stream: text that might start one is held back until it is known not to."""

from collections.abc import Sequence


class StopStrings:
    """Passes text through until one of `stops` appears, which is `found`. The stop string itself is never shown."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """The text that cannot be part of a stop string."""
        if self.found or not self._stops:
            return "" if self.found else text
        self._held += text
        places = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if places:
            at, self.found = min(places)
            shown, self._held = self._held[:at], ""
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
        """The text still held back when the stream ends."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """The length of the longest suffix of the held text that is a prefix of `stop`."""
        most = min(len(stop) - 1, len(self._held))
        return next((n for n in range(most, 0, -1) if self._held.endswith(stop[:n])), 0)
