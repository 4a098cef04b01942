"""What is asked: as few starts and tokens as can show each capability."""

from dataclasses import replace

import pytest

from engine_bindings.binding import UNKNOWN_DEPTH
from harness.doctor.probes import CLAMP_TOKENS, CONTEXT_TOKENS, ask_again, ask_for_margins, plan_examination
from harness.plan import Timeouts
from tests.harness.doctor.doctor_samples import ABLE, plan_visits


def test_each_path_is_started_once_for_each_reason() -> None:
    kinds = [(visit.path, visit.kind, visit.probe.spec.arm.depth) for visit in plan_visits().visits]
    own = (("plain", 0), ("drafting", 3), ("limits", 0), ("asked", 0), ("grammar", 0))
    assert kinds == [(path, kind, depth) for path in ("chat", "serve") for kind, depth in own]


def test_brief_form_has_two_starts_for_each_path_and_costs_less() -> None:
    brief = plan_visits(brief=True)
    assert [visit.kind for visit in brief.visits] == ["plain", "drafting"] * 2
    assert brief.worst_case_tokens < plan_visits().worst_case_tokens < 500


def test_path_that_takes_lines_only_is_typed_to() -> None:
    able = replace(ABLE, paths=("cli",), entries={"cli": ("line",)})
    assert {visit.probe.scenario.entry for visit in plan_visits(able).visits} == {"line"}


def test_grammar_that_only_drafts_is_sent_to_the_arm_that_drafts() -> None:
    visits = plan_visits(replace(ABLE, grammar="drafts")).visits
    grammar = next(visit for visit in visits if visit.kind == "grammar")
    assert grammar.probe.spec.arm.depth == 3
    assert grammar.probe.scenario.grammar is not None
    assert not grammar.probe.scenario.grammar.binds


@pytest.mark.parametrize(("context", "asked"), [(4096, True), (131072, False), (None, False)])
def test_context_of_a_server_is_left_as_it_is(context: int | None, asked: bool) -> None:
    able = replace(ABLE, depths=(UNKNOWN_DEPTH,), context_tokens=context)
    limits = next(v.probe.scenario for v in plan_visits(able, is_served=True).visits if v.kind == "limits")
    assert limits.context_tokens is None
    long = [c.turns[0].text for c in limits.conversations if c.id == "long"]
    assert bool(long) is asked
    if asked:
        assert len(long[0].split()) >= (context or 0)


def test_context_of_an_engine_that_is_started_is_made_small() -> None:
    limits = next(visit.probe.scenario for visit in plan_visits().visits if visit.kind == "limits")
    assert limits.context_tokens == CONTEXT_TOKENS
    assert len(limits.conversations[-1].turns[0].text.split()) > 2 * CONTEXT_TOKENS


def test_only_paths_with_a_limit_of_their_own_are_clamped() -> None:
    examination = plan_examination(ABLE, engine="x", depth=3, timeouts=Timeouts(), clampable=("chat",))
    assert {(v.path, v.kind) for v in examination.visits if v.clamped} == {("chat", "limits")}
    caps = [c.turns[0].max_tokens for c in examination.visits[2].probe.scenario.conversations[:2]]
    assert min(caps) > CLAMP_TOKENS


def test_second_start_asks_the_first_draw_alone() -> None:
    limits = plan_visits().visits[2]
    again = ask_again(limits)
    assert again.probe.spec != limits.probe.spec
    assert again.probe.scenario.turn_count == 1
    assert again.probe.scenario.temperature == limits.probe.scenario.temperature


def test_margins_are_asked_for_without_logprobs_where_those_are_refused() -> None:
    asked = plan_visits().visits[3]
    alone = ask_for_margins(asked)
    assert asked.probe.spec.probe is not None
    assert alone.probe.spec.probe is None
    assert alone.probe.settings == asked.probe.settings == (ABLE.margin_pin,)
