from pathlib import Path

import pytest

from engine_bindings.errors import UsageError
from server.__main__ import main
from server.options import is_loopback, read_options
from server.settings import ServerSettings


def test_defaults_are_the_settings_own() -> None:
    assert read_options([], {}, "serve") == ServerSettings()


def test_every_option() -> None:
    text = (
        "--engine reference=e --model m --model-id id --certificate c --key-file k --kv-slots 2 --depth 1"
        " --require-mtp --audit 0.5 --audit-dir a --context 99 --host ::1 --port 1 --api-key key --queue 3"
        " --request-timeout 4 --start-timeout 5 --progress-timeout 6 --send-timeout 7"
        " --first-output-timeout 8"
    )
    assert read_options(text.split(), {}, "serve") == ServerSettings(
        engine="reference=e", model_dir=Path("m"), model_id="id", certificate=Path("c"), key_file=Path("k"),
        kv_slots=2, depth=1, require_mtp=True, audit_rate=0.5, audit_dir=Path("a"), context_tokens=99,
        host="::1", port=1, api_key="key", queue_limit=3, request_timeout_s=4.0, start_timeout_s=5.0,
        progress_timeout_s=6.0, send_timeout_s=7.0,
        first_output_timeout_s=8.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("localhost", True),
     ("192.168.1.1", False), ("::", False), ("example.org", False), ("", False)],
)  # fmt: skip
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_a_public_address_needs_a_key() -> None:
    with pytest.raises(UsageError, match="there is no key"):
        read_options(["--host", "192.168.1.1"], {}, "serve")
    settings = read_options(["--host", "192.168.1.1"], {"COLI_AB_API_KEY": "k"}, "serve")
    assert settings.api_key == "k"


@pytest.mark.parametrize(
    "arguments", [["--port", "70000"], ["--request-timeout", "0"], ["--queue", "x"], ["--audit"]]
)
def test_malformed_values_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read_options(arguments, {}, "serve")
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_an_audit_directory_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    assert main(["--audit", "1", "--audit-dir", str(taken)]) == 2
    assert f"--audit-dir {taken}: cannot be written" in capsys.readouterr().err
