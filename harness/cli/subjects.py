"""Reads which engines a command is about: one, or several with labels that are held against each other."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine_bindings.binding import Binding, ServedBinding
from engine_bindings.colibri_engine import COLIBRI
from engine_bindings.errors import UsageError
from engine_bindings.fingerprint import EngineFingerprint, ModelFingerprint, read_model_fingerprint
from engine_bindings.openai_server import DEFAULT_KEY_VARIABLE, OpenAiServer
from engine_bindings.registry import BINDINGS, find_binding
from harness.cli.settings import find_model_dir, parse_settings
from harness.drivers.launcher import EngineLauncher
from harness.plan import Build, Timeouts

DEFAULT_ENGINE = "reference"
PATH_ENGINE = COLIBRI
# Options that stand for a setting of the engines that take widths.
WIDTHS = {"expert_bits": "EXPERT_BITS", "dense_bits": "DENSE_BITS"}
MAX_LABEL_CHARACTERS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One engine with its model and settings.

    Attributes:
        label: name of the build, empty for one engine alone.
        engine: the text of ``--engine`` without its label.
        overrides: settings that the user fixed for it.
    """

    label: str
    engine: str
    binding: Binding
    model_dir: Path | None
    overrides: Mapping[str, str]

    @property
    def build(self) -> Build:
        """What the plan needs to know of it."""
        return Build(name=self.label, engine=self.engine, margin_pin=self.binding.capabilities.margin_pin)

    def launcher(self, timeouts: Timeouts, context_tokens: int | None) -> EngineLauncher:
        """Return what starts it."""
        return EngineLauncher(
            binding=self.binding,
            model_dir=self.model_dir,
            timeouts=timeouts,
            overrides=self.overrides,
            context_tokens=context_tokens,
        )

    def fingerprints(self) -> tuple[EngineFingerprint, ModelFingerprint]:
        """Say exactly which engine and model it is. Raises UsageError when one is not there."""
        if isinstance(self.binding, ServedBinding):
            return self.binding.fingerprint(), self.binding.served_model(self.overrides)
        assert self.model_dir is not None, "an engine is started on a model"  # noqa: S101
        return self.binding.fingerprint(), read_model_fingerprint(self.model_dir)


def add_subject_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name engines, models and settings."""
    group = parser.add_argument_group("what is tested")
    group.add_argument(
        "--engine",
        action="append",
        metavar="[LABEL=]NAME[=PATH]|URL",
        help=f"engine: {', '.join(sorted(BINDINGS))}; with =PATH any executable that speaks its protocols;"
        f" or the address of an OpenAI-compatible server (default: {DEFAULT_ENGINE}). Given twice with"
        " labels, the second is held against the first, arm by arm",
    )
    group.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="[LABEL=]DIR",
        help="model directory (default: the engine's own)",
    )
    group.add_argument("--on", metavar="URL", help="address of an OpenAI-compatible server that speculates")
    group.add_argument("--off", metavar="URL", help="address of the same without speculation")
    group.add_argument(
        "--model-name", metavar="NAME", help="model to ask a server for (default: the only one that it lists)"
    )
    group.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        help=f"environment variable with the key for a server (default: {DEFAULT_KEY_VARIABLE})",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="[LABEL:]NAME=VALUE",
        help="engine setting for all arms alike, in place of a pinned one or besides them; may be repeated."
        " With a label for the arms of that engine only",
    )
    for option, what in (("expert", "experts"), ("dense", "the other weights")):
        group.add_argument(
            f"--{option}-bits",
            type=int,
            choices=range(2, 33),
            metavar="BITS",
            help=f"colibri: width of {what} that are not quantised in the model; from 16 on float32"
            " (default: 8, as its own command line)",
        )


def read_subjects(arguments: argparse.Namespace) -> tuple[Subject, ...]:
    """Return the engines of the command line, the baseline first.

    Raises:
        UsageError: an engine is not known or not there, labels are missing or unknown, or a setting is none.
    """
    texts = arguments.engine or [_name_pair(arguments.on, arguments.off) or DEFAULT_ENGINE]
    if arguments.engine and (arguments.on or arguments.off):
        raise UsageError("--on and --off stand in place of --engine", hint="leave one of them out")
    # One engine needs no label, and a misspelt name must not be taken for one.
    engines = [("", texts[0])] if len(texts) == 1 else [_split_label(text) for text in texts]
    labels = [label for label, _ in engines]
    _check_labels(labels)
    models = _by_label(arguments.model, "=", labels, "--model")
    settings = _by_label(arguments.settings, ":", labels, "--set")
    settings[""] = [*settings[""], *_list_widths(arguments)]
    subjects = [
        _build_subject(label, engine, [*models[""], *models[label]], [*settings[""], *settings[label]])
        if label
        else _build_subject(label, engine, models[""], settings[""])
        for label, engine in engines
    ]
    return tuple(_reach(subject, arguments.model_name, arguments.api_key_env) for subject in subjects)


def _list_widths(arguments: argparse.Namespace) -> list[str]:
    """Return the settings that the options for widths stand for."""
    given = {name: getattr(arguments, option) for option, name in WIDTHS.items()}
    return [f"{name}={bits}" for name, bits in given.items() if bits is not None]


def _name_pair(on: str | None, off: str | None) -> str | None:
    """Return the engine that two servers make, None where none is named."""
    if on is None and off is None:
        return None
    if on is None or off is None:
        raise UsageError(
            f"--{'off' if on else 'on'} is missing: two servers are held against each other",
            hint="for one server alone: --engine URL",
        )
    return f"openai=off={off},on={on}"


def _reach(subject: Subject, model_name: str | None, key_variable: str | None) -> Subject:
    """Return a subject with what it takes to ask a server."""
    if not isinstance(subject.binding, OpenAiServer):
        return subject
    binding = subject.binding
    if key_variable is not None:
        binding = replace(binding, key_variable=key_variable, key_named=True)
    model = {} if model_name is None else {"model": model_name}
    return replace(subject, binding=binding, overrides={**subject.overrides, **model})


def _build_subject(label: str, engine: str, models: Sequence[str], settings: Sequence[str]) -> Subject:
    # Behind a label a bare path may stand: a build that speaks the same stdio protocols.
    name, equals, _ = engine.partition("=")
    if label and not equals and name not in BINDINGS and "://" not in engine:
        engine = f"{PATH_ENGINE}={engine}"
    binding = find_binding(engine)
    overrides = parse_settings(settings)
    if stray := [name for name in WIDTHS.values() if name in overrides and binding.name != COLIBRI]:
        raise UsageError(
            f"{stray[0]}={overrides[stray[0]]}: the engine {binding.name!r} takes no widths",
            hint=f"only {COLIBRI} does; with two engines: --set LABEL:{stray[0]}=BITS",
        )
    return Subject(
        label=label,
        engine=engine,
        binding=binding,
        model_dir=find_model_dir(binding, Path(models[-1]) if models else None),
        overrides=overrides,
    )


def _split_label(text: str) -> tuple[str, str]:
    """Split ``LABEL=ENGINE``; what stands before the first equals sign is a label unless it is an engine."""
    name, equals, rest = text.partition("=")
    if not equals or name in BINDINGS or "/" in name:
        return "", text
    if not (name.replace("-", "_").isidentifier() and len(name) <= MAX_LABEL_CHARACTERS):
        raise UsageError(
            f"--engine {text}: {name!r} is no label",
            hint=f"a label is a word of letters, digits, - and _, at most {MAX_LABEL_CHARACTERS} characters",
        )
    if not rest:
        raise UsageError(f"--engine {text}: no engine behind the label", hint=f"{name}=NAME or {name}=PATH")
    return name, rest


def _check_labels(labels: Sequence[str]) -> None:
    if len(labels) == 1:
        return
    if "" in labels or len(set(labels)) < len(labels):
        raise UsageError(
            "several engines need a label each, all different",
            hint="for example --engine main=PATH --engine pr=PATH; known engines: "
            + ", ".join(sorted(BINDINGS)),
        )


def _by_label(texts: Sequence[str], mark: str, labels: Sequence[str], option: str) -> dict[str, list[str]]:
    """Sort the texts of an option by their label; those without one are for every engine."""
    sorted_texts: dict[str, list[str]] = {label: [] for label in ("", *labels)}
    for text in texts:
        label, found, rest = text.partition(mark)
        if found and label and label in labels:
            sorted_texts[label].append(rest)
        elif mark == ":" and found and "=" not in label:
            known = ", ".join(filter(None, labels)) or "none: name engines with --engine LABEL=ENGINE"
            raise UsageError(f"{option} {text}: no engine has the label {label!r}", hint=f"labels: {known}")
        else:
            sorted_texts[""].append(text)
    return sorted_texts
