"""``coli-ab scenario import`` from a log and from a directory."""

import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.cli.scenario_files import load_scenario

LOG = [
    {"messages": [{"role": "user", "content": "mail jane@corp.org"}], "max_tokens": 8},
    {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "My Agent.jsonl"
    path.write_text("\n".join(map(json.dumps, LOG)) + "\n\nnot json\n")
    return path


def test_a_log_becomes_a_scenario_file(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["scenario", "import", str(log)]) == 0

    told = capsys.readouterr()
    scenario = load_scenario(tmp_path / "My Agent.toml").scenario
    assert scenario.name == "my-agent"
    assert scenario.conversations[0].turns[0].text == "mail user1@example.com"
    assert "1 requests in 1 conversations, 1 turns, 8 tokens at most" in told.out
    assert "redacted: 1 x e-mail address" in told.out
    assert "line 2: refused: message 1 holds a part that is no text: image_url" in told.err
    assert "line 4: refused: not JSON" in told.err


def test_a_directory_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "2.json").write_text(json.dumps({"prompt": "b"}, indent=2))
    (saved / "1.jsonl").write_text(json.dumps({"prompt": "a"}) + "\n")
    (saved / "notes.txt").write_text("x")
    out = tmp_path / "talk.toml"

    assert (
        main(["scenario", "import", str(saved), "--out", str(out), "--name", "talk", "--max-tokens", "3"])
        == 0
    )
    scenario = load_scenario(out).scenario
    assert [c.turns[0].text for c in scenario.conversations] == ["a", "b"]
    assert scenario.cap_tokens == 3


def test_a_long_name_of_a_log_is_cut(log: Path, tmp_path: Path) -> None:
    long = log.rename(tmp_path / f"{'x' * 120}.jsonl")

    assert main(["scenario", "import", str(long), "--out", str(tmp_path / f"{'y' * 120}.toml")]) == 0
    assert f'name = "{"y" * 80}"' in (tmp_path / f"{'y' * 120}.toml").read_text()


def test_own_words_are_taken_out(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.toml"

    assert main(["scenario", "import", str(log), "--out", str(out), "--redact", "mail"]) == 0
    assert "REDACTED_WORD_1 user1@example.com" in out.read_text()


def test_nothing_is_written_over(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.toml"
    out.write_text("mine")

    assert main(["scenario", "import", str(log), "--out", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main(["scenario", "import", str(log), "--out", str(out), "--force"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["missing.jsonl"], "missing.jsonl: No such file"),
        (["{empty}"], "no *.json and no *.jsonl in it"),
        (["{log}", "--max-tokens", "0"], "out of range"),
        (["{log}", "--name", "Not A Name"], "name"),
        (["{log}", "--out", "{empty}/no/x.toml"], "No such file"),
    ],
)
def test_what_cannot_be_done_is_said(
    log: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    given = [text.format(log=log, empty=tmp_path / "empty") for text in options]

    assert main(["scenario", "import", *given]) == 2
    assert message in capsys.readouterr().err


def body(text: str, **more: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **more}).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "can be imported: it holds none"),
        (body("caf\xe9").replace(b"\\u00e9", b"\xe9"), "message 1 holds a byte that is no UTF-8"),
        (body("\ud83d"), "message 1 holds half a character"),
        (body("a", stop=["\ud83d"]), "a stop string holds half a character"),
        (body("a", stop="\0"), "a stop string holds a NUL character"),
    ],
)
def test_what_no_scenario_can_hold_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, words: str
) -> None:
    log = tmp_path / "a.jsonl"
    log.write_bytes(data)

    assert main(["scenario", "import", str(log), "--out", str(tmp_path / "a.toml")]) == 2
    assert words in capsys.readouterr().err


def test_a_byte_order_mark_is_no_part_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    log.write_bytes(b"\xef\xbb\xbf" + body("a"))

    assert main(["scenario", "import", str(log), "--out", str(tmp_path / "a.toml")]) == 0
