"""Queue, time limits, clients that go away, and engines that break."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from server.speculation import Decision
from tests.server.server_builders import MODEL, ON, Call, read_events, run_server, until

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
EXPIRED = Decision(enabled=False, depth=0, reason="the certificate expired", field="expires_at")
HOLD = {"match": "slow", "text": "one two three ", "repeat": True, "fault": "hold", "after": 5}


def body(text: str, **parameters: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, **parameters}


async def test_requests_wait_in_line_and_a_full_queue_is_a_429(tmp_path: Path) -> None:
    release = tmp_path / "release"
    hold = HOLD | {"release_file": str(release)}
    settings = {"queue_limit": 2}
    async with run_server(tmp_path, replies=[hold], settings=settings) as running:
        admission = running.service.admission
        first = asyncio.create_task(running.chat("slow", max_tokens=8))
        await until(lambda: admission.running == 1)
        waiting = [asyncio.create_task(running.chat(f"request {index}")) for index in range(2)]
        await until(lambda: admission.waiting == 2)
        refused = await running.chat("too many")
        release.touch()
        answers = [await first, *[await one for one in waiting]]
        solo = [await running.chat(f"request {index}") for index in range(2)]
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["type"]) == (429, "queue_full", "rate_limit_error")
    assert int(refused.headers["retry-after"]) >= 1
    assert [answer.status_code for answer in answers] == [200] * 3
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers[1:]]
    assert texts == [answer.json()["choices"][0]["message"]["content"] for answer in solo]


async def test_answers_are_not_mixed_up_over_several_slots(tmp_path: Path) -> None:
    async with run_server(tmp_path, settings={"kv_slots": 3}) as running:
        names = [f"request {index}" for index in range(12)]
        together = await asyncio.gather(*(running.chat(name, temperature=0) for name in names))
        alone = [await running.chat(name, temperature=0) for name in names]
        slots = {turn["slot"] for turn in running.submitted()}
    assert [one.json()["choices"] for one in together] == [one.json()["choices"] for one in alone]
    assert slots == {0, 1, 2}


async def test_a_conversation_returns_to_its_slot(tmp_path: Path) -> None:
    async with run_server(tmp_path, settings={"kv_slots": 2}) as running:
        for text in ("first talk", "second talk", "first talk", "second talk", "first talk"):
            await running.chat(text)
        slots = [turn["slot"] for turn in running.submitted()]
    assert slots[0] != slots[1]
    assert slots == [slots[0], slots[1]] * 2 + [slots[0]]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_cancels_the_turn(tmp_path: Path, stream: bool) -> None:
    async with run_server(tmp_path, replies=[HOLD]) as running:
        call = Call(running.app, CHAT, body("slow", stream=stream))
        await until(lambda: running.service.admission.running == 1 and bool(running.submitted()))
        if stream:
            await call.until(lambda: call.body.count(b"data: ") > 3)
        call.disconnect()
        await call.task
        after = await running.chat("next")
        controls = [entry for entry in running.log() if "control" in entry]
    assert after.status_code == 200
    assert [entry["control"] for entry in controls] == ["CANCEL"]
    assert controls[0]["sent"] <= 5
    assert b"[DONE]" not in call.body


async def test_a_client_that_does_not_read_frees_the_slot(tmp_path: Path) -> None:
    reads = asyncio.Event()

    class StuckCall(Call):
        async def _send(self, message: Any) -> None:
            await super()._send(message)
            await reads.wait()

    async with run_server(tmp_path) as running:
        call = StuckCall(running.app, CHAT, body("Hello", stream=True, max_tokens=20))
        await call.until(lambda: call.status == 200)
        other = await running.chat("something else")
        assert not call.task.done()
        reads.set()
        await call.task
    assert other.status_code == 200
    assert read_events(call.body.decode())[-1] == "[DONE]"


async def test_a_silent_engine_keeps_the_stream_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.streaming.KEEP_ALIVE_S", 0.01)
    release = tmp_path / "release"
    async with run_server(tmp_path, replies=[HOLD | {"release_file": str(release)}]) as running:
        call = Call(running.app, CHAT, body("slow", stream=True, max_tokens=8))
        await call.until(lambda: call.body.count(b": waiting for the engine\n\n") > 2)
        release.touch()
        await call.task
    assert read_events(call.body.decode())[-1] == "[DONE]"


async def test_a_client_that_goes_away_in_the_queue_leaves_it(tmp_path: Path) -> None:
    release = tmp_path / "release"
    hold = HOLD | {"release_file": str(release)}
    async with run_server(tmp_path, replies=[hold]) as running:
        admission = running.service.admission
        first = asyncio.create_task(running.chat("slow", max_tokens=8))
        await until(lambda: admission.running == 1)
        call = Call(running.app, CHAT, body("waits"))
        await until(lambda: admission.waiting == 1)
        call.disconnect()
        await call.task
        assert admission.waiting == 0
        release.touch()
        assert (await first).status_code == 200
    assert len(running.submitted()) == 1


async def test_the_time_limit_of_a_request(tmp_path: Path) -> None:
    async with run_server(tmp_path, replies=[HOLD], settings={"request_timeout_s": 0.3}) as running:
        await until(lambda: running.service.status() == "ok")
        whole = await running.chat("slow")
        stream = await running.chat("slow", stream=True)
        after = await running.chat("next")
        controls = [entry["control"] for entry in running.log() if "control" in entry]
    assert (whole.status_code, whole.json()["error"]["code"]) == (504, "request_timeout")
    last = json.loads(read_events(stream.text)[-1])
    assert last["error"]["code"] == "request_timeout"
    assert after.status_code == 200
    assert controls == ["CANCEL", "CANCEL"]


@pytest.mark.parametrize("fault", ["crash", "garbage"])
async def test_a_broken_engine_is_started_again_and_the_queue_survives(tmp_path: Path, fault: str) -> None:
    broken = {"match": "break", "text": "one two three four five", "fault": fault, "after": 3}
    async with run_server(tmp_path, replies=[broken]) as running:
        whole = asyncio.create_task(running.chat("break"))
        await until(lambda: running.service.admission.running == 1)
        waiting = asyncio.create_task(running.chat("waits"))
        failed, survived = await whole, await waiting
        stream = await running.chat("break", stream=True)
        await until(lambda: running.service.status() == "ok")
        health = (await running.client.get("/health")).json()
    error = failed.json()["error"]
    assert (failed.status_code, error["code"], error["type"]) == (500, "engine_error", "engine_error")
    assert survived.status_code == 200
    # The engine may break before anything was sent; then even a stream is a plain error.
    last = stream.text if stream.status_code == 500 else read_events(stream.text)[-1]
    assert json.loads(last)["error"]["code"] == "engine_error"
    assert health["engine"]["restarts"] == 2
    assert ("139" if fault == "crash" else "protocol") in health["engine"]["last_failure"]


@pytest.mark.parametrize(("later", "depths"), [(ON, [3, 3, 3]), (EXPIRED, [3, 0, 0])])
async def test_the_certificate_is_verified_before_every_restart(
    tmp_path: Path, later: Decision, depths: list[int]
) -> None:
    crash = {"match": "break", "text": "one two three", "fault": "crash", "after": 1}
    async with run_server(tmp_path, replies=[crash], check=lambda _depth: later) as running:
        await running.chat("break")
        await running.chat("break")
        await running.chat("Hello")
        health = (await running.client.get("/health")).json()
    assert [entry["start"]["depth"] for entry in running.log() if "start" in entry] == depths
    assert (health["mtp"]["enabled"], health["mtp"]["reason"]) == (later.enabled, later.reason)


async def test_an_engine_without_progress_is_started_again(tmp_path: Path) -> None:
    hang = {"match": "hang", "text": "one two three four", "fault": "hang", "after": 2}
    async with run_server(tmp_path, replies=[hang], settings={"progress_timeout_s": 0.5}) as running:
        failed = await running.chat("hang")
        after = await running.chat("next")
        health = (await running.client.get("/health")).json()
    assert failed.json()["error"]["code"] == "engine_error"
    assert "no progress" in failed.json()["error"]["message"]
    assert after.status_code == 200
    assert health["engine"]["restarts"] == 1


# Far longer than a test takes: only the tests below move the time of the last progress.
PATIENT = {"progress_timeout_s": 1_000.0, "first_output_timeout_s": 10_000.0}


async def test_silence_before_the_first_token_has_a_limit_of_its_own(tmp_path: Path) -> None:
    release = tmp_path / "release"
    reply = HOLD | {"after": 0, "release_file": str(release)}
    async with run_server(tmp_path, replies=[reply], settings=PATIENT) as running:
        call = asyncio.create_task(running.chat("slow", max_tokens=8))
        await until(lambda: bool(running.submitted()))
        engine = await running.service.supervisor.engine()
        engine._progress_at -= 2_000
        engine._check_progress()
        assert not engine.lost.done()
        engine._progress_at -= 10_000
        engine._check_progress()
        assert "--first-output-timeout" in engine.lost.result()
        assert (await call).status_code == 500
        assert (await running.chat("next")).status_code == 200


@pytest.mark.parametrize(("says", "counts"), [("[prefill] layer 1/6", True), ("busy", False)])
async def test_lines_about_the_prefill_are_progress(tmp_path: Path, says: str, counts: bool) -> None:
    release = tmp_path / "release"
    reply = HOLD | {"after": 0, "release_file": str(release), "says": says}
    async with run_server(tmp_path, replies=[reply], settings=PATIENT) as running:
        call = asyncio.create_task(running.chat("slow", max_tokens=8))
        await until(lambda: bool(running.submitted()))
        engine = await running.service.supervisor.engine()
        for _ in range(2):  # the acceptance of the request is progress too, and may still be on its way
            engine.stderr_tail.clear()
            engine._progress_at = 0.0
            await until(lambda: any(says in line for line in engine.stderr_tail))
        assert (engine._progress_at > 0) is counts
        release.touch()
        assert (await call).status_code == 200


async def test_an_engine_that_was_lost_this_instant_is_not_given_out(tmp_path: Path) -> None:
    async with run_server(tmp_path) as running:
        supervisor = running.service.supervisor
        lost = await supervisor.engine()
        lost.lost.set_result("gone")
        assert running.service.status() == "restarting"
        assert await supervisor.engine() is not lost


async def test_loading_is_a_503_and_requests_wait_for_it(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    async with run_server(tmp_path, ready_file=str(ready)) as running:
        loading = await running.client.get("/health")
        request = asyncio.create_task(running.chat())
        await until(lambda: running.service.admission.running == 1)
        ready.touch()
        answer = await request
        health = await running.client.get("/health")
    assert (loading.status_code, loading.json()["status"]) == (503, "loading")
    assert answer.status_code == 200
    assert (health.status_code, health.json()["status"]) == (200, "ok")


async def test_an_engine_that_never_starts_fails_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.engine_supervisor.FIRST_PAUSE_S", 0.0)
    async with run_server(tmp_path, refuse_start=True) as running:
        answer = await running.chat()
        health = await running.client.get("/health")
        assert running.service.supervisor.failed.is_set()
    assert answer.status_code == 500
    assert "never starts" in answer.json()["error"]["message"]
    assert (health.status_code, health.json()["status"]) == (503, "failed")


async def test_a_drain_finishes_what_runs_and_refuses_the_rest(tmp_path: Path) -> None:
    release = tmp_path / "release"
    hold = HOLD | {"release_file": str(release)}
    async with run_server(tmp_path, replies=[hold]) as running:
        admission = running.service.admission
        runs = asyncio.create_task(running.chat("slow", max_tokens=8))
        await until(lambda: admission.running == 1)
        waits = asyncio.create_task(running.chat("waits"))
        await until(lambda: admission.waiting == 1)
        admission.drain()
        refused, late = await waits, await running.chat("late")
        health = await running.client.get("/health")
        release.touch()
        finished = await runs
    assert [refused.status_code, late.status_code] == [503, 503]
    assert refused.json()["error"]["code"] == "shutting_down"
    assert health.json()["status"] == "draining"
    assert finished.json()["usage"]["completion_tokens"] == 8
