"""A scenario and a model directory for tests of the command line."""

import json
from pathlib import Path

SCENARIO = """
schema = 1
name = "two-turns"
title = "Two turns"
description = "A conversation of two turns."

[defaults]
max_tokens = 8

[[conversation]]
id = "talk"
class = "chat"

[[conversation.turn]]
user = "Count to four"

[[conversation.turn]]
user = "Again"
"""


def write_model(directory: Path) -> Path:
    """Write the smallest directory that counts as a model."""
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return directory
