"""Every defect of paths, transport, reuse and honesty shows its symptom, and the healthy engine does not."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from engine_bindings.reference.defects.defect import Seeded
from engine_bindings.wire import MuxClient
from engine_bindings.wire.errors import WrongProtocol
from tests.engine_bindings.reference.defects.arms import PROMPT, QUESTIONS, Arm, ask_all, render, submitting
from tests.engine_bindings.reference.engine_fakes import FakeModel
from tests.engine_bindings.reference.engine_sessions import PROMPT as TEXT
from tests.engine_bindings.reference.test_host import clean_environment

RIGHT = FakeModel().continue_greedily(PROMPT, 60)
SERVE = {"SERVE_BATCH": "1"}


def serve_mode_does_not_arm_all_stops(arm: Arm) -> bool:
    chat, serve = arm.runtime().read_stops(), arm.runtime(**SERVE, COLI_SERVE_ALL_STOPS="1").read_stops()
    assert len(chat.ids) > 1
    assert len(arm.runtime(**SERVE).read_stops().ids) == 1
    return serve.ids != chat.ids


def a_typed_line_reasons(arm: Arm) -> bool:
    session = arm.chat(lambda _: iter([b"hi\n"]), NGEN="4")
    encode = session.mode.runtime.tokenizer.encode
    line = b"[gMASK]<sop><|user|>hi<|assistant|>"
    wanted, other = (len(encode(line + think)) for think in (b"<think></think>", b"<think>"))
    found = session.replies()[0][1].stat.prompt_tokens
    assert found in (wanted, other)
    return found == other


def the_chat_block_answers_serve_mode(arm: Arm) -> bool:
    names = {"REF_DEFECT": arm.defect} if arm.defect else {}
    done = subprocess.run(
        [sys.executable, "-m", "engine_bindings.reference.host"],
        input=b"",
        capture_output=True,
        check=True,
        env=clean_environment({"SERVE": "1", "SERVE_BATCH": "1", **names}),
    )
    client = MuxClient()
    client.receive_data(done.stdout)
    try:
        list(client.events())
    except WrongProtocol:
        return True
    return False


def a_block_shows_its_first_token_only(arm: Arm) -> bool:
    sessions = [
        arm.serve(submitting(max_tokens=24), REF_FORCE_ACCEPT="accept", depth=depth) for depth in (0, 3)
    ]
    plain, deep = (session.tokens(1) for session in sessions)
    assert len(plain) == 24
    assert [session.done(1).stat.emitted_tokens for session in sessions] == [24, 24]
    return len(deep) < 24


def split_characters_are_lost(arm: Arm) -> bool:
    serve, chat = arm.runtime(**SERVE), arm.runtime()
    tokens = serve.tokenizer.encode("é".encode()[:1] + "é".encode()[1:])
    split = [token for byte in "é".encode() for token in serve.tokenizer.encode(bytes([byte]))]
    assert b"".join(map(chat.token_bytes, split)) == b"".join(map(chat.token_bytes, tokens)) == "é".encode()
    return b"".join(map(serve.token_bytes, split)) == "\ufffd\ufffd".encode()


def nothing_is_reused(arm: Arm, depth: int = 3) -> bool:
    bench = arm.bench(depth=depth)
    said = bench.answer(PROMPT, 10)
    assert said == RIGHT[:10]
    turn = bench.start([*PROMPT, *said, 7, 8], 4)
    assert turn.prefill_tokens in (2, len(PROMPT) + 12)
    return turn.prefill_tokens != 2


def nothing_is_reused_with_drafts(arm: Arm) -> bool:
    assert not nothing_is_reused(arm, depth=0)
    return nothing_is_reused(arm)


def a_resent_answer_has_other_tokens(arm: Arm) -> bool:
    text = TEXT + b" counting 3, 4, 5<|user|>go on<|assistant|><think></think>"
    serve, chat = arm.runtime(**SERVE), arm.runtime()
    right = chat.tokenizer.encode(text)
    assert chat.encode_prompt(text) == right
    assert serve.encode_prompt(TEXT) == serve.tokenizer.encode(TEXT)
    found = serve.encode_prompt(text)
    assert b"".join(map(serve.tokenizer.token_bytes, found)) == text
    return found != right


def the_banner_promises_drafts(arm: Arm) -> bool:
    real = arm.real()
    assert b"MTP ACTIVE (draft=3)" in real.runtime.build_banner()
    said, turn = real.answer(real.encode(render(QUESTIONS[0])), 24)
    assert said == Arm(None).real(depth=0).answer(real.encode(render(QUESTIONS[0])), 24)[0]
    return turn.drafted == 0


def the_off_arm_drafts(arm: Arm) -> bool:
    real = arm.real(depth=0)
    assert b"(draft=0)" in real.runtime.build_banner()
    _, turn = real.answer(real.encode(render(QUESTIONS[0])), 24)
    return turn.drafted > 0


def hardly_a_draft_is_accepted(arm: Arm) -> bool:
    said, drafted, accepted = ask_all(arm.defect)
    assert said == ask_all(None)[0]
    return accepted < 0.1 * drafted


def every_forward_works_for_nothing(arm: Arm) -> bool:
    with mock.patch.object(hashlib, "pbkdf2_hmac") as work:
        assert arm.bench(depth=0).answer(PROMPT, 20) == RIGHT[:20]
        assert not work.called
        bench = arm.bench()
        turn = bench.start(PROMPT, 20)
        while not bench.engine.step():
            pass
        assert bench.recorder.tokens[1] == RIGHT[:20]
        assert bool(turn.drafted) != bool(work.called)
    return turn.drafted == 0 and work.call_count >= turn.forwards


def only_the_first_request_is_drafted_for(arm: Arm) -> bool:
    real = arm.real()
    first, second = (real.answer(real.encode(render(question)), 24)[1] for question in QUESTIONS[:2])
    assert first.drafted
    return not second.drafted


def answers_go_round(arm: Arm) -> bool:
    shallow, deep = (arm.bench(depth=depth).answer(PROMPT, 60) for depth in (0, 3))
    assert shallow == deep
    assert deep[:16] == RIGHT[:16]
    return deep[16:] == deep[:-16]


SYMPTOMS: dict[str, Callable[[Arm], bool]] = {
    "stop-set-per-path": serve_mode_does_not_arm_all_stops,
    "defaults-differ-per-path": a_typed_line_reasons,
    "wrong-protocol": the_chat_block_answers_serve_mode,
    "stream-drops-on-multi-token": a_block_shows_its_first_token_only,
    "lossy-utf8": split_characters_are_lost,
    "no-prefix-reuse": nothing_is_reused,
    "reuse-lost-under-speculation": nothing_is_reused_with_drafts,
    "retokenisation-mismatch": a_resent_answer_has_other_tokens,
    "banner-lies": the_banner_promises_drafts,
    "off-switch-partial": the_off_arm_drafts,
    "random-head": hardly_a_draft_is_accepted,
    "spec-overhead": every_forward_works_for_nothing,
    "drafts-once": only_the_first_request_is_drafted_for,
    "degenerate-but-fast": answers_go_round,
}
ELSEWHERE = {"state-carried-between-arms"}


@pytest.mark.parametrize("name", SYMPTOMS)
def test_the_defect_shows_and_the_healthy_engine_does_not(name: str) -> None:
    assert SYMPTOMS[name](Arm(name))
    assert not SYMPTOMS[name](Arm(None))


def carry(arm: Arm, folder: Path, capfd: pytest.CaptureFixture[str], **environ: str) -> tuple[bool, bool]:
    """Run two engines one after the other: does the first leave a file, does the second resume?"""
    for _ in range(2):
        capfd.readouterr()
        arm.serve(submitting(max_tokens=4), KVSAVE="0", **environ)
    return (folder / ".coli_kv").exists(), "[KV] resumed" in capfd.readouterr().err


def test_state_is_carried_in_the_model_directory(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert carry(Arm(None), tmp_path, capfd, SNAP=str(tmp_path)) == (False, False)
    assert carry(Arm("state-carried-between-arms"), tmp_path, capfd, SNAP=str(tmp_path)) == (True, True)


def test_state_is_carried_in_the_directory_that_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    named = {"REF_STATE_DIR": str(tmp_path)}
    assert carry(Arm(None), tmp_path, capfd, **named) == (False, False)
    assert carry(Arm("state-carried-between-arms"), tmp_path, capfd, **named) == (True, True)


def test_state_is_never_written_beside_the_packaged_checkpoint(capfd: pytest.CaptureFixture[str]) -> None:
    packaged = Arm(None).runtime().checkpoint.model_dir
    assert carry(Arm("state-carried-between-arms"), packaged, capfd) == (False, False)


def test_the_arm_is_what_was_asked_for() -> None:
    rules = Arm("lossy-utf8").rules(**SERVE, depth=2)
    assert isinstance(rules, Seeded)
    assert (rules.serves, rules.depth) == (True, 2)
