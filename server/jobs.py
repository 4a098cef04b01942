"""From the body of a request to a job: names checked, prompt rendered, limits applied."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from server.api_errors import context_exceeded, invalid, not_found
from server.chat_prompt import ChatTemplate, Prompt, build_chat_prompt
from server.constraints import build_constraint, constraining_parameter
from server.job import Job
from server.json_text import JsonTextError, parse_json
from server.request_bodies import ChatBody, CompletionBody, FunctionDefinition, Message, SamplingBody, Tool
from server.sampling_defaults import SamplingDefaults
from server.tokens import Tokens

# OpenAI's default for completions.
COMPLETION_TOKENS = 16
# A prompt leaves room for one token and for the row of its successor.
PROMPT_MARGIN_TOKENS = 2
SEED_MODULUS = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBuilder:
    """Makes jobs for one model."""

    model_id: str
    tokens: Tokens
    template: ChatTemplate
    defaults: SamplingDefaults
    context_tokens: int

    def check_model(self, name: str | None) -> None:
        """Raise ApiError unless the name is the served model's."""
        if name is not None and name != self.model_id:
            raise not_found(
                f"the model {name!r} is not served here; the model is {self.model_id!r}",
                code="model_not_found",
                param="model",
            )

    def chat_prompt(self, messages: list[Message], tools: list[Tool], *, enable_thinking: bool) -> Prompt:
        """Return the prompt of a conversation."""
        return build_chat_prompt(
            self.template,
            self.tokens,
            messages=[template_message(index, message) for index, message in enumerate(messages)],
            tools=[tool.model_dump(exclude_none=True) for tool in tools],
            enable_thinking=enable_thinking,
            check_length=lambda text: self.check_length(text, param="messages"),
        )

    def chat_job(self, body: ChatBody) -> Job:
        """Return the job of a chat request. Raises ApiError."""
        self.check_model(body.model)
        if body.top_logprobs and not body.logprobs:
            raise invalid("top_logprobs needs logprobs: true", param="top_logprobs")
        tools = [] if body.tool_choice == "none" else body.tools or []
        prompt = self.chat_prompt(body.messages, tools, enable_thinking=body.enable_thinking)
        functions = {tool.function.name: tool.function for tool in tools}
        grammar = build_constraint(body, reasons=prompt.reasons)
        cap = body.max_completion_tokens or body.max_tokens
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        job = self._job(
            "chatcmpl",
            body,
            prompt,
            cap=cap,
            logprobs=logprobs,
            grammar=grammar,
            functions=functions,
            chat=True,
        )
        return replace(job, grammar_param=constraining_parameter(body)) if grammar else job

    def completion_job(self, body: CompletionBody) -> Job:
        """Return the job of a completion request. Raises ApiError."""
        self.check_model(body.model)
        prompt = self.text_prompt(body.prompt)
        cap = body.max_tokens or COMPLETION_TOKENS
        grammar = (body.grammar or "").encode()
        return self._job(
            "cmpl", body, prompt, cap=cap, logprobs=body.logprobs, grammar=grammar, functions={}, chat=False
        )

    def text_prompt(self, prompt: str | list[int]) -> Prompt:
        """Return an exact prompt, in which the texts of special tokens are special tokens."""
        if isinstance(prompt, str):
            self.check_length(prompt, param="prompt")
            return Prompt(text=prompt, ids=self.tokens.encode(prompt), is_text=True)
        self.check_ids(prompt, param="prompt")
        self._check_size(len(prompt), param="prompt")
        text = self.tokens.decode(prompt).decode("utf-8", "replace")
        ids = tuple(prompt)
        return Prompt(text=text, ids=ids, is_text=self.tokens.encode(text) == ids)

    def check_length(self, text: str, *, param: str) -> None:
        """Raise ApiError for text that is too long for the context whatever its tokens are.

        To count the tokens of a text takes seconds when it is very long.
        """
        longest = self.tokens.longest_token_bytes
        size = len(text.encode())
        if longest is not None and size > self.context_tokens * longest:
            raise context_exceeded(
                f"more: {size} bytes, of which a token takes at most {longest}",
                self.prompt_limit_tokens,
                param=param,
            )

    @property
    def prompt_limit_tokens(self) -> int:
        """The longest prompt that the engine takes."""
        return self.context_tokens - PROMPT_MARGIN_TOKENS

    def check_ids(self, ids: list[int], *, param: str) -> None:
        """Raise ApiError for an id that is no token."""
        beyond = next((one for one in ids if one >= self.tokens.vocab_size), None)
        if beyond is not None:
            raise invalid(
                f"{beyond} is not a token id; they end at {self.tokens.vocab_size - 1}", param=param
            )

    def _job(
        self,
        prefix: str,
        body: SamplingBody,
        prompt: Prompt,
        *,
        cap: int | None,
        logprobs: int | None,
        grammar: bytes,
        functions: Mapping[str, FunctionDefinition],
        chat: bool,
    ) -> Job:
        prompt_param = "messages" if chat else "prompt"
        self._check_size(len(prompt.ids), param=prompt_param)
        defaults = self.defaults
        return Job(
            id=f"{prefix}-{secrets.token_hex(12)}",
            received_ns=time.monotonic_ns(),
            prompt=prompt,
            max_tokens=cap,
            temperature=defaults.temperature if body.temperature is None else body.temperature,
            top_p=defaults.top_p if body.top_p is None else body.top_p,
            seed=None if body.seed is None else body.seed % SEED_MODULUS,
            stops=body.stops,
            grammar=grammar,
            logprobs=logprobs,
            token_ids=bool(body.return_token_ids),
            choices=body.n or 1,
            ignore_eos=bool(body.ignore_eos),
            splits_reasoning=chat,
            functions=functions or None,
            prompt_param=prompt_param,
        )

    def _check_size(self, prompt_tokens: int, *, param: str) -> None:
        if not prompt_tokens:
            raise invalid("the prompt is empty", param=param, code="empty_prompt")
        if prompt_tokens > self.prompt_limit_tokens:
            raise context_exceeded(str(prompt_tokens), self.prompt_limit_tokens, param=param)


def template_message(index: int, message: Message) -> dict[str, Any]:
    """Return a message as chat templates expect it: text content, and arguments of calls as objects."""
    content = message.content
    parts = content if isinstance(content, list) else []
    text = content if isinstance(content, str) else "".join(part.text for part in parts)
    role = "system" if message.role == "developer" else message.role
    values: dict[str, Any] = {"role": role, "content": text}
    optional = {
        "reasoning_content": message.reasoning_content,
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "tool_calls": _template_calls(index, message),
    }
    return values | {name: value for name, value in optional.items() if value}


def _template_calls(index: int, message: Message) -> list[dict[str, Any]]:
    calls = []
    for place, call in enumerate(message.tool_calls or ()):
        param = f"messages.{index}.tool_calls.{place}.function.arguments"
        try:
            arguments = parse_json(call.function.arguments or "{}")
        except JsonTextError as error:
            raise invalid(f"{param} is not JSON: {error}", param=param) from error
        if not isinstance(arguments, dict):
            raise invalid(f"{param} is not a JSON object", param=param)
        function = {"name": call.function.name, "arguments": arguments}
        calls.append({"id": call.id, "type": "function", "function": function})
    return calls
