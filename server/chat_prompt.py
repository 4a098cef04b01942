"""Rendering a conversation with the checkpoint's own chat template, so that only the template makes special
tokens.

Everything that comes from the client gets a guard character behind each character that could open a special
token. The template then works on nearly the text itself (filters, tests and joins behave), and after
rendering the guarded places are encoded as plain text. Without such places the ids equal those of the plain
rendered text.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine_bindings.errors import CheckpointError
from server.api_errors import invalid
from server.tokens import GUARDS, Tokens

Json = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as text and as token ids.

    Attributes:
        text: the rendered text, without guards.
        ids: what the model sees.
        is_text: encoding the text gives exactly these ids, so that it can be sent to an engine that takes
            text only. reasons: the prompt ends inside an opened reasoning.
    """

    text: str
    ids: tuple[int, ...]
    is_text: bool
    reasons: bool = False


class ChatTemplate:
    """The template of one checkpoint, compiled once in a sandbox that cannot change what it is given."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        self._template = environment.from_string(source)

    def render(self, *, messages: Json, tools: Json, enable_thinking: bool) -> str:
        """Return the text that asks for the next answer.

        Raises ApiError when the template refuses the messages.
        """
        try:
            return self._template.render(
                messages=messages,
                tools=tools or None,
                add_generation_prompt=True,
                enable_thinking=enable_thinking,
            )
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            message = "the chat template cannot render these messages; check their fields"
            raise invalid(message, param="messages") from error
        except TemplateError as error:
            raise invalid(f"the chat template refuses these messages: {error}", param="messages") from error


def read_template(model_dir: Path) -> ChatTemplate:
    """Return the template of a model directory. Raises CheckpointError when it is missing or broken."""
    path = model_dir / "chat_template.jinja"
    try:
        return ChatTemplate(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read: {error.strerror}", hint="the server renders chats with this file"
        ) from error
    except (TemplateError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: not a usable template: {error}") from error


def build_chat_prompt(
    template: ChatTemplate,
    tokens: Tokens,
    *,
    messages: Sequence[Mapping[str, Json]],
    tools: Sequence[Mapping[str, Json]],
    enable_thinking: bool,
    check_length: Callable[[str], None] = lambda _text: None,
) -> Prompt:
    """Return the prompt of a conversation;

    messages hold ``role``, ``content`` as text and the template's fields. ``check_length`` gets the text
    before its tokens are computed and may refuse it.
    """
    guard = choose_guard(json.dumps([messages, tools], ensure_ascii=False))
    marked = template.render(
        messages=_guard_all(messages, tokens, guard),
        tools=_guard_all(tools, tokens, guard),
        enable_thinking=enable_thinking,
    )
    marked = marked.replace(_escaped(guard), guard)
    text = marked.replace(guard, "")
    check_length(text)
    ids = tokens.encode_guarded(marked, guard)
    return Prompt(
        text=text, ids=ids, is_text=tokens.encode(text) == ids, reasons=text.rstrip().endswith("<think>")
    )


def choose_guard(text: str) -> str:
    """Return a guard character of which neither the text nor its JSON escape occurs in ``text``."""
    for guard in GUARDS:
        if guard not in text and _escaped(guard) not in text:
            return guard
    raise invalid("the text holds every noncharacter from U+FDD0 to U+FDEF", param="messages")


def _escaped(guard: str) -> str:
    return json.dumps(guard)[1:-1]


def _guard_all(value: Json, tokens: Tokens, guard: str) -> Json:
    if isinstance(value, str):
        return tokens.guard(value, guard)
    if isinstance(value, Mapping):
        return {
            _guard_all(key, tokens, guard): _guard_all(item, tokens, guard) for key, item in value.items()
        }
    if isinstance(value, Sequence):
        return [_guard_all(item, tokens, guard) for item in value]
    return value


def _to_json(
    value: Json,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes < and > for HTML, which would change what the model reads.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
