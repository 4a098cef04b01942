"""Delta debugging against made-up faults: what it reaches, and that it offers only cases that can be run."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.failing import Failing
from harness.identity import Difference
from harness.minimize import Case, Minimizer, is_valid, keep_turns
from harness.plan import Contrast
from harness.scenario import Conversation, Scenario, Turn, list_chain
from tests.harness.run_builders import CHAT_ON, SERVE_ON, make_scenario

Fault = Callable[[Case], bool]
CONTRAST = Contrast(name="path on", kind="path", a=CHAT_ON, b=SERVE_ON)


def turn(text: str, **changes: object) -> Turn:
    return replace(Turn(kind="user", text=text, max_tokens=64), **changes)  # type: ignore[arg-type]


def scenario_of(*conversations: tuple[Turn, ...]) -> Scenario:
    return make_scenario(
        conversations=tuple(
            Conversation(id=f"c{i}", category="chat", system="Be brief.", turns=turns)
            for i, turns in enumerate(conversations)
        )
    )


TALKS = scenario_of(
    (turn("a first line\nand a second one"), turn("more")),
    (turn("one two three"), turn("stay needle here\nand gone", expect=("x",)), turn("later"), turn("last")),
    (turn("never reached"),),
)


def failing_at(conversation: str, number: int, token_index: int | None = None) -> Failing:
    difference = Difference(field="tokens", byte_offset=3, token_index=token_index, a="'x'", b="'y'")
    return Failing(
        contrast=CONTRAST,
        symptom="tokens",
        verdict_class="state",
        scenario="quick",
        conversation=conversation,
        turn=number,
        prompt=None,
        difference=difference,
    )


def minimize(case: Case, first: Failing, fails: Callable[[Case], Failing | None]) -> tuple[Case | None, int]:
    minimizer = Minimizer(case, first)
    search = minimizer.search()
    offered = []
    step = next(search)
    try:
        while True:
            assert is_valid(step.case.scenario)
            assert step.case not in offered
            offered.append(step.case)
            step = search.send(fails(step.case))
    except StopIteration:
        return minimizer.best, len(offered)


def find(case: Case, test: Callable[[Turn], bool]) -> tuple[str, int] | None:
    for conversation in case.scenario.conversations:
        for number, candidate in enumerate(conversation.turns):
            if test(candidate):
                return conversation.id, number
    return None


def test_a_word_and_a_cap_are_all_that_is_left():
    def fails(case: Case) -> Failing | None:
        place = find(case, lambda t: "needle" in t.text and t.max_tokens >= 5)
        return failing_at(*place) if place else None

    settings = (("CTX", "512"), ("PROF", "1"))
    best, runs = minimize(Case(scenario=TALKS, depth=3, settings=settings), failing_at("c1", 1), fails)
    assert best is not None
    ((only,),) = (c.turns for c in best.scenario.conversations)
    assert (only.text.strip(), only.max_tokens, only.expect) == ("needle", 5, ())
    assert (best.depth, best.settings, best.scenario.conversations[0].system) == (1, (), None)
    assert runs < 60


def test_the_turn_that_a_fault_needs_before_it_stays():
    def fails(case: Case) -> Failing | None:
        for conversation in case.scenario.conversations:
            texts = [t.text for t in conversation.turns]
            for number, text in enumerate(texts):
                if "needle" in text and any("two" in before for before in texts[:number]):
                    return failing_at(conversation.id, number)
        return None

    best, _ = minimize(Case(scenario=TALKS, depth=3), failing_at("c1", 1), fails)
    assert best is not None
    (conversation,) = best.scenario.conversations
    assert [t.text.strip() for t in conversation.turns] == ["two", "needle"]
    assert [t.max_tokens for t in conversation.turns] == [1, 1]


def test_a_conversation_that_a_fault_needs_before_it_stays():
    def fails(case: Case) -> Failing | None:
        ids = [c.id for c in case.scenario.conversations]
        place = find(case, lambda t: "needle" in t.text)
        return failing_at(*place) if place and "c0" in ids else None

    best, _ = minimize(Case(scenario=TALKS, depth=3), failing_at("c1", 1), fails)
    assert best is not None
    assert [(c.id, len(c.turns)) for c in best.scenario.conversations] == [("c0", 1), ("c1", 1)]


def test_the_history_becomes_one_exact_prompt_where_that_still_fails():
    prompt = b"<|user|>one two three<|assistant|>A1<|user|>needle<|assistant|>"

    def fails(case: Case) -> Failing | None:
        place = find(case, lambda t: "needle" in t.text)
        if place is None or not (place[1] or find(case, lambda t: "A1" in t.text)):
            return None
        return replace(failing_at(*place), prompt=prompt)

    best, _ = minimize(Case(scenario=TALKS, depth=3), failing_at("c1", 1), fails)
    assert best is not None
    ((only,),) = (c.turns for c in best.scenario.conversations)
    assert (only.kind, best.scenario.conversations[0].system) == ("prompt", None)
    assert len(only.text) < len(prompt)


def test_the_known_place_of_the_difference_saves_the_search_for_the_cap():
    caps: list[int] = []

    def fails(case: Case) -> Failing | None:
        caps.append(max(t.max_tokens for c in case.scenario.conversations for t in c.turns))
        place = find(case, lambda t: "needle" in t.text and t.max_tokens >= 41)
        return failing_at(*place, token_index=40) if place else None

    only = scenario_of((turn("needle", max_tokens=4096),))
    minimize(Case(scenario=only, depth=1), failing_at("c0", 0), fails)
    assert 41 in caps
    assert not [cap for cap in caps if 41 < cap < 4096]


def test_caps_of_one_prompt_asked_twice_are_lowered_together():
    def fails(case: Case) -> Failing | None:
        (turns,) = (conversation.turns for conversation in case.scenario.conversations)
        caps = {each.max_tokens for each in turns}
        return failing_at("c0", 1) if len(turns) == 2 and caps == {min(caps)} and min(caps) >= 5 else None

    twice = scenario_of((turn("one prompt"), turn("one prompt", after=0, same_as=(1,))))
    best, _ = minimize(Case(scenario=twice, depth=1), failing_at("c0", 1), fails)
    assert best is not None
    assert [each.max_tokens for each in best.scenario.conversations[0].turns] == [5, 5]


def test_what_does_not_fail_again_is_given_up_after_three_tries():
    best, runs = minimize(Case(scenario=TALKS, depth=3), failing_at("c1", 1), lambda case: None)
    assert (best, runs) == (None, 3)


@pytest.mark.parametrize(
    ("kept", "after", "same_as"),
    [
        ((0, 1, 2, 3), (None, None, 1, 0), ((), (), (), (1,))),
        ((0, 2, 3), (None, None, 0), ((), (), (1,))),
        ((1, 2), (None, 0), ((), ())),
        ((1, 3), (None, 0), ((), ())),
        ((0, 3), (None, 0), ((), (1,))),
    ],
)
def test_kept_turns_keep_their_links(
    kept: tuple[int, ...], after: tuple[int | None, ...], same_as: tuple[tuple[int, ...], ...]
):
    talk = Conversation(
        id="c",
        category="chat",
        system=None,
        turns=(turn("a"), turn("b"), turn("c", after=1), turn("a", after=0, same_as=(1,))),
    )
    smaller = keep_turns(talk, kept)
    assert smaller is not None
    assert tuple(t.after for t in smaller.turns) == after
    assert tuple(t.same_as for t in smaller.turns) == same_as
    assert all(list_chain(smaller.turns, i)[-1] == i for i in range(len(kept)))


def test_what_both_arms_answer_alike_goes_into_the_prompt():
    common = b"one two three four five six seven eight"

    def fails(case: Case) -> Failing | None:
        (turn,) = case.scenario.conversations[0].turns
        said = turn.text.count(" ")
        if turn.max_tokens < 8 - said:
            return None
        return replace(failing_at("c0", 0), common=common[: 5 * turn.max_tokens])

    only = scenario_of((turn("p", kind="prompt"),))
    only = replace(only, conversations=(replace(only.conversations[0], system=None),))
    first = replace(failing_at("c0", 0), common=common)
    best, _ = minimize(Case(scenario=only, depth=1), first, fails)
    assert best is not None
    ((last,),) = (c.turns for c in best.scenario.conversations)
    assert (last.max_tokens, "seven" in last.text) == (1, True)


def test_a_cap_stays_above_the_cancel_and_a_void_case_has_room_for_drafts():
    void = replace(failing_at("c0", 0), symptom="void", difference=None)
    only = scenario_of((turn("a b c", cancel_after_tokens=4),))
    best, _ = minimize(Case(scenario=only, depth=3), failing_at("c0", 0), lambda case: failing_at("c0", 0))
    assert best is not None
    assert best.scenario.cap_tokens == 1
    best, _ = minimize(Case(scenario=only, depth=3), void, lambda case: void)
    assert best is not None
    assert (best.depth, best.scenario.cap_tokens) == (1, 3)


def test_what_is_declared_of_a_prefix_stays_where_the_prefix_is_what_fails():
    declared = replace(TALKS.conversations[0].turns[0], expect_prompt_tokens=9, expect_cached_tokens=4)
    only = scenario_of((declared,))
    first = replace(failing_at("c0", 0), verdict_class="prefix-reuse")
    best, _ = minimize(Case(scenario=only, depth=3), first, lambda case: first)
    assert best is not None
    assert best.scenario.conversations[0].turns[0].expect_cached_tokens == 4
