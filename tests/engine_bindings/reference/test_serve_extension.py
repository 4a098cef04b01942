"""Serve mode's extension in this process: options, details of tokens, constraints, and the plain protocol."""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from engine_bindings.reference.serve_extension import MAX_WAITING, WaitingOptions, parse_ids
from engine_bindings.wire import Data, Note
from engine_bindings.wire.mux_extension import (
    Options,
    Speculation,
    TokenDetail,
    encode_options,
    encode_probe,
    parse_note,
)
from tests.engine_bindings.reference.engine_sessions import PROMPT, PROMPT_TOKENS, ServeSession
from tests.engine_bindings.reference.grammar_samples import (
    CAP,
    GBNF,
    LARK,
    RIGHT,
    SCHEMA_TEXT,
    assert_valid,
    make_prompt,
)

Steps = Iterator[bytes | None]
HUNDRED = [make_prompt(number) for number in range(100)]


def ask(session: ServeSession, options: Options, request_id: int = 1, **submit: Any) -> bytes:
    return encode_options(request_id, options) + session.submit(request_id, **submit)


def run_one(options: Options, *, environ: dict[str, str] | None = None, **submit: Any) -> ServeSession:
    def script(session: ServeSession) -> Steps:
        yield ask(session, options, **submit)

    return ServeSession(script, **(environ or {}))


def details(session: ServeSession, request_id: int = 1) -> list[TokenDetail]:
    found = [parse_note(note) for note in session.of(Note)]
    return [one for one in found if isinstance(one, TokenDetail) and one.request_id == request_id]


def speculation(session: ServeSession, request_id: int = 1) -> Speculation:
    found = [parse_note(note) for note in session.of(Note)]
    return next(one for one in found if isinstance(one, Speculation) and one.request_id == request_id)


def run_all(
    prompts: Sequence[bytes], options: Options, *, depth: str, grammar: bytes, temperature: float = 0.0
) -> ServeSession:
    def script(session: ServeSession) -> Steps:
        for number, prompt in enumerate(prompts, 1):
            submit: dict[str, Any] = {"prompt": prompt, "max_tokens": CAP, "temperature": temperature}
            yield ask(session, options, number, grammar=grammar, **submit)
            yield from session.wait()

    return ServeSession(script, rules=RIGHT, DRAFT=depth, COLI_SERVE_ALL_STOPS="1")


# What a constraint gives


def test_a_hundred_answers_of_a_hundred_obey_their_schema_alike_at_both_depths() -> None:
    options = Options(constrain=True, detail=True)
    plain, deep = (run_all(HUNDRED, options, depth=depth, grammar=SCHEMA_TEXT) for depth in ("0", "3"))
    for number in range(1, 101):
        assert_valid(plain.text(number))
        assert deep.tokens(number) == plain.tokens(number)
        for session in (plain, deep):
            assert not session.done(number).stat.length_limited
            assert speculation(session, number).reason == "stop"
        assert speculation(plain, number).forwards == len(plain.tokens(number))
        assert 2 * speculation(deep, number).forwards < len(plain.tokens(number))
    assert len({deep.text(number) for number in range(1, 101)}) > 1


@pytest.mark.parametrize("grammar", [GBNF, LARK, SCHEMA_TEXT], ids=["gbnf", "lark", "schema"])
@pytest.mark.parametrize("depth", ["1", "2", "8"])
def test_every_language_constrains_at_every_depth(grammar: bytes, depth: str) -> None:
    options = Options(constrain=True, detail=True, logprobs=2)
    plain, deep = (run_all(HUNDRED[:5], options, depth=used, grammar=grammar) for used in ("0", depth))
    for number in range(1, 6):
        assert deep.tokens(number) == plain.tokens(number)
        assert speculation(deep, number).forwards < len(plain.tokens(number))
        ids, logprobs = zip(*[(d.token_id, d[3:]) for d in details(deep, number)], strict=True)
        assert (ids, logprobs) == tuple(
            zip(*[(d.token_id, d[3:]) for d in details(plain, number)], strict=True)
        )
        counts = speculation(deep, number)
        assert counts.forced_accepted_tokens
        origins = "".join(detail.origin for detail in details(deep, number))
        assert origins.count("p") == counts.forwards
        assert origins.count("d") == counts.accepted_tokens
        assert origins.count("g") == counts.forced_accepted_tokens


def test_a_sampled_answer_obeys_and_is_the_same_at_every_depth() -> None:
    options = Options(constrain=True, seed=3)
    sessions = [
        run_all(HUNDRED[:10], options, depth=depth, grammar=SCHEMA_TEXT, temperature=1.5)
        for depth in ("0", "3")
    ]
    for number in range(1, 11):
        assert_valid(sessions[0].text(number))
        assert sessions[1].tokens(number) == sessions[0].tokens(number)


class Foretold:
    """A drafter that knows the text, so that its drafts are accepted whatever they hold."""

    def __init__(self, text: list[int], prompt_tokens: int) -> None:
        self.text, self.prompt_tokens = text, prompt_tokens

    def propose(self, slot: Any, token: int, depth: int) -> list[int]:
        place = slot.length + 1 - self.prompt_tokens
        assert self.text[place - 1] == token
        return self.text[place : place + depth]

    def follow(self, slot: Any) -> None:
        return


class Reasons:
    """A model that ends its reasoning at one place and nowhere before, at every depth."""

    def __init__(self, model: Any, closing: int, place: int) -> None:
        self.model, self.closing, self.place = model, closing, place

    def forward(self, segments: Sequence[Any], *, logits_for: Any = "all") -> Any:
        rows = self.model.forward(segments, logits_for=logits_for)
        ends = [segment.start + place for segment in segments for place in range(1, len(segment.tokens) + 1)]
        for row, end in zip(rows.logits, ends if logits_for == "all" else ends[-1:], strict=True):
            row[self.closing] = 90.0 if end == self.place else -90.0
        return rows


def reason(place: int, *, depth: str, foretold: list[int] | None = None) -> ServeSession:
    """Run a turn whose ``</think>`` is its token number ``place``."""
    prompt = make_prompt(1, think=True)
    options = Options(constrain=True, constrain_after="think", logprobs=1)

    def script(session: ServeSession) -> Steps:
        engine, tokenizer = session.mode.engine, session.mode.runtime.tokenizer
        length = len(tokenizer.encode(prompt))
        engine.model = Reasons(engine.model, tokenizer.id_of("</think>"), length + place)
        engine.drafter = Foretold(foretold, length) if foretold else engine.drafter
        yield ask(session, options, prompt=prompt, grammar=SCHEMA_TEXT, max_tokens=CAP)

    return ServeSession(script, rules=RIGHT, DRAFT=depth, COLI_SERVE_ALL_STOPS="1")


@pytest.mark.parametrize("depth", ["1", "3", "8"])
def test_the_constraint_begins_behind_the_reasoning_also_inside_an_accepted_block(depth: str) -> None:
    """Every place in a block is tried; drafts that know the text are accepted whatever they hold."""
    origins = []
    for place in range(2 * int(depth) + 2):
        plain = reason(place, depth="0")
        text = [detail.token_id for detail in details(plain)]
        assert_valid(plain.text(1).partition(b"</think>")[2])
        assert text[place] == plain.mode.runtime.tokenizer.id_of("</think>")
        for session in (reason(place, depth=depth), reason(place, depth=depth, foretold=text)):
            assert [detail[:2] + detail[3:] for detail in details(session)] == [
                detail[:2] + detail[3:] for detail in details(plain)
            ]
            assert speculation(session).forwards < len(text)
            assert not session.done(1).stat.length_limited
        origins.append(details(session)[place].origin)
    assert set(origins) == {"p", "d"}


def test_reasoning_is_free_only_when_the_prompt_opens_it() -> None:
    options = Options(constrain=True, constrain_after="think")
    assert_valid(run_all([make_prompt(3)], options, depth="3", grammar=SCHEMA_TEXT).text(1))
    at_once = Options(constrain=True)
    assert_valid(run_all([make_prompt(3, think=True)], at_once, depth="3", grammar=SCHEMA_TEXT).text(1))


@pytest.mark.parametrize("slots", [2, 5])
def test_several_slots_obey_their_own_grammars_at_once(slots: int) -> None:
    grammars = [SCHEMA_TEXT, GBNF, LARK]

    def script(session: ServeSession) -> Steps:
        for slot in range(slots):
            submit: dict[str, Any] = {"prompt": HUNDRED[slot], "grammar": grammars[slot % 3]}
            yield ask(session, Options(constrain=True), slot + 1, slot=slot, max_tokens=CAP, **submit)

    together = ServeSession(script, rules=RIGHT, KV_SLOTS=str(slots), COLI_SERVE_ALL_STOPS="1")
    ids = [event.request_id for event in together.of(Data)]
    assert ids[: 2 * slots] != sorted(ids[: 2 * slots])
    for slot in range(slots):
        alone = run_all([HUNDRED[slot]], Options(constrain=True), depth="3", grammar=grammars[slot % 3])
        assert together.tokens(slot + 1) == alone.tokens(1)
        assert not together.done(slot + 1).stat.length_limited


def test_an_ended_constrained_answer_is_a_prefix_for_the_next() -> None:
    def script(session: ServeSession) -> Steps:
        yield ask(session, Options(constrain=True), prompt=PROMPT, grammar=SCHEMA_TEXT, max_tokens=CAP)
        yield from session.wait()
        session.assert_history(PROMPT, session.text(1), len(session.tokens(1)))

    ServeSession(script, rules=RIGHT, DRAFT="3", COLI_SERVE_ALL_STOPS="1")


def test_stops_are_ignored_until_the_grammar_is_at_its_end() -> None:
    grammar = b'root ::= "a" [ab]? [ab]? [ab]? "b"?'
    options = Options(constrain=True, ignore_eos=True, detail=True)
    for depth in ("0", "3"):
        session = run_all(HUNDRED[:4], options, depth=depth, grammar=grammar)
        for number in range(1, 5):
            assert len(session.text(number)) == 5
            assert speculation(session, number).reason == "stop"


# What the lines say


@pytest.mark.parametrize("depth", ["0", "1", "3", "8"])
def test_every_token_has_its_line_before_its_data(depth: str) -> None:
    session = run_one(Options(logprobs=5), environ={"DRAFT": depth}, max_tokens=30)
    kinds = [e.kind if isinstance(e, Note) else type(e).__name__ for e in session.events]
    first = kinds.index("TOKEN")
    assert kinds[first : first + 60] == ["TOKEN", "Data"] * 30
    assert kinds[-6:] == ["HWINFO", "TIERS", "EMAP", "SPEC", "TurnProfile", "Done"]
    token_bytes = session.mode.runtime.tokenizer.token_bytes
    assert [token_bytes(detail.token_id) for detail in details(session)] == session.tokens(1)


@pytest.mark.parametrize("depth", ["1", "3", "8"])
def test_scores_do_not_depend_on_the_depth(depth: str) -> None:
    plain = run_one(Options(logprobs=20), environ={"DRAFT": "0"}, max_tokens=60)
    deep = run_one(Options(logprobs=20), environ={"DRAFT": depth}, max_tokens=60)
    assert [d[3:] for d in details(deep)] == [d[3:] for d in details(plain)]
    assert any(detail.origin == "d" for detail in details(deep))
    for detail in details(plain):
        assert detail.origin == "p"
        best, *rest = detail.alternatives
        assert best == (detail.token_id, detail.logprob)
        assert [other.logprob for other in rest] == sorted((other.logprob for other in rest), reverse=True)
        assert sum(math.exp(other.logprob) for other in detail.alternatives) < 1.00001


def test_spec_and_profile_agree() -> None:
    session = run_one(Options(detail=True), environ={"DRAFT": "3"}, max_tokens=40)
    line, profile = speculation(session), session.profiles()[0]
    assert line.forwards == profile.forwards == 40 - line.accepted_tokens
    assert line.drafted_tokens >= line.accepted_tokens > 0
    assert (line.cached_tokens, line.reason) == (0, "length")
    assert (line.forced_drafted_tokens, line.forced_accepted_tokens) == (0, 0)
    assert details(session)[0].alternatives == ()


def test_a_stopped_request_says_so_and_what_was_cached() -> None:
    def script(session: ServeSession) -> Steps:
        yield ask(session, Options(detail=True), max_tokens=200)
        yield None
        yield session.client.encode_stop(1)
        yield ask(session, Options(detail=True), 2, max_tokens=1)

    session = ServeSession(script, DRAFT="1")
    assert speculation(session).reason == "stopped"
    assert speculation(session, 2).cached_tokens == PROMPT_TOKENS


# What options change, and for how long


def test_options_hold_for_one_request_and_leave_others_plain() -> None:
    def script(session: ServeSession) -> Steps:
        yield encode_options(2, Options(detail=True, depth=0))
        yield session.submit(1)
        yield from session.wait()
        yield session.submit(2)
        yield from session.wait()
        yield session.submit(2)

    session = ServeSession(script, DRAFT="3")
    frames = session.output.split(b"ACCEPT ")
    assert [b"TOKEN" in frame for frame in frames[1:]] == [False, True, False]
    assert [b"SPEC" in frame for frame in frames[1:]] == [False, True, False]
    assert speculation(session, 2).drafted_tokens == 0
    assert session.profiles()[1].forwards == 12 > session.profiles()[2].forwards


def test_a_client_without_options_sees_the_plain_protocol() -> None:
    def script(session: ServeSession) -> Steps:
        yield session.submit(1, max_tokens=20)

    session = ServeSession(script, DRAFT="3")
    kinds = {note.kind for note in session.of(Note)}
    assert kinds == {"HWINFO", "TIERS", "EMAP"}


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_the_depth_is_never_more_than_the_engines(depth: int) -> None:
    session = run_one(Options(detail=True, depth=depth), environ={"DRAFT": "2"}, max_tokens=60)
    origins = "".join(detail.origin for detail in details(session))
    assert max(len(run) for run in origins.split("p")) == min(depth, 2)


def test_a_seed_belongs_to_its_request() -> None:
    def script(session: ServeSession) -> Steps:
        for number, seed in enumerate((5, 5, 6, 2**64 - 1), 1):
            yield ask(session, Options(seed=seed), number, temperature=1.5, max_tokens=30)
            yield from session.wait()

    first, other = ServeSession(script, SEED="1"), ServeSession(script, SEED="2", DRAFT="3")
    assert first.tokens(1) == first.tokens(2) == other.tokens(1) != first.tokens(3) != first.tokens(4)
    assert other.tokens(3) == first.tokens(3)


@pytest.mark.parametrize(
    "text", [b"<|assistant|>", b"\x01\x01END\x01\x01", b"\x02PROMPT 3 4 0 1", b"<think>"]
)
def test_ids_keep_special_text_as_text(text: bytes) -> None:
    def script(session: ServeSession) -> Steps:
        tokenizer = session.mode.runtime.tokenizer
        inner = [token for byte in text for token in tokenizer.encode(bytes([byte]))]
        ids = [*tokenizer.encode(b"[gMASK]<sop><|user|>"), *inner, *tokenizer.encode(b"<|assistant|>")]
        yield ask(session, Options(payload="ids"), prompt=b" ".join(b"%d" % token for token in ids))
        yield from session.wait()
        assert session.mode.engine.slots[0].history[: len(ids)] == ids
        assert session.done(1).stat.prompt_tokens == len(ids)
        assert not tokenizer.special_ids & set(inner)

    ServeSession(script, DRAFT="3")


def test_ids_and_text_of_the_same_tokens_get_the_same_answer() -> None:
    text = run_one(Options())
    ids = text.mode.runtime.tokenizer.encode(PROMPT)
    prompt = b" ".join(b"%d" % token for token in ids)
    assert run_one(Options(payload="ids"), prompt=prompt).tokens(1) == text.tokens(1)


# What is refused


@pytest.mark.parametrize("prompt", [b"1,2", b"1  2", b" 1", b"x", b"640", b"99999999999", b"1 -2"])
def test_ids_that_are_none_are_refused(prompt: bytes) -> None:
    session = run_one(Options(payload="ids"), prompt=prompt)
    assert session.refusals() == [(1, "BAD_REQUEST", ())]


def test_no_ids_are_an_empty_prompt() -> None:
    assert run_one(Options(payload="ids"), prompt=b"").refusals() == [(1, "EMPTY_PROMPT", ())]
    assert parse_ids(b"0 639", 640) == [0, 639]


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        (b"OPTIONS 1 probe=1\n", (1, "BAD_OPTION", ("probe",))),
        (b"OPTIONS 1 depth=9\n", (1, "BAD_OPTION", ("depth",))),
        (b"OPTIONS 1 detail=1 logprobs=21\n", (1, "BAD_OPTION", ("logprobs",))),
        (b"OPTIONS 1 constrain_after=end\n", (1, "BAD_OPTION", ("constrain_after",))),
        (b"OPTIONS 1 \xff=1\n", (1, "BAD_OPTION", ("\ufffd",))),
    ],
)
def test_bad_options_are_named_and_their_request_refused_until_new_ones_come(
    line: bytes, refusal: tuple[int, str, tuple[str, ...]]
) -> None:
    def script(session: ServeSession) -> Steps:
        yield line
        yield session.submit(1)
        yield session.submit(1)
        yield encode_options(1, Options()) + session.submit(1)

    session = ServeSession(script)
    assert session.refusals() == [refusal, (1, "BAD_REQUEST", ()), (1, "BAD_REQUEST", ())]
    assert session.done(1).stat.emitted_tokens == 12


def test_options_without_a_request_are_a_bad_request() -> None:
    def script(session: ServeSession) -> Steps:
        yield b"OPTIONS 0 detail=1\nOPTIONS x\nOPTIONS\n" + encode_probe(9)

    assert [refusal[:2] for refusal in ServeSession(script).refusals()] == [
        (0, "BAD_REQUEST"), (0, "BAD_REQUEST"), (0, "BAD_REQUEST"), (9, "BAD_OPTION"),
    ]  # fmt: skip


def test_options_for_a_request_that_runs_do_not_disturb_it() -> None:
    def script(session: ServeSession) -> Steps:
        yield ask(session, Options(detail=True), max_tokens=20)
        yield b"OPTIONS 1 nonsense=1\nOPTIONS 1 detail=0\n"
        yield from session.wait()
        yield session.submit(1, max_tokens=5)

    session = ServeSession(script, DRAFT="0")
    assert session.refusals() == [(1, "DUPLICATE_ID", ()), (1, "DUPLICATE_ID", ())]
    assert len(details(session)) == 20
    assert len(session.tokens(1)) == 25


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [(b"root ::= (", "Expected"), (b'{"type": "nonsense"}', "Invalid_type:_nonsense"), (b"", "root")],
)
def test_a_constraint_that_does_not_compile_is_refused_with_its_reason(grammar: bytes, reason: str) -> None:
    session = run_one(Options(constrain=True), grammar=grammar)
    ((request_id, code, (words,)),) = session.refusals()
    assert (request_id, code) == (1, "BAD_GRAMMAR")
    assert reason in words


def test_waiting_options_are_bounded() -> None:
    waiting = WaitingOptions()
    for number in range(1, MAX_WAITING + 3):
        waiting.keep(number, Options(detail=True))
    assert waiting.take(1) == waiting.take(2) == Options()
    assert waiting.take(3) == Options(detail=True)
    waiting.keep(4, None)
    assert waiting.take(4) is None
    assert waiting.take(4) is None


# A grammar without the option: drafts, never another text


@pytest.mark.parametrize("environ", [{"DRAFT": "3"}, {"DRAFT": "0"}, {"KV_SLOTS": "2"}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_plain_grammar_only_drafts_and_only_greedily(
    environ: dict[str, str], temperature: float, capfd: pytest.CaptureFixture[str]
) -> None:
    """The grammar is the model's own answer, so that what it forces is right."""
    plain = run_one(Options(seed=4), environ=environ, max_tokens=40, temperature=temperature)
    answer = plain.text(1).decode("utf-8", "replace").partition("\ufffd")[0][:60]
    spelled = "".join(f"\\x{ord(c):02x}" if not c.isalnum() else c for c in answer if ord(c) < 256)
    grammar = f'root ::= "{spelled}" [a-z]*'.encode()
    capfd.readouterr()
    guided = run_one(
        Options(seed=4, detail=True), environ=environ, max_tokens=40, temperature=temperature, grammar=grammar
    )
    assert guided.tokens(1) == plain.tokens(1)
    line = speculation(guided)
    assert line.drafted_tokens == 0
    assert line.forwards == 40 - (line.forced_accepted_tokens or 0)
    assert bool(line.forced_drafted_tokens) == (temperature == 0)
    if temperature == 0:
        assert line.forced_accepted_tokens
    expected = "[GRAMMAR] request: 1 rules, forced span capped at 24 tokens/forward"
    assert expected in capfd.readouterr().err


def test_a_plain_grammar_at_depth_0_drafts_nothing() -> None:
    session = run_one(Options(depth=0, detail=True), environ={"DRAFT": "3"}, grammar=GBNF)
    assert speculation(session).forced_drafted_tokens == speculation(session).drafted_tokens == 0


@pytest.mark.parametrize(
    ("grammar", "line"),
    [
        (b"root ::= (", "[GRAMMAR] request: Expected ')'"),
        (b'{"type": "nonsense"}', "[SCHEMA] request: Invalid type: nonsense (running without grammar)"),
    ],
)
def test_a_plain_grammar_that_does_not_compile_is_named_and_the_turn_runs_as_ever(
    grammar: bytes, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def script(session: ServeSession) -> Steps:
        yield session.submit(1, grammar=grammar)
        yield from session.wait()
        yield session.submit(2)

    session = ServeSession(script, DRAFT="3")
    assert line in capfd.readouterr().err
    assert session.tokens(1) == session.tokens(2)
    assert session.profiles()[0].forwards == session.profiles()[1].forwards < 12


# Text of added tokens, grammars that break, and ends during prefill

ADDED = ("</think>", "<tool_call>", "</arg_key>", "</arg_value>", "<|user|>", "<|endoftext|>", "[gMASK]")


@pytest.mark.parametrize("text", ADDED)
@pytest.mark.parametrize("depth", ["0", "3"])
def test_the_text_of_an_added_token_is_plain_text_under_a_grammar(text: str, depth: str) -> None:
    quoted = json.dumps(text)
    grammars = {
        f'{{"const": {quoted}}}': quoted,
        f"root ::= {json.dumps(text + 'abc')}": f"{text}abc",
        f'{{"type": "object", "properties": {{{quoted}: {{"const": 1}}}}, "required": [{quoted}]}}': (
            f"{{{quoted}: 1}}"
        ),
    }
    for grammar, expected in grammars.items():
        session = run_all(HUNDRED[:1], Options(constrain=True), depth=depth, grammar=grammar.encode())
        assert session.text(1).decode() == expected
        assert session.mode.runtime.tokenizer.added_ids.isdisjoint(
            session.mode.engine.slots[0].history[-len(session.tokens(1)) :]
        )


MANY = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(700)}}
LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
DEAD_ENDS = [
    b'{"$ref": "#"}',
    json.dumps(LOOP).encode(),
    b"root ::= root",
    b'root ::= "a" root',
    b'{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}',
]


@pytest.mark.parametrize("grammar", DEAD_ENDS, ids=lambda grammar: grammar[:40].decode())
def test_a_grammar_that_no_text_can_obey_is_refused_before_the_turn(grammar: bytes) -> None:
    session = run_one(Options(constrain=True), grammar=grammar)
    ((request_id, code, reason),) = session.refusals()
    assert (request_id, code, len(reason)) == (1, "BAD_GRAMMAR", 1)
    assert b"ACCEPT" not in session.output


BREAKS = b'{"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"}'


MANY_BREAK = "Parser_Error:_Current_row_has_2807_items;_max_is_2000"


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [(BREAKS, "lexer_error:_too_many_expressions_constructed"), (json.dumps(MANY).encode(), MANY_BREAK)],
    ids=["pattern", "properties"],
)
@pytest.mark.parametrize("depth", ["0", "3"])
def test_a_grammar_that_breaks_during_the_turn_ends_it_with_an_error_and_the_next_one_runs(
    depth: str, grammar: bytes, reason: str
) -> None:
    def script(session: ServeSession) -> Steps:
        yield ask(session, Options(constrain=True), grammar=grammar, max_tokens=200)
        yield from session.wait()
        tokens = len(session.tokens(1))
        session.assert_history(PROMPT, session.text(1), tokens)
        yield session.submit(2)

    session = ServeSession(script, rules=RIGHT, DRAFT=depth, COLI_SERVE_ALL_STOPS="1")
    ((request_id, code, arguments),) = session.refusals()
    assert (request_id, code) == (1, "BAD_GRAMMAR")
    assert arguments[0].startswith(reason)
    assert session.done(2).request_id == 2
    assert session.status == 0


def test_a_stop_token_that_a_grammar_asks_for_as_text_is_an_error() -> None:
    grammar = b'%lark\nstart: "a" <|user|> "b"\n'
    session = run_all(HUNDRED[:1], Options(constrain=True), depth="3", grammar=grammar)
    ((_, code, _),) = session.refusals()
    assert (session.text(1), code) == (b"a", "BAD_GRAMMAR")
