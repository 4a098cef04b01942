"""Cutting an answer at the first stop string, also when the string spans several tokens."""

from collections.abc import Sequence

from server.markers import find_first, held_length


class StopScanner:
    """Passes text on until a stop string is complete; ``stopped`` says that one was found.

    Text that may be the beginning of a stop string is held back. Nothing of the string itself comes out.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Take more text and return what is certain to be part of the answer."""
        if not self._stops:
            return text
        if self.stopped:
            return ""
        text = self._held + text
        hit = find_first(text, self._stops)
        if hit is not None:
            self.stopped, self._held = True, ""
            return text[: hit[0]]
        keep = len(text) - held_length(text, self._stops)
        self._held = text[keep:]
        return text[:keep]

    def finish(self) -> str:
        """Return what was held back; the answer ended before it became a stop string."""
        held, self._held = self._held, ""
        return held
