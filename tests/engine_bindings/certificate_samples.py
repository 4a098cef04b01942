"""One certificate and what belongs to it, for the tests of this folder."""

from datetime import UTC, datetime, timedelta

from engine_bindings.certificate import Certificate, Evidence, Facts, issue_certificate

KEY = bytes(range(32))
NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
SOON = NOW + timedelta(hours=1)

FACTS = Facts(
    engine_name="reference",
    engine_version="0.1.0",
    engine_digest="a1" * 32,
    config_digest="b2" * 32,
    tokenizer_digest="c3" * 32,
    template_digest="d4" * 32,
    weights_digest="e5" * 32,
    weights_bytes=6_401_168,
    weights_sampled=False,
    other_files_digest="f6" * 32,
    depth=3,
    kv_slots=1,
    paths=("chat", "serve"),
    settings={"SEED": "20261130", "OMP_NUM_THREADS": "1", "COLI_MTP_GUARD_PCT": "0"},
    cpu_model="A Processor, 6/207/2",
    cpu_features=("avx2", "fma", "x86_64"),
    kernel_family="numpy 2.4.6 (X86_V3), openblas 0.3.31, core Haswell",
)

EVIDENCE = Evidence(
    run_id="20261130-115900-abcd",
    scenarios=("agent", "quick"),
    scenarios_digest="07" * 32,
    cells_compared=16,
    tokens_compared=4321,
    near_tie_policy="explain",
    near_ties=1,
    verdict="pass",
)


def issue(facts: Facts = FACTS, evidence: Evidence = EVIDENCE, key: bytes = KEY) -> Certificate:
    return issue_certificate(facts=facts, evidence=evidence, key=key, now=NOW, tool_version="0.1.0")
