"""What a certificate speaks about: engine, model, settings and machine; and how two of them are compared."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, StringConstraints


def _freeze_mapping(value: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(sorted(value.items())))


def _check_sorted_set(values: tuple[str, ...]) -> tuple[str, ...]:
    if list(values) != sorted(set(values)):
        raise ValueError("not sorted, or a name twice")
    return values


# No control or format characters: the texts are shown on a terminal before anything vouches for them.
Name = Annotated[str, StringConstraints(pattern=r"^\P{C}+$", max_length=1000)]
Value = Annotated[str, StringConstraints(pattern=r"^\P{C}*$", max_length=10_000)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Settings = Annotated[Mapping[Name, Value], AfterValidator(_freeze_mapping), PlainSerializer(dict)]
SortedNames = Annotated[tuple[Name, ...], AfterValidator(_check_sorted_set)]


class Facts(BaseModel):
    """What a certificate certifies, and what a server is about to run; every field is compared.

    No path is among them: the same bytes in another place are the same engine and the same model.

    Attributes:
        engine_name: the binding's name.
        engine_version: as the binding knows it; None when not reported.
        engine_digest: SHA-256 over the executable or the sources.
        config_digest: SHA-256 over ``config.json``.
        tokenizer_digest: SHA-256 over ``tokenizer.json``.
        template_digest: SHA-256 over ``*.jinja`` and ``tokenizer_config.json``; None when there are none.
        weights_digest: SHA-256 over ``*.safetensors``.
        weights_bytes: their total size.
        weights_sampled: the weights were too large to be hashed whole.
        other_files_digest: SHA-256 over every other file that the engine can see; None when there are none.
        depth: draft depth; in a certificate the greatest that may be served.
        kv_slots: conversations that the engine keeps at once.
        paths: where speculation is on; in a certificate every path on which it was compared.
        settings: environment variables that are fixed for the engine, by name.
        cpu_model: the processor's name.
        cpu_features: the architecture and its arithmetic instruction sets.
        kernel_family: the library that multiplies the matrices and the kernels that it chose here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    engine_name: Name
    engine_version: Name | None
    engine_digest: Digest
    config_digest: Digest
    tokenizer_digest: Digest
    template_digest: Digest | None
    weights_digest: Digest
    weights_bytes: int = Field(ge=0)
    weights_sampled: bool
    other_files_digest: Digest | None
    depth: int = Field(ge=0)
    kv_slots: int = Field(ge=1)
    paths: Annotated[SortedNames, Field(min_length=1)]
    settings: Settings
    cpu_model: Name
    cpu_features: SortedNames
    kernel_family: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One reason why a certificate is not valid: the field's name, and a sentence with both values."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def compare_facts(certified: Facts, here: Facts) -> Iterator[Problem]:
    """Yield every field of ``here`` that the certified facts do not cover.

    The depth may be lower and the paths may be fewer; settings are compared name by name; all else is equal.
    """
    for field in Facts.model_fields:
        known, seen = getattr(certified, field), getattr(here, field)
        if known != seen:
            yield from _explain(field, known, seen)


def _explain(field: str, known: Any, seen: Any) -> Iterator[Problem]:
    if field == "settings":
        yield from _explain_settings(known, seen)
    elif field == "depth":
        yield from _explain_depth(known, seen)
    elif field == "paths":
        yield from _explain_paths(known, seen)
    elif field == "cpu_features":
        yield _explain_features(set(known), set(seen))
    else:
        yield Problem(field=field, message=f"certified {known!r}, here {seen!r}")


def _explain_settings(known: Mapping[str, str], seen: Mapping[str, str]) -> Iterator[Problem]:
    for name in sorted(known.keys() | seen.keys()):
        if known.get(name) != seen.get(name):
            values = (repr(side[name]) if name in side else "not set" for side in (known, seen))
            yield Problem(field=f"settings.{name}", message="certified {}, here {}".format(*values))


def _explain_depth(known: int, seen: int) -> Iterator[Problem]:
    if not 1 <= seen <= known:
        yield Problem(field="depth", message=f"certified 1 to {known}, here {seen}")


def _explain_paths(known: tuple[str, ...], seen: tuple[str, ...]) -> Iterator[Problem]:
    if not set(seen) <= set(known):
        yield Problem(field="paths", message=f"certified {', '.join(known)}, here {', '.join(seen)}")


def _explain_features(known: set[str], seen: set[str]) -> Problem:
    sides = (" ".join(sorted(side)) or "nothing else" for side in (known - seen, seen - known))
    return Problem(field="cpu_features", message="certified with {}, here with {}".format(*sides))
