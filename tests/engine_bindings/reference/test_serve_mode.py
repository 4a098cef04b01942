"""Serve mode in this process on the shipped checkpoint; nothing here depends on what the model says."""

from collections.abc import Iterator

import pytest

from engine_bindings.wire import Accepted, Data, Done, Note, Refused, TurnProfile
from tests.engine_bindings.reference.engine_sessions import PROMPT, PROMPT_TOKENS, ServeSession

Steps = Iterator[bytes | None]
LONG = PROMPT * 60


def run_one(max_tokens: int = 12, prompt: bytes = PROMPT, **environ: str) -> ServeSession:
    def script(session: ServeSession) -> Steps:
        yield session.submit(prompt=prompt, max_tokens=max_tokens)

    return ServeSession(script, **environ)


@pytest.mark.parametrize("depth", range(9))
def test_a_turn_is_accepted_framed_and_counted(depth: int) -> None:
    session = run_one(DRAFT=str(depth))
    stat, profile = session.done(1).stat, session.profiles()[0]
    assert session.status == 0
    assert (
        session.of(Accepted)[0].prompt_tokens == stat.prompt_tokens == profile.prompt_tokens == PROMPT_TOKENS
    )
    assert stat.emitted_tokens == len(session.tokens(1)) == profile.completion_tokens == 12
    assert stat.length_limited is True
    assert profile.forwards <= 12 if depth else profile.forwards == 12
    assert session.text(1) == run_one(DRAFT="0").text(1)


def test_the_block_before_a_done_has_the_engines_order() -> None:
    session = run_one(max_tokens=1)
    kinds = [e.kind if isinstance(e, Note) else type(e) for e in session.events]
    assert kinds[-6:] == [Data, "HWINFO", "TIERS", "EMAP", TurnProfile, Done]


@pytest.mark.parametrize("depth", ["0", "1", "3"])
def test_spec_line_and_profile_agree(depth: str, capfd: pytest.CaptureFixture[str]) -> None:
    session = run_one(max_tokens=40, DRAFT=depth, PROF="1")
    line = next(line for line in capfd.readouterr().err.splitlines() if line.startswith("[SPEC]"))
    drafted, accepted, forwards = (int(word.strip(",")) for word in line.split() if word.strip(",").isdigit())
    assert forwards == session.profiles()[0].forwards == 40 - accepted
    assert (drafted == 0) == (depth == "0")


@pytest.mark.parametrize("depth", ["0", "3"])
def test_a_stop_takes_effect_within_one_forward(depth: str) -> None:
    def script(session: ServeSession) -> Steps:
        yield session.submit(max_tokens=200)
        yield None
        yield None
        yield session.client.encode_stop(1)

    session = ServeSession(script, DRAFT=depth)
    stat = session.done(1).stat
    assert stat.emitted_tokens == len(session.tokens(1))
    assert 3 <= stat.emitted_tokens <= 3 * (1 + int(depth))
    assert session.profiles()[0].forwards == 3
    assert stat.length_limited is False


@pytest.mark.parametrize("depth", ["0", "3"])
def test_a_cancel_ends_without_done_and_keeps_the_kv(depth: str, capfd: pytest.CaptureFixture[str]) -> None:
    lines = []

    def script(session: ServeSession) -> Steps:
        yield session.submit(1, max_tokens=200)
        yield None
        yield session.client.encode_cancel(1)
        session.assert_history(PROMPT, session.text(1), len(session.tokens(1)))
        prompt = PROMPT + session.text(1) + b"!"
        lines.append(session.prefix_line(prompt))
        yield session.submit(2, prompt, max_tokens=2)

    session = ServeSession(script, DRAFT=depth)
    assert session.refusals() == [(1, "CANCELLED", ())]
    assert [done.request_id for done in session.of(Done)] == [2]
    assert lines[0] in capfd.readouterr().err


@pytest.mark.parametrize("end", ["cap", "stop"])
@pytest.mark.parametrize("depth", ["0", "1", "3", "8"])
def test_the_next_prompt_reuses_prompt_and_answer(
    end: str, depth: str, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = []

    def script(session: ServeSession) -> Steps:
        yield session.submit(1, max_tokens=10 if end == "cap" else 200)
        if end == "stop":
            yield None
            yield None
            yield session.client.encode_stop(1)
        yield from session.wait()
        session.assert_history(PROMPT, session.text(1), session.done(1).stat.emitted_tokens)
        prompt = PROMPT + session.text(1) + b"<|user|>"
        lines.append(session.prefix_line(prompt))
        yield session.submit(2, prompt, max_tokens=1)

    ServeSession(script, DRAFT=depth)
    assert lines[0] in capfd.readouterr().err
    assert "prefix 0/" not in lines[0]


def test_refusals_have_the_engines_codes() -> None:
    def script(session: ServeSession) -> Steps:
        yield session.submit(1, max_tokens=30)
        yield b"SUBMIT 2 0 1 1 0 1\na\nSUBMIT 1 1 1 1 0 1\na\nSTOP 7\nCANCEL 8\n"
        yield b"HELLO\nSUBMIT 0 0 3 4 0 1\nSTOP x\nSUBMIT 52 0 3 4 3 1\n"
        yield b"SUBMIT 51 9 3 4 0 1\nabc\nSUBMIT 54 0 3 4 0 1\na\0b\n"
        yield from session.wait()
        yield b"SUBMIT 53 0 0 4 0 1\n\n"

    session = ServeSession(script, KV_SLOTS="2")
    assert [(i, code) for i, code, _ in session.refusals()] == [
        (2, "SLOT_BUSY"), (1, "DUPLICATE_ID"), (7, "NOT_FOUND"), (8, "NOT_FOUND"), (0, "BAD_REQUEST"),
        (0, "BAD_REQUEST"), (0, "BAD_REQUEST"), (0, "BAD_REQUEST"), (51, "BAD_REQUEST"), (54, "BAD_REQUEST"),
        (53, "EMPTY_PROMPT"),
    ]  # fmt: skip
    assert session.done(1).stat.emitted_tokens == 30


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(capfd: pytest.CaptureFixture[str]) -> None:
    session = run_one(prompt=LONG, CTX="64")
    ((request_id, code, (seen, limit)),) = session.refusals()
    assert (request_id, code, limit) == (1, "CONTEXT_EXCEEDED", "62")
    assert int(seen) > 62
    assert f"prompt does not fit: >={seen} token, context is 62 (CTX=64)" in capfd.readouterr().err


def test_the_longest_prompt_that_fits_gets_one_token() -> None:
    def script(session: ServeSession) -> Steps:
        yield session.submit(1, b"<|user|>" * 62, max_tokens=9)
        yield from session.wait()
        yield session.submit(2, b"<|user|>" * 63)

    session = ServeSession(script, CTX="64", DRAFT="3")
    stat = session.done(1).stat
    assert (stat.emitted_tokens, stat.length_limited) == (1, True)
    session.assert_kv_is_cold()
    assert session.refusals() == [(2, "CONTEXT_EXCEEDED", ("63", "62"))]


def test_a_bad_frame_ends_the_input_and_running_turns_finish() -> None:
    def script(session: ServeSession) -> Steps:
        yield session.submit(1, max_tokens=20)
        yield None
        yield b"SUBMIT 2 1 3 4 0 1\nabcd\nSTOP 1\n"

    session = ServeSession(script, KV_SLOTS="2")
    assert session.refusals() == [(2, "BAD_FRAME", ())]
    assert session.done(1).stat.emitted_tokens == 20
    assert session.status == 0


def test_the_end_of_input_lets_running_turns_finish() -> None:
    assert run_one(max_tokens=50).done(1).stat.emitted_tokens == 50


def test_a_half_written_command_does_not_stall_the_turn() -> None:
    def script(session: ServeSession) -> Steps:
        yield session.submit(1, max_tokens=10)
        yield b"STO"
        yield from session.wait()
        assert len(session.of(Done)) == 1
        yield b"P 1\n"

    assert ServeSession(script, DRAFT="0").refusals() == [(1, "NOT_FOUND", ())]


@pytest.mark.parametrize("slots", [2, 5, 16])
def test_slots_answer_together_what_each_answers_alone(slots: int) -> None:
    prompts = [PROMPT.replace(b"9", str(20 + i).encode()) for i in range(slots)]

    def script(session: ServeSession) -> Steps:
        for i, prompt in enumerate(prompts):
            yield session.submit(i + 1, prompt, slot=i, max_tokens=10 + i)

    session = ServeSession(script, KV_SLOTS=str(slots), DRAFT="3")
    for i, prompt in enumerate(prompts):
        alone = run_one(prompt=prompt, max_tokens=10 + i, DRAFT="3")
        assert session.tokens(i + 1) == alone.tokens(1)
        assert session.done(i + 1).stat.length_limited is True
        session.assert_history(prompt, session.text(i + 1), 10 + i, slot=i)
    assert all(profile.forwards == profile.completion_tokens for profile in session.profiles())


def test_frames_of_two_slots_interleave() -> None:
    def script(session: ServeSession) -> Steps:
        yield session.submit(1, slot=0)
        yield session.submit(2, slot=1)

    ids = [event.request_id for event in ServeSession(script, KV_SLOTS="2").of(Data)]
    assert ids[:5] == [1, 1, 2, 1, 2]


def test_several_slots_switch_speculation_off_and_say_so(capfd: pytest.CaptureFixture[str]) -> None:
    session = run_one(KV_SLOTS="2", DRAFT="3")
    assert session.profiles()[0].forwards == 12
    assert session.mode.runtime.describe_head().state == "disabled"
    assert b"MTP DISABLED (multiplexed serve) (draft=0)" in session.mode.runtime.build_banner()
    assert "speculation active" not in capfd.readouterr().err


def test_one_slot_says_that_it_speculates(capfd: pytest.CaptureFixture[str]) -> None:
    run_one(DRAFT="3")
    assert "[MTP] single-slot serve: speculation active (draft=3)\n" in capfd.readouterr().err


def test_an_interrupt_ends_the_turns_and_serving_goes_on() -> None:
    def script(session: ServeSession) -> Steps:
        yield session.submit(1, max_tokens=100)
        yield None
        session.flags.interrupted = True
        yield None
        yield session.submit(2)

    session = ServeSession(script, DRAFT="0")
    first = session.done(1).stat
    assert (first.emitted_tokens, first.length_limited) == (3, False)
    assert session.done(2).stat.emitted_tokens == 12


def test_termination_ends_the_turns_and_the_process() -> None:
    def script(session: ServeSession) -> Steps:
        yield session.submit(1, max_tokens=100)
        session.flags.interrupted = session.flags.terminated = True
        yield None

    session = ServeSession(script, DRAFT="0")
    assert session.done(1).stat.emitted_tokens == 2
    assert session.status == 0


@pytest.mark.parametrize("depth", ["0", "2", "8"])
def test_sampled_text_depends_on_seed_and_prompt_only(depth: str) -> None:
    def script(session: ServeSession) -> Steps:
        for i in (1, 2):
            yield session.submit(i, temperature=2.0, top_p=1.0, max_tokens=30)
            yield from session.wait()

    session = ServeSession(script, DRAFT=depth, SEED="11")
    assert session.tokens(1) == session.tokens(2) == ServeSession(script, DRAFT="0", SEED="11").tokens(1)
    assert session.tokens(1) != ServeSession(script, DRAFT=depth, SEED="12").tokens(1)


def test_the_stop_set_is_the_end_of_text_unless_all_are_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    run_one(max_tokens=1)
    few = capfd.readouterr().err
    run_one(max_tokens=1, COLI_SERVE_ALL_STOPS="1")
    every = capfd.readouterr().err
    assert "[stop] 1 stop tokens: " in few
    assert "filtered" in few
    assert "from the tokenizer's special set" in every
    assert "filtered" not in every


LONGER = PROMPT * 150
CHUNK_TOKENS = 256


@pytest.mark.parametrize("word", ["cancel", "stop"])
@pytest.mark.parametrize("depth", ["0", "3"])
def test_a_turn_ends_within_one_chunk_of_its_prompt(word: str, depth: str) -> None:
    """The script is asked once between two chunks; the next prompt then finds exactly what was computed."""

    def script(session: ServeSession) -> Steps:
        yield session.submit(prompt=LONGER)
        yield None
        yield getattr(session.client, f"encode_{word}")(1)
        assert session.mode.engine.slots[0].length == 2 * CHUNK_TOKENS
        session.assert_kv_is_cold()
        yield session.submit(2, max_tokens=1)

    session = ServeSession(script, DRAFT=depth, CTX="4096")
    if word == "cancel":
        assert session.refusals() == [(1, "CANCELLED", ())]
    else:
        stat = session.done(1).stat
        assert (stat.emitted_tokens, stat.length_limited, session.refusals()) == (0, False, [])
    assert session.done(2).stat.emitted_tokens == 1
    session.assert_kv_is_cold()


def test_a_command_for_another_turn_waits_until_a_prompt_is_read() -> None:
    def script(session: ServeSession) -> Steps:
        yield session.submit(prompt=LONGER, max_tokens=50)
        yield b"CANCEL 7\nSUBMIT 1 0 2 1 0 1\nhi\nCANCEL 1\n"
        while session.mode.engine.active or not session.of(Refused):
            yield None

    session = ServeSession(script, CTX="4096")
    assert [refusal[:2] for refusal in session.refusals()] == [
        (7, "NOT_FOUND"),
        (1, "SLOT_BUSY"),
        (1, "CANCELLED"),
    ]


def test_the_input_may_end_between_two_chunks() -> None:
    session = run_one(prompt=LONGER, max_tokens=3, CTX="4096")
    assert session.status == 0
    assert session.done(1).stat.emitted_tokens == 3


def test_an_interrupt_ends_a_prompt_between_two_chunks() -> None:
    def script(session: ServeSession) -> Steps:
        yield session.submit(prompt=LONGER)
        session.flags.interrupted = True
        yield None

    session = ServeSession(script, CTX="4096")
    assert session.done(1).stat.emitted_tokens == 0
    assert session.mode.engine.slots[0].length == 2 * CHUNK_TOKENS
