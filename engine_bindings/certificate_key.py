"""The key that seals certificates: one small file that only its owner can read."""

import contextlib
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from engine_bindings.certificate import KEY_BYTES, CertificateError

KEY_FILE_VARIABLE = "COLI_AB_KEY_FILE"


def find_key_file(argument: Path | None, environment: Mapping[str, str]) -> Path:
    """Return the argument, else ``COLI_AB_KEY_FILE``, else a place in the user's configuration directory."""
    if argument is not None:
        return argument
    if named := environment.get(KEY_FILE_VARIABLE):
        return Path(named)
    base = Path(environment.get("XDG_CONFIG_HOME", ""))
    # The XDG specification has relative paths ignored.
    config = base if base.is_absolute() else Path(environment.get("HOME") or Path.home()) / ".config"
    return config / "coli-ab" / "certificate.key"


def read_key(path: Path) -> bytes:
    """Return the key of an existing key file.

    Raises:
        CertificateError: there is none, others can read it, or it is no key.
    """
    try:
        # Without O_NONBLOCK a named pipe in place of the file would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            _check_key_file(path, os.fstat(file.fileno()))
            return file.read(KEY_BYTES)
    except FileNotFoundError as error:
        raise CertificateError(
            f"{path}: no such key file",
            hint=f"a gate creates it; name another with --key-file or {KEY_FILE_VARIABLE}",
        ) from error
    except OSError as error:
        raise CertificateError(f"{path}: the key file cannot be read: {error.strerror}") from error


def read_or_create_key(path: Path) -> bytes:
    """Return the key, after creating its file (mode 0600, 32 random bytes) when there is none.

    Raises:
        CertificateError: as read_key, or the file cannot be created.
    """
    if not os.path.lexists(path):
        _create_key(path)
    return read_key(path)


def _create_key(path: Path) -> None:
    """Create the file whole or not at all; of two gates at once the later takes the first one's."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    except OSError as error:
        raise CertificateError(
            f"{path}: the key file cannot be created: {error.strerror}",
            hint=f"name a writable place with --key-file or {KEY_FILE_VARIABLE}",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _check_key_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise CertificateError(f"{path}: the key file is not a regular file")
    if status.st_mode & 0o077:
        raise CertificateError(
            f"{path}: others can get at the key file (mode {stat.S_IMODE(status.st_mode):04o})",
            hint=f"chmod 600 {path}; if others may have read it, delete it and gate again",
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise CertificateError(
            f"{path}: the key file belongs to another user (uid {status.st_uid})",
            hint=f"use a key file of your own: --key-file or {KEY_FILE_VARIABLE}",
        )
    if status.st_size != KEY_BYTES:
        raise CertificateError(
            f"{path}: the key file has {status.st_size} bytes, a key has {KEY_BYTES}",
            hint="delete it and gate again; certificates sealed with the old key are void then",
        )
