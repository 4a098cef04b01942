"""The time of day as records hold it."""

import datetime


def read_wall_clock() -> str:
    """Return the time of day in UTC, ISO 8601 to the millisecond; recorded, never measured with."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
