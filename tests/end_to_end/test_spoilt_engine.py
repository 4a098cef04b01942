"""The embedded engine behind wrappers that spoil one thing, which the verdict has to find."""

from pathlib import Path

from harness.cli import main
from harness.cli.scenario_files import load_scenario
from harness.report import Report
from harness.rundir import read_run
from tests.end_to_end.comparisons import Compare, WriteWrapper

NO_DRAFTS = """
os.environ["DRAFT"] = "0"
os.execv(ENGINE[0], ENGINE)
"""

ALWAYS_DRAFTS = """
os.environ["DRAFT"] = "2"
os.execv(ENGINE[0], ENGINE)
"""

ALWAYS_CHAT = """
os.environ.pop("SERVE_BATCH")
os.execv(ENGINE[0], ENGINE)
"""

PRINTS_TO_STDOUT = """
if os.environ["SERVE_BATCH"] == "1":
    process = subprocess.Popen(ENGINE, stdout=subprocess.PIPE)
    for line in process.stdout:
        sys.stdout.buffer.write(line)
        if line.startswith(b"ACCEPT"):
            sys.stdout.buffer.write(b"debug: accepted a request\\n")
        sys.stdout.buffer.flush()
    sys.exit(process.wait())
os.execv(ENGINE[0], ENGINE)
"""

# Changes the fifth token of the first answer of the arm serve/3, byte for byte of the same length.
CHANGED_ANSWER = """
if (os.environ["SERVE_BATCH"], os.environ["DRAFT"]) != ("1", "3"):
    os.execv(ENGINE[0], ENGINE)
process = subprocess.Popen(ENGINE, stdout=subprocess.PIPE)
frames = 0
while line := process.stdout.readline():
    if line.startswith(b"DATA"):
        frames += 1
        payload = process.stdout.read(int(line.split()[2]) + 1)
        line += b"#" * (len(payload) - 1) + payload[-1:] if frames == 5 else payload
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
sys.exit(process.wait())
"""


def test_drafts_forced_off_make_the_on_arms_void(
    compare: Compare, write_wrapper: WriteWrapper, tmp_path: Path
) -> None:
    done = compare(tmp_path / "run", "--engine", write_wrapper(NO_DRAFTS), "--repetitions", "1", "--json")

    report = Report.from_json(done.stdout)
    assert done.returncode in {3, 4}
    assert [(row.arm.label, row.state) for row in report.arms] == [
        ("chat/0", "off"),
        ("chat/3", "void"),
        ("serve/0", "off"),
        ("serve/3", "void"),
    ]


def test_drafts_forced_on_make_the_off_arms_void(
    compare: Compare, write_wrapper: WriteWrapper, tmp_path: Path
) -> None:
    done = compare(tmp_path / "run", "--engine", write_wrapper(ALWAYS_DRAFTS), "--repetitions", "1", "--json")

    report = Report.from_json(done.stdout)
    assert done.returncode in {3, 4}
    assert [row.arm.label for row in report.arms if row.state == "void"] == ["chat/0", "serve/0"]


def test_changed_token_fails_the_contrasts_of_its_arm_at_its_position(
    compare: Compare, write_wrapper: WriteWrapper, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    done = compare(out, "--engine", write_wrapper(CHANGED_ANSWER), "--json")

    report = Report.from_json(done.stdout)
    assert (done.returncode, report.verdict.status) == (1, "fail")
    states = {item.contrast.name: item.state for item in report.comparison.contrasts}
    broken = {name: state for name, state in states.items() if state != "identical"}
    # The strict contrast proves the fault; the one between depths is then left open.
    assert broken == {"path on": "different", "speculation serve": "undecided"}
    changed = next(record for record in read_run(out).records if record.spec.arm.label == "serve/3")
    lengths = changed.turns[0].token_lengths
    assert lengths is not None
    place = f"byte {sum(lengths[:4])}, token 4"
    assert f"short, talk, turn 1, tokens at {place}" in report.verdict.sentence
    assert any("serve/3 is the odd one out" in reason for reason in report.verdict.reasons)


def test_engine_that_speaks_chat_when_serve_was_asked_is_named(
    compare: Compare, write_wrapper: WriteWrapper, tmp_path: Path
) -> None:
    done = compare(tmp_path / "run", "--engine", write_wrapper(ALWAYS_CHAT), "--repetitions", "1")

    assert done.returncode == 4
    records = read_run(tmp_path / "run").records
    codes = {record.spec.arm.label: record.failure and record.failure.code for record in records}
    assert codes == {"chat/0": None, "chat/3": None, "serve/0": "wrong-protocol", "serve/3": "wrong-protocol"}
    assert "TIERS" in done.stdout


def test_debug_print_on_stdout_is_named_with_its_place(
    compare: Compare, write_wrapper: WriteWrapper, tmp_path: Path
) -> None:
    done = compare(tmp_path / "run", "--engine", write_wrapper(PRINTS_TO_STDOUT), "--repetitions", "1")

    assert done.returncode == 4
    failure = next(r.failure for r in read_run(tmp_path / "run").records if r.spec.arm.label == "serve/0")
    assert failure is not None
    assert failure.code == "engine-garbage"
    assert "debug: accepted a request" in failure.message


# With drafts in serve mode, spoils the third token of every answer but the first one of the process.
SPOILS_LATER_ANSWERS = """
if os.environ["SERVE_BATCH"] != "1" or os.environ["DRAFT"] == "0":
    os.execv(ENGINE[0], ENGINE)
process = subprocess.Popen(ENGINE, stdout=subprocess.PIPE)
turns = frames = 0
while line := process.stdout.readline():
    if line.startswith(b"ACCEPT"):
        turns, frames = turns + 1, 0
    if line.startswith(b"DATA"):
        frames += 1
        payload = process.stdout.read(int(line.split()[2]) + 1)
        spoilt = turns > 1 and frames == 3
        line += b"#" * (len(payload) - 1) + payload[-1:] if spoilt else payload
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
sys.exit(process.wait())
"""


def test_minimize_ends_at_the_few_tokens_that_show_the_fault(
    compare: Compare, write_wrapper: WriteWrapper, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    compare(out, "--engine", write_wrapper(SPOILS_LATER_ANSWERS), "--repetitions", "1")

    status = main(["minimize", str(out), "--max-runs", "12"])

    scenario = load_scenario(out / "minimal-path-on.toml").scenario
    assert status == 0
    assert scenario.turn_count == 2
    assert scenario.worst_case_tokens <= 16
