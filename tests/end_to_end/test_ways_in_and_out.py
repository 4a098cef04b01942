"""Typed lines against rendered prompts, and stop strings, on the embedded engine."""

from pathlib import Path

from harness.report import Report
from harness.rundir import read_run
from tests.end_to_end.comparisons import Compare

LINES = """
schema = 1
name = "typed"
title = "Typed lines"
description = "Chat arms type the user's text; serve arms get the rendered prompt."
entry = "line"

[defaults]
max_tokens = 12

[[conversation]]
id = "first"
class = "chat"

[[conversation.turn]]
user = "Tell me about the river"

[[conversation.turn]]
user = "Tell me more"

[[conversation]]
id = "second"
class = "chat"

[[conversation.turn]]
user = "Tell me about the river"
"""

STOPS = """
schema = 1
name = "stops"
title = "Stop strings"
description = "An answer that is cut at a stop string."

[defaults]
max_tokens = 64

[[conversation]]
id = "count"
class = "lists"

[[conversation.turn]]
prompt = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,"
stop = [","]

[[conversation.turn]]
append = ", and "
max_tokens = 8
"""


def test_typed_lines_give_what_rendered_prompts_give(compare: Compare, tmp_path: Path) -> None:
    scenario = tmp_path / "typed.toml"
    scenario.write_text(LINES)

    done = compare(tmp_path / "run", "--json", scenario=scenario)

    report = Report.from_json(done.stdout)
    assert (done.returncode, report.verdict.status) == (0, "pass")
    chat, *_ = (r for r in read_run(tmp_path / "run").records if r.spec.arm.path == "chat")
    assert {turn.entry for turn in chat.turns} == {"line"}
    # The context was reset between the conversations: the same line gets the same answer.
    assert chat.turns[0].text == chat.turns[2].text


def test_stop_string_cuts_the_answer_in_every_arm_alike(compare: Compare, tmp_path: Path) -> None:
    scenario = tmp_path / "stops.toml"
    scenario.write_text(STOPS)

    done = compare(tmp_path / "run", "--json", scenario=scenario)

    # The turn that is asked for its logprobs stands alone in its cell.
    records = [record for record in read_run(tmp_path / "run").records if record.spec.probe is None]
    assert all(record.failure is None for record in records)
    first = {(record.turns[0].text, record.turns[0].finish) for record in records}
    assert len(first) == 1
    ((text, finish),) = first
    assert finish == "stop-string"
    assert b"," not in text
    assert Report.from_json(done.stdout).verdict.status == "pass"
