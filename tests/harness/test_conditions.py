"""What is read of the machine, from a made-up directory of Linux's."""

from pathlib import Path

import pytest

from harness.conditions import read_conditions


def write(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_what_linux_shows_is_read(tmp_path: Path) -> None:
    for cpu, governor, count in (("cpu0", "powersave", 2), ("cpu1", "performance", 3)):
        write(tmp_path, f"{cpu}/cpufreq/scaling_governor", governor)
        write(tmp_path, f"{cpu}/thermal_throttle/package_throttle_count", str(count))
    write(tmp_path, "cpufreq/boost", "0")
    conditions = read_conditions(tmp_path)
    assert conditions.governors == ("performance", "powersave")
    assert conditions.throttle_events == 5
    assert conditions.boost is False


@pytest.mark.parametrize(("text", "boost"), [("0", True), ("1", False)])
def test_the_other_driver_says_what_is_off(tmp_path: Path, text: str, boost: bool) -> None:
    write(tmp_path, "intel_pstate/no_turbo", text)
    assert read_conditions(tmp_path).boost is boost


def test_machine_that_shows_nothing_reports_nothing(tmp_path: Path) -> None:
    conditions = read_conditions(tmp_path)
    assert (conditions.governors, conditions.boost, conditions.throttle_events) == ((), None, None)
    assert conditions.busy_cpu_s > 0
    assert conditions.memory_available_bytes > 0
