"""Reads from disk and machine what is about to run, for a certificate to be issued or verified."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from engine_bindings.binding import Binding, EnginePath, Pin
from engine_bindings.cpu import read_cpu, read_kernel_family
from engine_bindings.errors import CheckpointError, UsageError
from engine_bindings.facts import Facts
from engine_bindings.fingerprint import read_model_fingerprint
from engine_bindings.regular_file import open_regular

# Not the same in every arm: facts have fields for the first two, the handshake proves the next two, and the
# others are sized for the scenarios or stand in for what a request says.
ARM_PINS = frozenset(["DRAFT", "KV_SLOTS", "SERVE", "SERVE_BATCH", "COLI_TEMP", "CTX", "NGEN", "NUCLEUS"])

EXECUTABLE_MAGICS = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
KERNELS_IN_EXECUTABLE = "in the engine's executable"


def read_facts(
    binding: Binding,
    model_dir: Path,
    depth: int,
    kv_slots: int,
    pins: Iterable[Pin],
    *,
    paths: Iterable[EnginePath] = ("serve",),
) -> Facts:
    """Read what is about to run: digests of the engine and the model, this machine, and the pins.

    Args:
        binding: the engine.
        model_dir: the model directory, not an engine's private copy of it.
        depth: the draft depth that the engine is started with.
        kv_slots: the number of slots that it is started with.
        pins: every variable fixed for it, as in its Launch.
        paths: where it speculates: one path for a server, every compared path for a certificate.

    Raises:
        UsageError: a file cannot be read, a value has control characters, or a pin contradicts an argument.
    """
    pinned = {pin.name: pin for pin in pins}
    for name, expected in (("DRAFT", depth), ("KV_SLOTS", kv_slots)):
        _check_pin(pinned.get(name), expected)
    engine = binding.fingerprint()
    model = read_model_fingerprint(model_dir)
    cpu = read_cpu()
    try:
        return Facts(
            engine_name=engine.name,
            engine_version=engine.version,
            engine_digest=engine.digest,
            config_digest=model.config_digest,
            tokenizer_digest=model.tokenizer_digest,
            template_digest=_digest_files(model_dir, _is_template),
            weights_digest=model.weights_digest,
            weights_bytes=model.weights_bytes,
            weights_sampled=model.weights_sampled,
            other_files_digest=_digest_files(model_dir, _is_other),
            depth=depth,
            kv_slots=kv_slots,
            paths=tuple(sorted(set(paths))),
            settings=_select_settings(pinned),
            cpu_model=cpu.model,
            cpu_features=cpu.features,
            kernel_family=_read_kernels(Path(engine.source)),
        )
    except ValueError as error:
        raise UsageError(f"what is about to run cannot be certified: {error}") from error


def _check_pin(pin: Pin | None, expected: int) -> None:
    if pin is not None and pin.value != str(expected):
        raise UsageError(
            f"{pin.name}={pin.value} is set for the engine, but {expected} was asked for",
            hint=f"leave out --set {pin.name}; depth and slots have options of their own",
        )


def _select_settings(pinned: Mapping[str, Pin]) -> Mapping[str, str]:
    return {name: pin.value for name, pin in pinned.items() if name not in ARM_PINS}


def _read_kernels(engine: Path) -> str:
    """Return the kernel family: an executable brings its own, everything else multiplies with NumPy."""
    try:
        with open_regular(engine) as file:
            magic = file.read(4)
    except OSError:
        magic = b""
    return KERNELS_IN_EXECUTABLE if magic in EXECUTABLE_MAGICS else read_kernel_family()


def _is_template(name: Path) -> bool:
    return len(name.parts) == 1 and (name.suffix == ".jinja" or name.name == "tokenizer_config.json")


def _is_other(name: Path) -> bool:
    """Say whether no other digest covers a file; hidden ones are an engine's state or a download's notes."""
    fingerprinted = len(name.parts) == 1 and (
        name.suffix == ".safetensors" or name.name in ("config.json", "tokenizer.json")
    )
    hidden = any(part.startswith(".") for part in name.parts)
    return not fingerprinted and not hidden and not _is_template(name)


def _digest_files(root: Path, is_wanted: Callable[[Path], bool]) -> str | None:
    """Return SHA-256 over the names and contents of the wanted files below ``root``; None for no file."""
    names = sorted(path.relative_to(root) for path in root.rglob("*") if not path.is_dir())
    wanted = [name for name in names if is_wanted(name)]
    digest = hashlib.sha256()
    for name in wanted:
        try:
            with open_regular(root / name) as file:
                content = hashlib.file_digest(file, "sha256")
        except OSError as error:
            raise CheckpointError(f"{root / name}: cannot be read: {error.strerror}") from error
        digest.update(f"{name.as_posix()}\0{content.hexdigest()}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest() if wanted else None
