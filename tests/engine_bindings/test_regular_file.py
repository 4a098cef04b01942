"""Only regular files are read; what else lies there is named at once."""

import os
import socket
from pathlib import Path

import pytest

from engine_bindings.regular_file import check_regular, read_regular


def test_a_link_to_a_regular_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")

    assert read_regular(tmp_path / "link") == b"text"
    check_regular(tmp_path / "link")


@pytest.mark.parametrize("kind", ["pipe", "directory", "device", "socket"])
def test_anything_else_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))

    with pytest.raises(OSError, match=f"{kind}, and not a regular file|No such device"):
        read_regular(path)
    with pytest.raises(OSError, match=f"{kind}, and not a regular file"):
        check_regular(path)


def test_a_limit_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345678")

    assert read_regular(tmp_path / "file", limit_bytes=8) == b"12345678"
    with pytest.raises(OSError, match="more than 7 bytes"):
        read_regular(tmp_path / "file", limit_bytes=7)
