"""The bodies that clients send, checked before anything else sees them."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import PydanticCustomError

from server.api_errors import ApiError, invalid
from server.json_text import JsonTextError, parse_json
from server.parameter_rule import drop_unused

MAX_CHOICES = 4
MAX_STOPS = 16
MAX_TOOLS = 128
SEED_RANGE = 2**63


def _as_whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _one_prompt(value: Any) -> Any:
    if isinstance(value, list) and any(isinstance(one, str | list) for one in value):
        text = "several prompts in one request are not supported; send one request for each"
        raise PydanticCustomError("several_prompts", text)
    return value


Text = Annotated[str, Field(min_length=1)]
# JSON has one kind of number: 5.0 is a whole one.
Whole = Annotated[int, BeforeValidator(_as_whole)]
Schema = dict[str, JsonValue]
CODES = {
    "missing": "missing_parameter",
    "extra_forbidden": "unknown_parameter",
    "several_prompts": "unsupported",
}
# What the library says in Python's words.
MESSAGES = {
    "model_type": "Input should be an object",
    "model_attributes_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "list_type": "Input should be an array",
    "none_required": "Input should be null",
}
BodyT = TypeVar("BodyT", bound="Body")


class Body(BaseModel):
    """Base of all bodies: nothing is converted, nothing unknown is let through, nothing changes later."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TextPart(Body):
    """A part of a message's content; only text is possible."""

    type: Literal["text"]
    text: str


class CalledFunction(Body):
    """What a call named: the arguments are JSON text."""

    name: Text
    arguments: str = "{}"


class ToolCall(Body):
    """A call that an earlier answer made."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class Message(Body):
    """One message;

    the fields after ``tool_call_id`` are what clients send back of an answer, and have no effect.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[JsonValue] | None = None


class FunctionDefinition(Body):
    """A function that the model may call; ``parameters`` is its JSON Schema."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool; only functions are possible."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Body):
    """The name in a tool choice."""

    name: Text


class NamedTool(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class NamedSchema(Body):
    """The schema of `json_schema`; it always holds strictly."""

    name: str = "answer"
    description: str | None = None
    schema_: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextFormat(Body):
    """No constraint."""

    type: Literal["text"]


class ObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class SchemaFormat(Body):
    """JSON that a schema allows."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


class StreamOptions(Body):
    """Extras of a stream."""

    include_usage: bool | None = False
    include_obfuscation: bool | None = None


class TemplateSwitches(Body):
    """What a client may set in the chat template."""

    enable_thinking: bool | None = None


class SamplingBody(Body):
    """What both generation endpoints take."""

    model: str
    max_tokens: Annotated[Whole, Field(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[Whole, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[Whole, Field(ge=-SEED_RANGE, le=2 * SEED_RANGE - 1)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    ignore_eos: bool | None = None
    grammar: Text | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatBody(SamplingBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[Whole, Field(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: TemplateSwitches | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None

    @property
    def enable_thinking(self) -> bool:
        """Whether the answer is to start with reasoning; the template's switch wins over the effort."""
        switches = self.chat_template_kwargs
        if switches is not None and switches.enable_thinking is not None:
            return switches.enable_thinking
        return self.reasoning_effort not in {None, "none"}


class CompletionBody(SamplingBody):
    """`POST /v1/completions`: the exact prompt, in which special tokens are special."""

    prompt: Annotated[
        str | Annotated[list[Annotated[Whole, Field(ge=0)]], Field(min_length=1)],
        BeforeValidator(_one_prompt),
    ]
    logprobs: Annotated[Whole, Field(ge=0, le=5)] | None = None


class TokenizeBody(Body):
    """`POST /tokenize`: a text, or a conversation as the chat endpoint would render it."""

    model: str | None = None
    content: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    with_pieces: bool | None = None
    parse_special: bool | None = None


class DetokenizeBody(Body):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[Annotated[Whole, Field(ge=0)]]


def parse_body(kind: type[BodyT], raw: bytes) -> BodyT:
    """Return the body of a request. Raises ApiError that names the parameter at fault."""
    try:
        values = parse_json(raw)
    except JsonTextError as error:
        if error.place:
            param = ".".join(error.place)
            raise invalid(f"{param}: {error}", param=param) from error
        raise invalid(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(values, dict):
        raise invalid("the body must be a JSON object", code="invalid_json")
    known = frozenset(field.alias or name for name, field in kind.model_fields.items())
    try:
        return kind.model_validate(drop_unused(values, known))
    except ValidationError as error:
        raise _body_error(error, values) from error


def _body_error(error: ValidationError, values: Any) -> ApiError:
    # The error of the deepest place says most: a union reports one error for each of its members.
    first = max(error.errors(include_url=False, include_context=False), key=lambda one: len(one["loc"]))
    param = ".".join(_places(first["loc"], values, missing=first["type"] == "missing")) or None
    message = MESSAGES.get(first["type"], first["msg"])
    return invalid(f"{param}: {message}", param=param, code=CODES.get(first["type"], "invalid_value"))


def _places(location: tuple[int | str, ...], value: Any, *, missing: bool) -> Iterator[str]:
    """Yield the parts of a location that the client wrote; the others name members of a union."""
    for part in location:
        if _holds(value, part):
            value = value[part]
        elif not (missing and part is location[-1]):
            continue
        yield str(part)


def _holds(value: Any, part: int | str) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value
