"""Every defect of ends and limits shows its symptom, and the healthy engine does not."""

from collections.abc import Callable, Iterator
from unittest import mock

import pytest

from engine_bindings.reference.defects import ends
from engine_bindings.wire import Accepted
from tests.engine_bindings.reference.defects.arms import (
    PROMPT,
    QUESTIONS,
    Arm,
    cold_text,
    prompting,
    render,
    submitting,
)
from tests.engine_bindings.reference.engine_fakes import FakeModel
from tests.engine_bindings.reference.engine_sessions import PROMPT as TEXT
from tests.engine_bindings.reference.engine_sessions import ServeSession

RIGHT = FakeModel().continue_greedily(PROMPT, 60)
Steps = Iterator[bytes | None]


class StuckError(Exception):
    pass


def words_follow_a_stop_at_the_cap(arm: Arm) -> bool:
    wrong = False
    for stop in sorted(set(RIGHT)):
        end = RIGHT.index(stop)
        for cap in range(end + 1, end + 5):
            bench = arm.bench(stops=frozenset({stop}), miss_every=1000)
            turn = bench.start(PROMPT, cap)
            while not bench.engine.step():
                pass
            said = bench.recorder.tokens[1]
            assert said[:end] == RIGHT[:end]
            differs = said != RIGHT[:end]
            assert turn.finish == ("length" if differs else "stop")
            assert turn.emitted == (cap if differs else end)
            wrong |= differs
    return wrong


def stops_are_said(arm: Arm) -> bool:
    wrong = False
    for stop in sorted(set(RIGHT)):
        assert arm.bench(depth=0, stops=frozenset({stop})).answer(PROMPT, 60) == RIGHT[: RIGHT.index(stop)]
        said = arm.bench(stops=frozenset({stop}), miss_every=1000).answer(PROMPT, 60)
        assert said == RIGHT[: len(said)]
        wrong |= stop in said
    return wrong


def a_stop_comes_too_late(arm: Arm) -> bool:
    def script(session: ServeSession) -> Steps:
        yield session.submit(1, max_tokens=40) + b"STOP 1\n"
        yield from session.wait()

    session = arm.serve(script)
    late = session.done(1).stat.emitted_tokens == 40
    assert session.refusals() == ([(1, "NOT_FOUND", ())] if late else [])
    return late


def a_cancel_comes_too_late(arm: Arm) -> bool:
    def script(session: ServeSession) -> Steps:
        yield session.submit(1, max_tokens=40) + b"CANCEL 1\n"
        yield from session.wait()

    codes = [code for _, code, _ in arm.serve(script).refusals()]
    assert codes in (["CANCELLED"], ["NOT_FOUND"])
    return codes == ["NOT_FOUND"]


def serve_mode_hides_the_cap(arm: Arm) -> bool:
    served = arm.serve(submitting(max_tokens=5)).done(1)
    chat = arm.chat(prompting(max_tokens=5)).replies()[0][1]
    assert chat.stat.length_limited is True
    assert served.stat.emitted_tokens == chat.stat.emitted_tokens == 5
    return served.stat.length_limited is False


def a_stop_is_called_length(arm: Arm) -> bool:
    bench = arm.bench(stops=frozenset({RIGHT[4]}))
    turn = bench.start(PROMPT, 60)
    while not bench.engine.step():
        pass
    assert turn.finish == "stop"
    assert turn.emitted < 60
    return bench.engine.rules.length_limited(turn.finish)


def the_end_of_the_context_is_a_crash(arm: Arm) -> bool:
    crashes = 0
    for context_tokens in range(45, 49):  # one of them is where a block does not fit exactly
        real = arm.real(context_tokens=context_tokens)
        prompt = real.encode(render(QUESTIONS[0]))
        room = context_tokens - len(prompt) - 1
        assert real.answer(prompt, room - 6)[0] == cold_text(prompt, room - 6)
        try:
            assert real.answer(prompt, 1000)[0] == cold_text(prompt, room)
        except ValueError:
            crashes += 1
    return crashes > 0


def a_rejected_draft_is_tried_for_ever(arm: Arm) -> bool:
    with mock.patch.object(ends.time, "sleep", side_effect=StuckError):
        assert arm.bench(miss_every=1000).answer(PROMPT, 20) == RIGHT[:20]
        try:
            arm.bench(miss_every=2).answer(PROMPT, 60)
        except StuckError:
            return True
    return False


def a_long_prompt_is_answered(arm: Arm) -> bool:
    text = TEXT + b" and so on" * 40
    served = arm.serve(submitting(text, max_tokens=2), CTX="64")
    chat = arm.chat(prompting(text, max_tokens=2), CTX="64")
    accepted = [event.prompt_tokens for event in served.of(Accepted)]
    counted = chat.replies()[0][1].stat.prompt_tokens
    assert (accepted, counted) in (([], 0), ([62], 62))
    return accepted == [62]


SYMPTOMS: dict[str, tuple[Callable[[Arm], bool], ...]] = {
    "cap-before-stop": (words_follow_a_stop_at_the_cap,),
    "stop-not-checked-on-accepted": (stops_are_said,),
    "stop-polled-at-turn-end": (a_stop_comes_too_late, a_cancel_comes_too_late),
    "finish-reason-at-admission": (serve_mode_hides_the_cap,),
    "length-for-other-reasons": (a_stop_is_called_length,),
    "no-clamp-at-window": (the_end_of_the_context_is_a_crash,),
    "reject-loop": (a_rejected_draft_is_tried_for_ever,),
    "silent-truncation": (a_long_prompt_is_answered,),
}


@pytest.mark.parametrize("name", SYMPTOMS)
def test_the_defect_shows_and_the_healthy_engine_does_not(name: str) -> None:
    for symptom in SYMPTOMS[name]:
        assert symptom(Arm(name))
        assert not symptom(Arm(None))
