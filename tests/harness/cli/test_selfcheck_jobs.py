"""Jobs run side by side, and end together."""

import io
import threading

import pytest

from harness.cli.selfcheck_jobs import Job, run_jobs


def describe(name: str, result: int) -> str:
    return f"{name} gave {result}"


def test_every_job_gives_its_result_and_its_line():
    stream = io.StringIO()
    jobs = [Job(name=f"job-{i}", run=lambda i=i: i * i) for i in range(5)]
    results = run_jobs(jobs, workers=2, stop=threading.Event(), stream=stream, describe=describe)
    assert dict(results.done) == {f"job-{i}": i * i for i in range(5)}
    assert not results.interrupted
    assert "job-4 gave 16" in stream.getvalue()
    assert "[5/5]" in stream.getvalue()


def test_an_interruption_stops_what_runs_and_keeps_what_ended():
    stop = threading.Event()

    def interrupt() -> int:
        raise KeyboardInterrupt

    def run_until_stopped() -> int:
        assert stop.wait(60)
        raise KeyboardInterrupt

    jobs = [
        Job(name="first", run=lambda: 1),
        Job(name="second", run=interrupt),
        Job(name="third", run=run_until_stopped),
    ]
    # One at a time, so that the first has ended when the second interrupts.
    results = run_jobs(jobs, workers=1, stop=stop, stream=io.StringIO(), describe=describe)
    assert results.interrupted
    assert stop.is_set()
    assert dict(results.done) == {"first": 1}


def test_a_bug_in_a_job_is_not_swallowed():
    def fail() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_jobs(
            [Job(name="bad", run=fail)],
            workers=1,
            stop=threading.Event(),
            stream=io.StringIO(),
            describe=describe,
        )
