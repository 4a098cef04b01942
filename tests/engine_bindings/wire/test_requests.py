import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.wire.events import CANCELLED, ERROR_CODES
from engine_bindings.wire.requests import TRANSITIONS, Move, Requests, RequestState

SUBMITTED, RUNNING = [Move.SUBMIT], [Move.SUBMIT, Move.ACCEPT]
# For every state, what is allowed and whether the request is open afterwards.
ALLOWED = {
    (): {Move.SUBMIT: True, Move.ERROR: False},
    tuple(SUBMITTED): {Move.ACCEPT: True, Move.CONTROL: True, Move.ERROR: False},
    tuple(RUNNING): {Move.CONTROL: True, Move.DATA: True, Move.DONE: False, Move.ERROR: False},
}


def requests_after(moves: tuple[Move, ...]) -> Requests:
    requests = Requests()
    for move in moves:
        requests.apply(7, move)
    return requests


@pytest.mark.parametrize("before", ALLOWED, ids=lambda moves: "-".join(move.name for move in moves) or "none")
@pytest.mark.parametrize("move", Move)
def test_each_move_in_each_state(before: tuple[Move, ...], move: Move) -> None:
    requests = requests_after(before)
    if move in ALLOWED[before]:
        requests.apply(7, move)
        assert (7 in requests) == ALLOWED[before][move]
    else:
        with pytest.raises(ValueError, match=f"{move.name} for request 7, which is"):
            requests.apply(7, move)
        assert (7 in requests) == bool(before)


def test_the_table_has_nothing_that_no_test_names() -> None:
    assert len(TRANSITIONS) == sum(map(len, ALLOWED.values()))


@pytest.mark.parametrize("code", [*ERROR_CODES, "OUT_OF_MEMORY"])
def test_which_errors_end_a_running_request(code: str) -> None:
    requests = requests_after(tuple(RUNNING))
    requests.apply_error(7, code)
    assert (7 in requests) == (code not in {CANCELLED, "OUT_OF_MEMORY"})


@pytest.mark.parametrize("code", ERROR_CODES)
def test_which_errors_end_a_request_that_was_not_accepted(code: str) -> None:
    requests = requests_after(tuple(SUBMITTED))
    requests.apply_error(7, code)
    assert (7 in requests) == (code == "NOT_FOUND")


@pytest.mark.parametrize("code", ERROR_CODES)
def test_an_error_about_no_open_request_changes_nothing(code: str) -> None:
    requests = Requests()
    requests.apply_error(0, code)
    assert len(requests) == 0


@given(moves=st.lists(st.tuples(st.integers(1, 3), st.sampled_from(Move))))
def test_requests_do_not_touch_each_other(moves: list[tuple[int, Move]]) -> None:
    together = Requests()
    apart = {number: Requests() for number in (1, 2, 3)}
    for request_id, move in moves:
        results = []
        for requests in (together, apart[request_id]):
            try:
                requests.apply(request_id, move)
                results.append("")
            except ValueError as error:
                results.append(str(error))
        assert results[0] == results[1]
    assert sorted(together) == sorted(each for requests in apart.values() for each in requests)


def test_states_are_those_of_the_table() -> None:
    assert {before for before, _ in TRANSITIONS} == {None, *RequestState}
