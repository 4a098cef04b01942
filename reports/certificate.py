"""Renders a certificate, and what is wrong with it, as plain text."""

from collections.abc import Iterator, Sequence

from engine_bindings.certificate import Certificate, Evidence, Facts, Problem

Row = tuple[str, str]

SAMPLED_NOTE = " (sampled: a change between the samples is not seen)"


def render_certificate(certificate: Certificate) -> str:
    """Return one line for each field, names on the left; the text ends with a newline."""
    rows = (
        *_issue_rows(certificate),
        *_engine_rows(certificate.facts),
        *_machine_rows(certificate.facts),
        *_evidence_rows(certificate.evidence),
    )
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}}  {value}\n" for name, value in rows)


def render_problems(problems: Sequence[Problem]) -> str:
    """Return ``valid``, or ``not valid`` and one line for each reason; the text ends with a newline."""
    if not problems:
        return "valid\n"
    return "".join(["not valid\n", *(f"  {problem}\n" for problem in problems)])


def _issue_rows(certificate: Certificate) -> Iterator[Row]:
    yield "certificate", f"format {certificate.format}, coli-ab {certificate.tool_version}"
    yield "issued at", f"{certificate.issued_at:%Y-%m-%d %H:%M:%S} UTC"
    yield "expires at", f"{certificate.expires_at:%Y-%m-%d %H:%M:%S} UTC"
    yield "key", certificate.key_id
    yield "seal", certificate.seal


def _engine_rows(facts: Facts) -> Iterator[Row]:
    yield "engine", f"{facts.engine_name} {facts.engine_version or '(version not reported)'}"
    yield "engine digest", facts.engine_digest
    yield "config digest", facts.config_digest
    yield "tokenizer digest", facts.tokenizer_digest
    yield "template digest", facts.template_digest or "no template"
    yield "weights digest", facts.weights_digest + (SAMPLED_NOTE if facts.weights_sampled else "")
    yield "weights", f"{facts.weights_bytes:,} bytes"
    yield "other files digest", facts.other_files_digest or "no other files"
    yield "depth", f"at most {facts.depth}"
    yield "kv slots", str(facts.kv_slots)
    yield "paths", ", ".join(facts.paths)
    for name, value in facts.settings.items():
        yield f"setting {name}", value


def _machine_rows(facts: Facts) -> Iterator[Row]:
    yield "cpu", facts.cpu_model
    yield "cpu features", " ".join(facts.cpu_features)
    yield "kernels", facts.kernel_family


def _evidence_rows(evidence: Evidence) -> Iterator[Row]:
    yield "run", evidence.run_id
    yield "scenarios", ", ".join(evidence.scenarios)
    yield "scenarios digest", evidence.scenarios_digest
    yield "compared", f"{evidence.cells_compared:,} cells, {evidence.tokens_compared:,} tokens"
    yield "near-ties", f"{evidence.near_ties} explained, policy {evidence.near_tie_policy}"
    yield "verdict", evidence.verdict
