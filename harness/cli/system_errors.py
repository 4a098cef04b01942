"""What the system refuses or cannot hold, as errors that name it: a full disk is no bug of this tool."""

import errno
import os
from collections.abc import Sequence

from engine_bindings.errors import ColiAbError, StorageError, UsageError

# A system call that fails for these says that the machine is out of something, whatever it was made for.
MACHINE_ERRORS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EROFS,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
    }
)
# Of a named file: the request is wrong, and nothing has broken.
PATH_ERRORS = frozenset(
    {
        errno.ENOENT,
        errno.EACCES,
        errno.EPERM,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.EROFS,
        errno.EEXIST,
    }
)


def name_system_error(error: Exception) -> ColiAbError | None:
    """Return what a failed system call says of the machine, None where it says nothing and is our bug."""
    if not isinstance(error, OSError) or (error.filename is None and error.errno not in MACHINE_ERRORS):
        return None
    place = "" if error.filename is None else f"{error.filename}: "
    if error.errno in PATH_ERRORS:
        return UsageError(f"{place}{error.strerror}", hint="check the path, and who may read and write there")
    return StorageError(f"{place}{error.strerror}", hint="what was measured before is in its run directory")


def check_names(given: Sequence[str]) -> None:
    """Refuse names that records, which are UTF-8, could not hold. Raises UsageError."""
    try:
        directory = os.getcwd()
    except OSError as error:
        raise UsageError(f"the working directory: {error.strerror}", hint="change to another one") from error
    places = {
        **{f"argument {n}": text for n, text in enumerate(given, start=1)},
        "the working directory": directory,
    }
    for place, text in places.items():
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise UsageError(f"{place} is not UTF-8: {text!r}", hint="records are UTF-8: rename it")
