"""The life of a serve mode request, as a table that both ends of the protocol follow."""

from collections.abc import Iterator
from enum import Enum, auto

from .events import CANCELLED, ERROR_CODES, NOT_FOUND


class RequestState(Enum):
    """Where an open request is; a request that is not open has no state."""

    SUBMITTED = auto()
    RUNNING = auto()


class Move(Enum):
    """What can happen to a request."""

    SUBMIT = auto()
    ACCEPT = auto()
    CONTROL = auto()
    DATA = auto()
    DONE = auto()
    ERROR = auto()


# (state before, move) -> state after; None is "not open". What is not here is not allowed.
TRANSITIONS: dict[tuple[RequestState | None, Move], RequestState | None] = {
    (None, Move.SUBMIT): RequestState.SUBMITTED,
    (RequestState.SUBMITTED, Move.ACCEPT): RequestState.RUNNING,
    (RequestState.SUBMITTED, Move.CONTROL): RequestState.SUBMITTED,
    (RequestState.SUBMITTED, Move.ERROR): None,
    (RequestState.RUNNING, Move.CONTROL): RequestState.RUNNING,
    (RequestState.RUNNING, Move.DATA): RequestState.RUNNING,
    (RequestState.RUNNING, Move.DONE): None,
    (RequestState.RUNNING, Move.ERROR): None,
    (None, Move.ERROR): None,
}

# About a running request these answer another command with its id (a second SUBMIT, a late STOP); it goes on.
REMARKS = frozenset(ERROR_CODES) - {CANCELLED}


class Requests:
    """The requests that are open, by id."""

    def __init__(self) -> None:
        self._states: dict[int, RequestState] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._states

    def apply(self, request_id: int, move: Move) -> None:
        """Make a move.

        Raises:
            ValueError: the table does not allow it; the message says what was tried on what.
        """
        before = self._states.get(request_id)
        if (before, move) not in TRANSITIONS:
            state = before.name.lower() if before else "not open"
            raise ValueError(f"{move.name} for request {request_id}, which is {state}")
        after = TRANSITIONS[before, move]
        if after is None:
            self._states.pop(request_id, None)
        else:
            self._states[request_id] = after

    def apply_error(self, request_id: int, code: str) -> None:
        """Make the move of an ERROR line, which ends a request unless it is a remark about a running one."""
        running = self._states.get(request_id) is RequestState.RUNNING
        if not (code == NOT_FOUND or (running and code in REMARKS)):
            self.apply(request_id, Move.ERROR)
