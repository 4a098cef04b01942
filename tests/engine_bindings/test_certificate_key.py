import os
import stat
from pathlib import Path

import pytest

from engine_bindings.certificate import CertificateError
from engine_bindings.certificate_key import find_key_file, read_key, read_or_create_key


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "config" / "coli-ab" / "certificate.key"
    read_or_create_key(path)
    return path


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_key_is_created_once_and_kept(key_file: Path) -> None:
    key = read_key(key_file)
    assert len(key) == 32
    assert read_or_create_key(key_file) == key
    assert os.listdir(key_file.parent) == ["certificate.key"]


def test_two_keys_differ(tmp_path: Path) -> None:
    assert read_or_create_key(tmp_path / "a") != read_or_create_key(tmp_path / "b")


@pytest.mark.usefixtures("open_umask")
def test_only_the_owner_gets_at_a_new_key_and_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "coli-ab" / "certificate.key"
    read_or_create_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_key_that_another_gate_created_meanwhile_is_taken(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = read_key(key_file)
    monkeypatch.setattr("os.path.lexists", lambda path: False)
    assert read_or_create_key(key_file) == key
    assert os.listdir(key_file.parent) == ["certificate.key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o777])
def test_a_key_that_others_get_at_is_refused_with_the_remedy(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    with pytest.raises(CertificateError, match=f"mode {mode:04o}.*chmod 600"):
        read_key(key_file)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_key_of_the_owner_alone_is_taken(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    assert len(read_key(key_file)) == 32


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_the_wrong_size_is_refused_and_left_alone(key_file: Path, size: int) -> None:
    key_file.write_bytes(bytes(size))
    with pytest.raises(CertificateError, match=f"has {size} bytes, a key has 32.*gate again"):
        read_or_create_key(key_file)
    assert key_file.stat().st_size == size


def test_verifying_never_creates_a_key(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"no such key file.*COLI_AB_KEY_FILE"):
        read_key(tmp_path / "certificate.key")
    assert list(tmp_path.iterdir()) == []


def test_a_dangling_link_is_not_followed_into_a_new_key(tmp_path: Path) -> None:
    (tmp_path / "certificate.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CertificateError, match="no such key file"):
        read_or_create_key(tmp_path / "certificate.key")
    assert not (tmp_path / "elsewhere").exists()


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", mode=0o600)
    with pytest.raises(CertificateError, match="not a regular file"):
        read_key(tmp_path / "pipe")
    with pytest.raises(CertificateError):
        read_key(tmp_path)


def test_a_key_of_another_user_is_refused(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = key_file.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    if owner == 0:
        assert len(read_key(key_file)) == 32
        os.chown(key_file, 4321, -1)
    with pytest.raises(CertificateError, match="belongs to another user"):
        read_key(key_file)


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CertificateError, match="cannot be created"):
        read_or_create_key(tmp_path / "file" / "certificate.key")


@pytest.mark.parametrize(
    ("argument", "environment", "expected"),
    [
        ("/a/key", {"COLI_AB_KEY_FILE": "/b/key"}, "/a/key"),
        (None, {"COLI_AB_KEY_FILE": "/b/key", "XDG_CONFIG_HOME": "/x"}, "/b/key"),
        (None, {"COLI_AB_KEY_FILE": "", "XDG_CONFIG_HOME": "/x"}, "/x/coli-ab/certificate.key"),
        (None, {"XDG_CONFIG_HOME": "relative", "HOME": "/h"}, "/h/.config/coli-ab/certificate.key"),
        (None, {"HOME": "/h"}, "/h/.config/coli-ab/certificate.key"),
    ],
)
def test_the_key_file_is_found(argument: str | None, environment: dict[str, str], expected: str) -> None:
    assert find_key_file(Path(argument) if argument else None, environment) == Path(expected)
