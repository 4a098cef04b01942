"""The guard at run time: what it replays, what trips it, and what it keeps."""

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import pytest

from harness.scenario import parse_scenario
from server.audit import MAX_PREEMPTIONS
from tests.server.server_builders import OFF, Running, run_server, until

pytestmark = pytest.mark.anyio
SAME = {"match": "Hello", "text": "The same answer at every depth, <b>."}
OTHER = SAME | {"other_at": 3}
NEAR_TIE = OTHER | {"gap": 0.00001}
NOT_SO_NEAR = OTHER | {"gap": 0.002}
NOT_THE_FAVOURITE = OTHER | {"gap": -0.5}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
AUDIT = {"audit_rate": 1.0}


async def audited(running: Running, count: int) -> dict[str, Any]:
    await until(lambda: running.service.guard.replayed >= count)
    return (await running.client.get("/health")).json()


async def test_equal_answers_change_nothing(tmp_path: Path) -> None:
    async with run_server(tmp_path, replies=[SAME], settings=AUDIT) as running:
        await running.chat(temperature=0)
        health = await audited(running, 1)
        answer, flush, replay = running.submitted()
    assert health["mtp"] == {
        "enabled": True, "depth": 3, "reason": "certified by run test-run up to depth 3",
        "certified_by": "test-run", "switched_off_by_audit": False,
    }  # fmt: skip
    assert (health["audit"]["replayed"], health["audit"]["differences"]) == (1, 0)
    assert replay["ids"] == answer["ids"]
    assert (answer["options"]["depth"], replay["options"]["depth"]) == ("8", "0")
    assert flush["ids"][0] != answer["ids"][0]


@pytest.mark.parametrize("reply", [OTHER, NOT_SO_NEAR, NOT_THE_FAVOURITE])
async def test_a_difference_switches_mtp_off_at_once_and_is_kept(
    tmp_path: Path, reply: dict[str, Any]
) -> None:
    async with run_server(tmp_path, replies=[reply], settings=AUDIT) as running:
        before = (await running.chat(temperature=0, max_tokens=9)).json()
        health = await audited(running, 1)
        after = (await running.chat(temperature=0, max_tokens=9)).json()
        metrics = (await running.client.get("/metrics")).text
        depth = running.submitted()[-1]["options"]["depth"]
    assert before["choices"] != after["choices"]
    assert after["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0
    assert depth == "0"
    assert health["mtp"]["enabled"] is False
    assert health["mtp"]["switched_off_by_audit"] is True
    assert before["id"] in health["mtp"]["reason"]
    assert "coli_ab:mtp_enabled 0.0" in metrics
    assert "coli_ab:audit_differences_total 1.0" in metrics
    kept = Path(health["audit"]["kept_file"])
    text = kept.read_text(encoding="utf-8")
    scenario = parse_scenario(text, str(kept), lambda name: name)
    (conversation,) = tomllib.loads(text)["conversation"]
    assert scenario.name.startswith("audit-")
    assert conversation["turn"][0]["prompt"] == "[gMASK]<sop><|user|>Hello<|assistant|><think></think>"
    for choice in (before, after):
        assert choice["choices"][0]["message"]["content"] in text


async def test_a_difference_that_cannot_be_kept_still_switches_mtp_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("a file, where the directory should be")
    settings = AUDIT | {"audit_dir": tmp_path / "taken"}
    async with run_server(tmp_path, replies=[OTHER], settings=settings) as running:
        before = (await running.chat(temperature=0)).json()
        health = await audited(running, 1)
        after = (await running.chat(temperature=0)).json()
    assert health["mtp"]["switched_off_by_audit"] is True
    assert health["audit"]["kept_file"] is None
    assert "taken" in health["audit"]["write_error"]
    for answer in (before, after):
        assert answer["choices"][0]["message"]["content"] in caplog.text


@pytest.mark.parametrize(
    ("parameters", "key", "reason"),
    [({}, None, None),
     ({"response_format": {"type": "json_object"}}, "schema_file", None),
     ({"grammar": 'root ::= "a"'}, "grammar_file", None),
     ({"ignore_eos": True}, None, "ignore_eos"),
     ({"tools": [TOOL], "tool_choice": "required"}, None, "no form for")],
)  # fmt: skip
async def test_what_a_kept_file_can_show_again(
    tmp_path: Path, parameters: dict[str, Any], key: str | None, reason: str | None
) -> None:
    async with run_server(tmp_path, replies=[OTHER], settings=AUDIT) as running:
        await running.chat(temperature=0, **parameters)
        audit = (await audited(running, 1))["audit"]
    kept = Path(audit["kept_file"])
    values = tomllib.loads(kept.read_text(encoding="utf-8"))
    parse_scenario(kept.read_text(), str(kept), lambda name: (kept.parent / name).read_text())
    assert [name for name in ("schema_file", "grammar_file") if name in values] == [key] * bool(key)
    assert audit["replayable"] is (reason is None)
    assert ("may not show it again" in values["description"]) is (reason is not None)
    assert (reason or "") in (audit["not_replayable_because"] or "")


async def test_an_answer_on_rows_of_earlier_requests_may_not_show_again(tmp_path: Path) -> None:
    async with run_server(tmp_path, replies=[OTHER], settings=AUDIT) as running:
        await running.chat("Good evening", temperature=0.5)
        await running.chat(temperature=0)
        audit = (await audited(running, 1))["audit"]
    assert audit["replayable"] is False
    assert "prompt tokens of earlier requests" in audit["not_replayable_because"]


async def test_the_audit_outlives_a_fault_in_one_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_server(tmp_path, replies=[SAME], settings=AUDIT) as running:
        with monkeypatch.context() as patch:
            patch.setattr("server.audit.flush_request", lambda _request: 1 / 0)
            await running.chat(temperature=0)
            await until(lambda: running.service.guard.failed == 1)
        await running.chat(temperature=0)
        health = await audited(running, 1)
    assert health["audit"]["failed"] == 1


async def test_constrained_answers_are_audited_with_their_grammar(tmp_path: Path) -> None:
    async with run_server(tmp_path, replies=[SAME], settings=AUDIT) as running:
        await running.chat(temperature=0, response_format={"type": "json_object"})
        health = await audited(running, 1)
        answer, _, replay = running.submitted()
    assert health["audit"]["failed"] == 0
    assert replay["grammar"] == answer["grammar"] == '{"type":"object"}'
    assert replay["options"]["constrain"] == "1"


async def test_a_restarted_engine_stays_off(tmp_path: Path) -> None:
    replies = [OTHER, {"match": "break", "text": "one two three", "fault": "crash", "after": 1}]
    async with run_server(tmp_path, replies=replies, settings=AUDIT) as running:
        await running.chat(temperature=0)
        await audited(running, 1)
        await running.chat("break")
        await running.chat()
        depths = [entry["start"]["depth"] for entry in running.log() if "start" in entry]
    assert depths == [3, 0]


async def test_a_proven_near_tie_is_no_difference(tmp_path: Path) -> None:
    async with run_server(tmp_path, replies=[NEAR_TIE], settings=AUDIT) as running:
        await running.chat(temperature=0)
        health = await audited(running, 1)
    assert health["mtp"]["enabled"] is True
    assert (health["audit"]["near_ties"], health["audit"]["differences"]) == (1, 0)


async def test_a_constrained_answer_is_never_a_near_tie(tmp_path: Path) -> None:
    async with run_server(tmp_path, replies=[NEAR_TIE], settings=AUDIT) as running:
        await running.chat(temperature=0, response_format={"type": "json_object"})
        health = await audited(running, 1)
    assert health["mtp"]["enabled"] is False
    assert (health["audit"]["near_ties"], health["audit"]["differences"]) == (0, 1)


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [
        ({"audit_rate": 0.0}, {"temperature": 0}),
        (AUDIT, {"temperature": 0.5}),
        (AUDIT, {"temperature": 0, "stop": "T"}),
    ],
)
async def test_what_is_not_audited(
    tmp_path: Path, settings: dict[str, Any], parameters: dict[str, Any]
) -> None:
    async with run_server(tmp_path, replies=[OTHER], settings=settings) as running:
        await running.chat(**parameters)
        assert running.service.guard.pending == 0
        assert len(running.submitted()) == 1


async def test_without_speculation_there_is_nothing_to_audit(tmp_path: Path) -> None:
    async with run_server(tmp_path, replies=[OTHER], settings=AUDIT, decision=OFF) as running:
        await running.chat(temperature=0)
        assert running.service.guard.pending == 0


async def test_a_replay_makes_room_for_a_request(tmp_path: Path) -> None:
    release = tmp_path / "release"
    held = SAME | {"fault": "hold-at-depth-0", "after": 2, "release_file": str(release)}
    async with run_server(tmp_path, replies=[held], settings=AUDIT) as running:
        await running.chat(temperature=0)
        await until(lambda: len(running.submitted()) == 3)
        other = await running.chat("something else", temperature=0, logprobs=False)
        assert running.service.guard.replayed == 0
        release.touch()
        health = await audited(running, 2)
    assert other.status_code == 200
    assert health["audit"]["differences"] == 0


async def test_a_replay_that_makes_room_again_and_again_is_dropped(tmp_path: Path) -> None:
    held = SAME | {"fault": "hold-at-depth-0", "after": 2}
    async with run_server(tmp_path, replies=[held], settings=AUDIT) as running:
        await running.chat(temperature=0)
        for count in range(MAX_PREEMPTIONS):
            # Each time: the answer (one more for each request), a flush, and the replay that is held.
            await until(lambda count=count: len(running.submitted()) == 3 + 3 * count)
            await running.chat("something else", temperature=0.5)
        await until(lambda: running.service.admission.running == 0)
        health = (await running.client.get("/health")).json()
    counts = [health["audit"][name] for name in ("replayed", "pending", "dropped")]
    assert counts == [0, 0, 1]


async def test_an_engine_that_breaks_during_a_replay_loses_no_request(tmp_path: Path) -> None:
    held = SAME | {"fault": "crash-at-depth-0", "after": 2}
    async with run_server(tmp_path, replies=[held], settings=AUDIT) as running:
        await running.chat(temperature=0)
        await until(lambda: running.service.supervisor.restarts == 1)
        answers = await asyncio.gather(*(running.chat(f"request {index}") for index in range(3)))
        health = (await running.client.get("/health")).json()
    assert [answer.status_code for answer in answers] == [200] * 3
    assert health["audit"]["failed"] == 1
