from pathlib import Path

import pytest

from engine_bindings.errors import CheckpointError
from server.sampling_defaults import SamplingDefaults, read_sampling_defaults


@pytest.mark.parametrize(
    ("text", "temperature", "top_p"),
    [
        ('{"do_sample": false, "temperature": 0.7}', 0.0, 1.0),
        ('{"do_sample": true, "temperature": 0.7, "top_p": 0.9}', 0.7, 0.9),
        ("{}", 1.0, 1.0),
        (None, 1.0, 1.0),
    ],
)
def test_the_checkpoints_wish(tmp_path: Path, text: str | None, temperature: float, top_p: float) -> None:
    if text is not None:
        (tmp_path / "generation_config.json").write_text(text)
    assert read_sampling_defaults(tmp_path) == SamplingDefaults(temperature=temperature, top_p=top_p)


@pytest.mark.parametrize("text", ["", "[]", '{"temperature": "hot"}'])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        read_sampling_defaults(tmp_path)
