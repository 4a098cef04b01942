"""The decisions one by one, as properties."""

from hypothesis import given
from hypothesis import strategies as st

from engine_bindings.reference.rules import Block, Rules

RULES = Rules()
TOKENS = st.lists(st.integers(0, 3), max_size=12)
COUNTS = st.integers(0, 2000)


@given(TOKENS, TOKENS)
def test_the_prefix_is_the_longest_common_one(history: list[int], prompt: list[int]) -> None:
    matched = RULES.match_prefix(history, prompt)
    assert history[:matched] == prompt[:matched]
    assert history[matched : matched + 1] != prompt[matched : matched + 1] or matched == len(prompt)


@given(COUNTS, st.integers(1, 2000))
def test_prefill_covers_what_is_missing_once_and_at_least_one_row(matched: int, prompt_tokens: int) -> None:
    matched = min(matched, prompt_tokens)
    spans = RULES.prefill_spans(matched, prompt_tokens)
    rows = [row for start, end in spans for row in range(start, end)]
    assert rows == list(range(min(matched, prompt_tokens - 1), prompt_tokens))


@given(COUNTS, COUNTS)
def test_head_rows_below_the_last_kept_token_survive(draft_rows: int, length: int) -> None:
    kept = RULES.draft_rows_kept(draft_rows, length)
    assert kept == min(draft_rows, max(0, length - 1))


@given(TOKENS, st.frozensets(st.integers(0, 3)), st.integers(1, 12))
def test_a_block_ends_at_the_first_stop_or_at_the_cap(
    candidates: list[int], stops: frozenset[int], room: int
) -> None:
    block = RULES.cut_block(candidates, stops, room)
    kept = len(block.tokens)
    assert list(block.tokens) == candidates[:kept]
    assert not stops & set(block.tokens)
    assert kept <= room
    if block.finish == "stop":
        assert candidates[kept] in stops
        assert kept < room
    elif block.finish == "length":
        assert kept == room
    else:
        assert kept == len(candidates) < room


def test_a_stop_in_the_last_place_wins_over_the_cap() -> None:
    assert RULES.cut_block((5,), frozenset({5}), 1) == Block(tokens=(), finish="stop")


@given(TOKENS, TOKENS)
def test_accepted_is_a_prefix_and_nothing_behind_the_first_miss(drafts: list[int], chosen: list[int]) -> None:
    chosen = [*chosen, *[9] * (len(drafts) + 1)]
    accepted = RULES.count_accepted(drafts, chosen)
    assert drafts[:accepted] == chosen[:accepted]
    assert accepted == len(drafts) or drafts[accepted] != chosen[accepted]


@given(st.integers(0, 8), COUNTS, COUNTS)
def test_drafts_never_outgrow_cap_or_context(depth: int, room_tokens: int, room_rows: int) -> None:
    assert RULES.draft_depth(depth, room_tokens, room_rows) == min(depth, room_tokens, room_rows)


def test_no_room_means_no_drafts() -> None:
    assert RULES.draft_depth(3, -1, 5) == RULES.draft_depth(3, 5, -1) == 0


@given(st.integers(1, 5000), st.integers(16, 5000))
def test_a_prompt_that_fits_gets_a_token_and_the_context_holds_it(max_tokens: int, context: int) -> None:
    prompt = RULES.prompt_limit(context)
    limit = RULES.turn_limit(max_tokens, prompt, context)
    assert 1 <= limit <= max_tokens
    assert prompt + limit < context


def test_only_a_length_end_sets_the_flag() -> None:
    flags = {finish: RULES.length_limited(finish) for finish in ("stop", "length", "stopped", "cancelled")}
    assert flags == {"stop": False, "length": True, "stopped": False, "cancelled": False}
