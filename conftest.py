"""Settings that hold for every test of the project."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Examples are drawn from a fixed seed and have no deadline: a test says the same on a loaded machine.
settings.register_profile(
    "project", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("project")


@pytest.fixture(scope="session", autouse=True)
def key_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Seal certificates of the tests with a key of the tests, never with the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLI_AB_KEY_FILE", str(tmp_path_factory.mktemp("key") / "certificate.key"))
        yield


@pytest.fixture(scope="session")
def shipped_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the shipped checkpoint as a GGUF file."""
    from engine_bindings.gguf_export import export_gguf  # noqa: PLC0415 - few tests need it

    path = tmp_path_factory.mktemp("gguf") / "reference.gguf"
    export_gguf(path)
    return path
