"""What temperature and top-p are when a request names none: the checkpoint's own wish."""

import json
from dataclasses import dataclass
from pathlib import Path

from engine_bindings.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Temperature 0 to 2 and top-p above 0 up to 1."""

    temperature: float = 1.0
    top_p: float = 1.0


def read_sampling_defaults(model_dir: Path) -> SamplingDefaults:
    """Return what `generation_config.json` asks for: greedy when it says `do_sample: false`.

    Without the file, OpenAI's defaults hold. Raises CheckpointError when the file is broken.
    """
    path = model_dir / "generation_config.json"
    if not path.is_file():
        return SamplingDefaults()
    try:
        config = json.loads(path.read_bytes())
        sampled = config.get("do_sample", True)
        temperature = float(config.get("temperature") or 1.0) if sampled else 0.0
        return SamplingDefaults(temperature=min(2.0, temperature), top_p=float(config.get("top_p") or 1.0))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: cannot be used: {error}") from error
