"""All kinds of fault are there, each replaces one rule, and what can be combined is combined."""

import json

import pytest

from engine_bindings.errors import UsageError
from engine_bindings.reference.defects.defect import replaced_rules
from engine_bindings.reference.defects.registry import DEFECTS, build_rules
from engine_bindings.reference.host import main
from engine_bindings.reference.rules import Rules
from engine_bindings.reference.settings import read_settings
from tests.engine_bindings.reference.defects import test_ends, test_paths, test_sampling_defects, test_state
from tests.engine_bindings.reference.defects.arms import PROMPT, Arm
from tests.engine_bindings.reference.engine_fakes import Bench, FakeModel

KINDS = {
    "state": """
        keep-rejected-kv restore-rounded-kv wrong-logits-row replay-base-minus-one duplicate-boundary-token
        cap-token-not-committed post-stop-token-kept stale-hidden-state draft-over-trim draft-row-missing
        slot-zero-hard-coded draft-kv-not-trimmed-on-reuse first-draft-unverified cross-request-state
        row-permutation poisoned-prefix adopt-one-row-too-many long-prefix-not-cut
        prefix-dropped-on-hit
    """,
    "ends": """
        cap-before-stop stop-not-checked-on-accepted stop-string-suffix-kept stop-polled-at-turn-end
        finish-reason-at-admission length-for-other-reasons no-clamp-at-window reject-loop silent-truncation
    """,
    "sampling": """
        wrong-q top-p-ignored-on-drafts penalty-last-token-only seed-ignored shared-rng logprob-zero
        cached-tokens-zero accept-denominator accept-sum-not-prefix grammar-starts-late
        matcher-advanced-by-rejected grammar-ignored-on-path
    """,
    "paths": """
        stop-set-per-path defaults-differ-per-path wrong-protocol stream-drops-on-multi-token lossy-utf8
        no-prefix-reuse reuse-lost-under-speculation retokenisation-mismatch banner-lies off-switch-partial
        random-head spec-overhead drafts-once state-carried-between-arms degenerate-but-fast
    """,
    "control": "near-tie cold-warm-tie batch-tie kernel-switch",
}
NOT_AVAILABLE = {"stop-string-suffix-kept", "penalty-last-token-only"}


def test_every_kind_of_fault_is_there() -> None:
    found = {group: [d.name for d in DEFECTS.values() if d.group == group] for group in KINDS}
    assert found == {group: names.split() for group, names in KINDS.items()}
    assert {name for name, defect in DEFECTS.items() if not defect.rules} == NOT_AVAILABLE


def test_every_defect_has_a_test_of_its_symptom() -> None:
    shown = {
        *test_state.SYMPTOMS,
        *test_ends.SYMPTOMS,
        *test_sampling_defects.SYMPTOMS,
        *test_paths.SYMPTOMS,
        *test_paths.ELSEWHERE,
        *KINDS["control"].split(),
    }
    assert shown == set(DEFECTS) - NOT_AVAILABLE


@pytest.mark.parametrize("name", sorted(set(DEFECTS) - NOT_AVAILABLE))
def test_a_defect_replaces_one_rule(name: str) -> None:
    rules = DEFECTS[name].rules
    assert rules is not None
    assert len(replaced_rules(rules)) == 1
    assert not {key for key in vars(rules) if not key.startswith("_")} - set(replaced_rules(rules))


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=lambda defect: defect.name)
def test_what_is_known_of_a_defect_is_complete(defect) -> None:  # type: ignore[no-untyped-def]
    assert all((defect.wrong, defect.seen_in, defect.references, defect.verdict))
    assert all("#" in reference for reference in defect.references)
    assert bool(defect.rules) != bool(defect.unavailable)


def rules_of(names: str) -> Rules:
    return build_rules(read_settings({"REF_DEFECT": names, "DRAFT": "3"}))


def test_without_names_the_rules_are_the_right_ones() -> None:
    assert type(rules_of("")) is Rules


def test_defects_of_different_rules_act_together() -> None:
    rules = rules_of("cap-token-not-committed, accept-denominator,near-tie")
    bench = Bench(depth=3, rules=rules)
    turn = bench.start(PROMPT, 41)
    while not bench.engine.step():
        pass
    assert turn.drafted < turn.accepted
    assert len(bench.engine.slots[0].history) in (len(PROMPT) + 40, len(PROMPT) + 41)
    assert rules.counted_drafts((1, 2, 3)) == 1
    assert not rules.takes_in(rules.cut_block((1,), frozenset(), 1))


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        ("keep-rejectedkv", "unknown defect 'keep-rejectedkv'", "did you mean 'keep-rejected-kv'?"),
        ("stop-string-suffix-kept", "is not available", "stop strings"),
        ("no-prefix-reuse,adopt-one-row-too-many", "both replace the rule 'match_prefix'", "different rules"),
        ("near-tie,near-tie", "both replace the rule 'seen_logits'", "different rules"),
    ],
)
def test_what_cannot_be_had_is_named(names: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        rules_of(names)
    assert hint in caught.value.hint


def test_the_command_line_wins_over_the_environment() -> None:
    settings = read_settings({"REF_DEFECT": "near-tie"}, defects="banner-lies,wrong-q")
    assert settings.defects == ("banner-lies", "wrong-q")


def test_the_list_names_everything_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-defects"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for defect in DEFECTS.values():
        assert f"{defect.name} {defect.verdict}" in words
        assert f"replaces {defect.replaces}" in words or defect.unavailable in words
        assert all(text in words for text in (defect.wrong, defect.seen_in, *defect.references))


def test_the_list_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-defects", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(DEFECTS)
    keys = {"name", "group", "wrong", "references", "seen_in", "verdict", "rule", "available", "unavailable"}
    assert {frozenset(row) for row in rows} == {frozenset(keys)}
    assert [row["name"] for row in rows if not row["available"]] == [n for n in DEFECTS if n in NOT_AVAILABLE]


def test_an_unknown_defect_ends_the_engine_before_it_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVE", "1")
    assert main(["--defect", "none-such"]) == 2
    assert "unknown defect 'none-such'" in capsys.readouterr().err


def test_the_healthy_arm_is_healthy() -> None:
    assert Arm(None).bench().answer(PROMPT, 40) == FakeModel().continue_greedily(PROMPT, 40)
