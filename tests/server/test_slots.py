from hypothesis import given
from hypothesis import strategies as st

from server.slots import Slots, shared_length

IDS = st.lists(st.integers(0, 2), max_size=12)


@given(IDS, IDS, IDS)
def test_shared_length(common: list[int], first: list[int], second: list[int]) -> None:
    a, b = [*common, *first], [*common, *second]
    shared = shared_length(a, b)
    assert shared >= len(common)
    assert a[:shared] == b[:shared]
    assert shared == min(len(a), len(b)) or a[shared] != b[shared]


def test_a_conversation_goes_on_where_it_is() -> None:
    slots = Slots(3)
    slots.record(0, [1, 2, 3, 4])
    slots.record(1, [1, 2, 9, 9])
    assert slots.choose({0, 1, 2}, [1, 2, 3, 4, 5]) == 0
    assert slots.choose({1, 2}, [1, 2, 9, 9, 5]) == 1


def test_a_shared_template_is_no_reason_to_overwrite_a_conversation() -> None:
    slots = Slots(2)
    slots.record(0, [1, 2, *range(10, 30)])
    assert slots.choose({0, 1}, [1, 2, 40]) == 1


def test_of_strangers_the_oldest_goes() -> None:
    slots = Slots(2)
    slots.record(0, [1, 2, 3])
    slots.record(1, [4, 5, 6])
    assert slots.choose({0, 1}, [7]) == 0
    slots.record(0, [1, 2, 3])
    assert slots.choose({0, 1}, [7]) == 1


def test_a_new_engine_holds_nothing() -> None:
    slots = Slots(1)
    slots.record(0, [1, 2, 3])
    slots.forget()
    assert slots.choose({0}, [1, 2, 3]) == 0
