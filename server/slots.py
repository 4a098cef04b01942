"""What each slot of the engine holds, so that a conversation goes where its beginning already is."""

from collections.abc import Iterable, Sequence

Ids = Sequence[int]


class Slots:
    """The token ids in every slot, as far as the server knows, and when each was used last."""

    def __init__(self, count: int) -> None:
        self._history: list[tuple[int, ...]] = [()] * count
        self._used = [0] * count
        self._clock = 0

    def __len__(self) -> int:
        return len(self._history)

    def choose(self, free: Iterable[int], prompt: Ids) -> int:
        """Return the free slot whose content is worth most to the prompt, else the one used longest ago.

        Worth is the shared beginning less what would be lost: every prompt shares the template's first tokens
        with every slot, and that is no reason to overwrite another conversation.
        """
        return max(free, key=lambda slot: (self._worth(slot, prompt), -self._used[slot], -slot))

    def _worth(self, slot: int, prompt: Ids) -> int:
        history = self._history[slot]
        shared = shared_length(history, prompt)
        return max(0, shared - (len(history) - shared))

    def record(self, slot: int, ids: Iterable[int]) -> None:
        """Note what a turn left in its slot."""
        self._clock += 1
        self._history[slot], self._used[slot] = tuple(ids), self._clock

    def forget(self) -> None:
        """Forget everything: the engine is a new one."""
        self._history = [()] * len(self._history)


def shared_length(first: Ids, second: Ids) -> int:
    """Return how many items at the beginning are equal.

    >>> shared_length([1, 2, 3], [1, 2, 4, 5])
    2
    """
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if tuple(first[low:middle]) == tuple(second[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
