"""Finding stop strings in a text that comes in pieces.

Each stop string has a Knuth-Morris-Pratt automaton that is fed one character at a time, so a piece
costs its own length and the result does not depend on how the text was cut.
"""

from collections.abc import Sequence


class _StopString:
    """One stop string and how much of it the text so far ends with."""

    def __init__(self, stop: str) -> None:
        if not stop:
            raise ValueError("a stop string must not be empty")
        self.stop = stop
        self.num_matched = 0
        self._fallback = _fallback_lengths(stop)

    def step(self, char: str) -> bool:
        """Feed one character; return whether the stop string is now complete."""
        while self.num_matched and self.stop[self.num_matched] != char:
            self.num_matched = self._fallback[self.num_matched - 1]
        if self.stop[self.num_matched] == char:
            self.num_matched += 1
        return self.num_matched == len(self.stop)


class StopMatcher:
    """Lets a text through up to the first stop string.

    The stop string that is complete first wins; of two complete at the same character, the longer.
    What could be the beginning of a stop string is held back until it is known not to be.

    Raises: ValueError for an empty stop string.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stops = [_StopString(text) for text in sorted(stop, key=len, reverse=True)]
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Take the next piece of the text and return what of it is safe to show."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        pending = self._held + text
        for index, char in enumerate(text, start=len(self._held) + 1):
            complete = [stop for stop in self._stops if stop.step(char)]
            if complete:
                self.stopped, self._held = True, ""
                return pending[: index - len(complete[0].stop)]
        num_safe = len(pending) - max(stop.num_matched for stop in self._stops)
        self._held = pending[num_safe:]
        return pending[:num_safe]

    def finish(self) -> str:
        """The text ends here: return what was held back."""
        held, self._held = self._held, ""
        return held


def _fallback_lengths(text: str) -> list[int]:
    """For each prefix of `text`: the length of its longest proper prefix that is also its
    suffix.
    """
    lengths = [0] * len(text)
    matched = 0
    for index in range(1, len(text)):
        while matched and text[index] != text[matched]:
            matched = lengths[matched - 1]
        if text[index] == text[matched]:
            matched += 1
        lengths[index] = matched
    return lengths
