"""The binding of any OpenAI-compatible server that runs already: one, or one with speculation and one
without.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from engine_bindings.binding import (
    UNKNOWN_DEPTH,
    ArmSettings,
    Capabilities,
    Launch,
    Pin,
    ServedBinding,
    apply_overrides,
)
from engine_bindings.errors import UsageError
from engine_bindings.fingerprint import EngineFingerprint, ModelFingerprint
from engine_bindings.served_facts import ServedFacts, check_url, is_loopback, read_served_facts

NAME = "openai"
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
SEED = 20261130
CHAT = "chat-completions"
WHOLE = "chat-completions-whole"
CLIENT = "openai-client"
COMPLETIONS = "completions"
# These show ids and logprobs of what they generate when asked, and others may refuse to be asked.
KNOWN = ("vllm", "coli-ab")
# These reuse a prefix to the token; a cache of blocks, such as vLLM's, reuses whole blocks only.
EXACT_PREFIXES = ("coli-ab",)
# What makes a request that of its turn and path; another value would measure something else.
OWN_FIELDS = ("messages", "prompt", "stream", "n", "url")
MARGIN_PIN = Pin(
    name="top_logprobs", value="2", reason="the two best candidates of every token: their gap is the margin"
)


@dataclass(frozen=True, kw_only=True)
class OpenAiServer(ServedBinding):
    """One server, or two.

    Attributes:
        off: the server without speculation, or the only one.
        on: the one with speculation; None with a single server, of which nobody knows at which depth it runs.
        key_variable: the environment variable that holds the key.
        key_named: the user named that variable, so the key may go wherever the address leads.
    """

    off: str
    on: str | None = None
    key_variable: str = DEFAULT_KEY_VARIABLE
    key_named: bool = False
    name: str = NAME

    @cached_property
    def _facts(self) -> tuple[ServedFacts, ...]:
        return tuple(read_served_facts(url, api_key=self._read_key(url)) for url in self._urls)

    @property
    def _urls(self) -> tuple[str, ...]:
        return (self.off,) if self.on is None else (self.off, self.on)

    def _read_key(self, url: str) -> str | None:
        """Return the key for an address. Over http it stays on this machine unless its variable was named."""
        if not (self.key_named or is_loopback(url) or url.startswith("https://")):
            return None
        key = os.environ.get(self.key_variable)
        if key is None and self.key_named:
            raise UsageError(
                f"--api-key-env {self.key_variable}: the environment has no such variable",
                hint="name the variable that holds the key, and export it",
            )
        if key is not None and not (key.isascii() and key.isprintable() and key == key.strip()):
            raise UsageError(
                f"the variable {self.key_variable} holds what no key has: a space or line break at an end, a"
                " control character, or a letter outside ASCII",
                hint="set it to the key alone; its value is not shown here",
            )
        return key

    @property
    def capabilities(self) -> Capabilities:
        """What can be asked of the servers, by what they say; depths cannot be chosen."""
        facts = self._facts
        paths = [CHAT, WHOLE]
        if find_spec("openai") is not None:
            paths.append(CLIENT)
        if all(one.renders_alike for one in facts):
            paths.append(COMPLETIONS)
        contexts = [one.context_tokens for one in facts if one.context_tokens is not None]
        return Capabilities(
            paths=tuple(paths),
            max_depth=0,
            depths=(UNKNOWN_DEPTH,) if self.on is None else None,
            entries={CHAT: ("messages",), WHOLE: ("messages",), CLIENT: ("messages",)},
            frames_are_tokens=frozenset(),
            reports_logprobs=frozenset(paths if all(one.owner in KNOWN for one in facts) else ()),
            reports_forwards=False,
            reports_drafted=all(one.has_metrics for one in facts),
            reports_cached_tokens=False,
            context_tokens=min(contexts) if len(contexts) == len(facts) else None,
            margin_pin=MARGIN_PIN,
            cold_cells=all(_choose_cache(one) != "keep" for one in facts),
            exact_prefixes=all(one.owner in EXACT_PREFIXES for one in facts),
        )

    def default_model_dir(self) -> Path | None:
        """Return None: the server has its model."""
        return None

    def fingerprint(self) -> EngineFingerprint:
        """Say which servers these are, by their own words."""
        facts = self._facts
        versions = [" ".join(filter(None, (one.owner, one.version))) for one in facts]
        return EngineFingerprint(
            name=self.name,
            version=", ".join(dict.fromkeys(filter(None, versions))) or None,
            source=" and ".join(self._urls),
            digest=_digest(one.digest() for one in facts),
            reported=True,
        )

    def served_model(self, overrides: Mapping[str, str]) -> ModelFingerprint:
        """Return the model by its name, which is all that is known of it."""
        names = [_choose_model(one, overrides) for one in self._facts]
        digest = _digest(names)
        return ModelFingerprint(
            directory=" and ".join(dict.fromkeys(names)),
            config_digest=digest,
            tokenizer_digest=digest,
            weights_digest=digest,
            weights_bytes=0,
            weights_sampled=False,
            reported=True,
        )

    def launch(self, settings: ArmSettings, overrides: Mapping[str, str]) -> Launch:
        """Return which server an arm asks, and the parameters of its requests."""
        off, *more = self._facts
        facts = more[0] if more and settings.depth else off
        _check_settings(overrides)
        model, cache = _choose_model(facts, overrides), _choose_cache(facts)
        pins = [
            Pin(name="model", value=model, reason="the model that the server lists"),
            Pin(name="cache", value=cache, reason=_CACHE_REASONS[cache]),
        ]
        if facts.owner in KNOWN:
            reason = "token ids show how many tokens a piece is"
            pins.append(Pin(name="return_token_ids", value="true", reason=reason))
        if settings.temperature > 0:
            pins.append(Pin(name="seed", value=str(SEED), reason="sampled scenarios repeat"))
        return Launch(
            argv=(),
            pins=apply_overrides(pins, overrides),
            driver="http",
            url=facts.url,
            api=settings.path,
            key_variable=self.key_variable if self._read_key(facts.url) else None,
            reads_metrics=facts.has_metrics,
        )


_CACHE_REASONS = {
    "salt": "a cell finds nothing of an earlier one in the prefix cache: cache_salt is its own",
    "evict": "a cell finds nothing of an earlier one in the one slot: another prompt goes before it",
    "keep": "nothing is known that empties this server's cache, so prefixes are not compared between cells",
}


def build_openai_server(location: str | None) -> OpenAiServer:
    """Return the binding for an address, or for ``off=ADDRESS,on=ADDRESS``.

    Raises:
        UsageError: an address is missing or wrong.
    """
    if location is None:
        raise UsageError(
            "--engine openai: no address", hint="--engine http://HOST:PORT/v1, or --on ADDRESS --off ADDRESS"
        )
    if not location.startswith("off="):
        return OpenAiServer(off=check_url(location))
    off, comma, on = location.removeprefix("off=").partition(",on=")
    if not comma:
        raise UsageError(f"--engine openai={location}: no address behind on=", hint="off=ADDRESS,on=ADDRESS")
    binding = OpenAiServer(off=check_url(off), on=check_url(on))
    if binding.off == binding.on:
        raise UsageError(
            f"--on and --off are the same server: {binding.on}",
            hint="one server shows one depth; for it alone: --engine ADDRESS",
        )
    return binding


def _check_settings(overrides: Mapping[str, str]) -> None:
    """Refuse what no request may have in place of the harness's own. Raises UsageError."""
    for name in OWN_FIELDS:
        if name in overrides:
            raise UsageError(
                f"--set {name}={overrides[name]}: that part of a request is the turn itself or its path",
                hint="turns come from scenarios; --set takes the other parameters",
            )
    cache = overrides.get("cache")
    if cache is not None and cache not in _CACHE_REASONS:
        raise UsageError(f"--set cache={cache}: no such way", hint=f"one of {', '.join(_CACHE_REASONS)}")


def _choose_model(facts: ServedFacts, overrides: Mapping[str, str]) -> str:
    """Return the model to ask for: the one that was named, or the only one."""
    named = overrides.get("model")
    served = ", ".join(facts.models[:8])
    if named is not None:
        if facts.models and named not in facts.models:
            raise UsageError(f"{facts.url}: no model {named!r} is served there", hint=f"served: {served}")
        return named
    if len(facts.models) != 1:
        what = f"several models are served there: {served}" if facts.models else "the server lists no model"
        raise UsageError(f"{facts.url}: {what}", hint="name one with --model-name NAME")
    return facts.models[0]


def _choose_cache(facts: ServedFacts) -> str:
    """Return how a cell starts with an empty cache, as far as the server is known."""
    if facts.owner == "vllm":
        return "salt"
    return "evict" if facts.owner == "coli-ab" and facts.slots == 1 else "keep"


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
