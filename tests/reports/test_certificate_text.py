from datetime import UTC, datetime

from engine_bindings.certificate import Certificate, Evidence, Facts, Problem, issue_certificate
from reports.certificate import render_certificate, render_problems

FACTS = Facts(
    engine_name="reference",
    engine_version=None,
    engine_digest="a1" * 32,
    config_digest="b2" * 32,
    tokenizer_digest="c3" * 32,
    template_digest=None,
    weights_digest="e5" * 32,
    weights_bytes=6_401_168,
    weights_sampled=False,
    other_files_digest="f6" * 32,
    depth=3,
    kv_slots=1,
    paths=("chat", "serve"),
    settings={"SEED": "7"},
    cpu_model="A Processor",
    cpu_features=("avx2", "x86_64"),
    kernel_family="in the engine's executable",
)


def issue(facts: Facts) -> Certificate:
    evidence = Evidence(
        run_id="run-1",
        scenarios=("agent", "quick"),
        scenarios_digest="07" * 32,
        cells_compared=16,
        tokens_compared=4321,
        near_tie_policy="fail",
        near_ties=0,
        verdict="pass",
    )
    now = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
    return issue_certificate(facts=facts, evidence=evidence, key=bytes(32), now=now, tool_version="0.1.0")


EXPECTED = f"""\
certificate         format 1, coli-ab 0.1.0
issued at           2026-11-30 12:00:00 UTC
expires at          2026-12-30 12:00:00 UTC
key                 {issue(FACTS).key_id}
seal                {issue(FACTS).seal}
engine              reference (version not reported)
engine digest       {"a1" * 32}
config digest       {"b2" * 32}
tokenizer digest    {"c3" * 32}
template digest     no template
weights digest      {"e5" * 32}
weights             6,401,168 bytes
other files digest  {"f6" * 32}
depth               at most 3
kv slots            1
paths               chat, serve
setting SEED        7
cpu                 A Processor
cpu features        avx2 x86_64
kernels             in the engine's executable
run                 run-1
scenarios           agent, quick
scenarios digest    {"07" * 32}
compared            16 cells, 4,321 tokens
near-ties           0 explained, policy fail
verdict             pass
"""


def test_every_field_has_a_line() -> None:
    assert render_certificate(issue(FACTS)) == EXPECTED


def test_sampled_weights_are_said_to_be_sampled() -> None:
    text = render_certificate(issue(FACTS.model_copy(update={"weights_sampled": True})))
    assert f"{'e5' * 32} (sampled: a change between the samples is not seen)\n" in text


def test_problems_are_listed_under_the_answer() -> None:
    assert render_problems(()) == "valid\n"
    problems = (
        Problem(field="depth", message="certified 1 to 3, here 4"),
        Problem(field="seal", message="x"),
    )
    assert render_problems(problems) == "not valid\n  depth: certified 1 to 3, here 4\n  seal: x\n"
