"""The grammar of a scenario file: read, refused with its line, and fitted to the engine."""

from dataclasses import dataclass

import pytest

from engine_bindings.binding import Capabilities, GrammarSupport
from engine_bindings.errors import ScenarioError, UsageError
from engine_bindings.reference_engine import CAPABILITIES, ReferenceEngine
from harness.cli.grammar_support import fit_grammar
from harness.grammar import Grammar
from harness.plan import Plan, build_plan
from harness.record_json import from_json, to_json
from harness.scenario import Scenario, parse_scenario

FILES = {"x.json": '{"type": "object"}', "x.gbnf": 'root ::= "a"\n', "bad.json": '{"type": 3}'}


def parse(*lines: str) -> Scenario:
    turn = '[[conversation]]\nid = "a"\n[[conversation.turn]]\nuser = "Hi"\nmax_tokens = 8\n'
    head = "".join(f"{line}\n" for line in ('schema = 1\nname = "g"', *lines))
    return parse_scenario(head + turn, "g.toml", read)


def read(name: str) -> str:
    if name not in FILES:
        raise FileNotFoundError(2, "No such file", name)
    return FILES[name]


@pytest.mark.parametrize(
    ("lines", "grammar"),
    [
        (('schema_file = "x.json"',), Grammar(kind="schema", text=FILES["x.json"])),
        (('grammar_file = "x.gbnf"',), Grammar(kind="gbnf", text=FILES["x.gbnf"])),
        (
            ('grammar_file = "x.gbnf"', "grammar_binds = false"),
            Grammar(kind="gbnf", text=FILES["x.gbnf"], binds=False),
        ),
        ((), None),
    ],
)
def test_grammar_is_read_from_its_file(lines: tuple[str, ...], grammar: Grammar | None) -> None:
    assert parse(*lines).grammar == grammar


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ('schema_file = "x.json"', 'grammar_file = "x.gbnf"'),
            "g.toml:4: grammar_file: schema_file is given",
        ),
        (('schema_file = "none.json"',), "g.toml:3: schema_file: cannot read 'none.json'"),
        (('schema_file = "bad.json"',), "g.toml:3: schema_file: not a JSON Schema: 3 is not valid"),
        (('grammar_file = "x.json"',), "g.toml:3: grammar_file: not GBNF"),
        (("schema_file = 3",), "g.toml:3: schema_file = 3: must be text in quotes"),
        (("grammar_binds = true",), "g.toml:3: grammar_binds: there is no grammar"),
        (('schema_fil = "x.json"',), "g.toml:3: schema_fil is not a key of the format"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_line(lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(*lines)

    assert message in str(caught.value)


def test_grammar_survives_the_plan_file() -> None:
    plan = build_plan([parse('schema_file = "x.json"')])

    assert from_json(Plan, to_json(plan)) == plan


@dataclass(frozen=True)
class Engine(ReferenceEngine):
    support: GrammarSupport = "none"

    @property
    def capabilities(self) -> Capabilities:
        from dataclasses import replace

        return replace(CAPABILITIES, grammar=self.support)


def test_engine_that_only_drafts_is_not_held_to_the_grammar() -> None:
    scenario = parse('schema_file = "x.json"')

    assert fit_grammar(scenario, ReferenceEngine()) == scenario
    fitted = fit_grammar(scenario, Engine(support="drafts"))
    assert fitted.grammar == Grammar(kind="schema", text=FILES["x.json"], binds=False)


def test_engine_that_takes_no_grammar_is_named() -> None:
    with pytest.raises(UsageError, match="scenario 'g' has a grammar, and the engine 'reference' takes none"):
        fit_grammar(parse('schema_file = "x.json"'), Engine())

    assert fit_grammar(parse(), Engine()) == parse()
