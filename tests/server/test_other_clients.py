"""Clients that were not written for this server, each as a process; one that is not installed is skipped."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.server_builders import MODEL
from tests.server.server_process import ServerProcess

LIMIT_S = 300
# A schema cannot say that a model exists, that a prompt fits, or that two parameters exclude each other.
SKIPPED_CHECKS = "positive_data_acceptance"


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = ServerProcess(tmp_path_factory.mktemp("server"))
    yield process.url()
    assert process.end() == 0


def run(*command: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**os.environ, "OPENAI_API_KEY": "none", "NO_COLOR": "1", **(environment or {})},
    )  # fmt: skip


LITELLM = """
import sys, litellm
messages = [{"role": "user", "content": "Hello"}]
common = dict(model="openai/checkpoint", api_base=sys.argv[1], messages=messages, temperature=0)
whole = litellm.completion(**common)
stream = list(litellm.completion(**common, stream=True))
text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
assert text == whole.choices[0].message.content, (text, whole)
assert whole.usage.completion_tokens > 0
print(text)
"""


@needs("litellm")
def test_litellm(url: str) -> None:
    result = run(sys.executable, "-c", LITELLM, f"{url}/v1")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith("answer ")


@needs("llm")
@pytest.mark.parametrize("option", [[], ["--no-stream"]])
def test_the_llm_command(url: str, tmp_path: Path, option: list[str]) -> None:
    models = f'- model_id: coli\n  model_name: {MODEL}\n  api_base: "{url}/v1"\n'
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    command = [sys.executable, "-m", "llm", "-m", "coli", *option, "Hello"]
    result = run(*command, environment={"LLM_USER_PATH": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("answer ")


@needs("schemathesis")
def test_schemathesis_finds_no_fault(url: str, tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "run",
        f"{url}/openapi.json",
        "--url",
        url,
    ]
    options = ["--max-examples", "10", "--exclude-checks", SKIPPED_CHECKS, "--seed", "1", "--workers", "1"]
    result = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=tmp_path
    )
    assert result.returncode == 0, result.stdout[-4000:]
