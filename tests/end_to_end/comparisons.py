"""Types of the fixtures of this directory."""

import subprocess
from collections.abc import Callable

Compare = Callable[..., "subprocess.CompletedProcess[str]"]
WriteWrapper = Callable[[str], str]
