import hmac
import json
import os
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from engine_bindings.certificate import (
    CERTIFICATE_LIMIT_BYTES,
    MAX_VALIDITY,
    CertificateError,
    canonical_bytes,
    issue_certificate,
    key_id,
    parse_certificate,
    read_certificate,
    verify_certificate,
    write_certificate,
)
from engine_bindings.errors import UsageError
from tests.engine_bindings.certificate_samples import EVIDENCE, FACTS, KEY, NOW, SOON, issue


def fields(certificate, *, key=KEY, facts=FACTS, now=SOON) -> list[str]:
    return [problem.field for problem in verify_certificate(certificate, key=key, facts=facts, now=now)]


def messages(certificate, *, key=KEY, facts=FACTS, now=SOON) -> str:
    return "\n".join(map(str, verify_certificate(certificate, key=key, facts=facts, now=now)))


def as_file(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, indent=2).encode() + b"\n"


# -- issuing


def test_what_was_gated_is_valid() -> None:
    assert verify_certificate(issue(), key=KEY, facts=FACTS, now=SOON) == ()


def test_the_time_is_cut_to_seconds_and_kept_in_utc() -> None:
    local = datetime(2026, 11, 30, 14, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2)))
    issued = issue_certificate(facts=FACTS, evidence=EVIDENCE, key=KEY, now=local, tool_version="1")
    assert issued.issued_at == NOW
    assert issued.issued_at.tzinfo is UTC


@pytest.mark.parametrize("verdict", ["fail", "inconclusive", "invalid"])
def test_only_a_pass_is_certified(verdict: str) -> None:
    with pytest.raises(CertificateError, match=f"verdict '{verdict}'"):
        issue(evidence=EVIDENCE.model_copy(update={"verdict": verdict}))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [({"kv_slots": 2}, "kv_slots 2"), ({"depth": 0}, "depth 0")],
)
def test_only_single_slot_speculation_is_certified(change: dict[str, int], complaint: str) -> None:
    with pytest.raises(CertificateError, match=complaint):
        issue(facts=FACTS.model_copy(update=change))


def test_near_ties_need_a_policy_that_allows_them() -> None:
    strict = EVIDENCE.model_copy(update={"near_tie_policy": "fail"})
    with pytest.raises(CertificateError, match="near_ties 1"):
        issue(evidence=strict)
    assert issue(evidence=strict.model_copy(update={"near_ties": 0})).evidence.near_ties == 0


@pytest.mark.parametrize(("validity", "is_allowed"), [(0, False), (1, True)])
def test_the_shortest_validity_is_a_second(validity: int, is_allowed: bool) -> None:
    check_validity(timedelta(seconds=validity), is_allowed)


@pytest.mark.parametrize(("excess", "is_allowed"), [(0, True), (1, False)])
def test_the_longest_validity_is_a_year(excess: int, is_allowed: bool) -> None:
    check_validity(MAX_VALIDITY + timedelta(seconds=excess), is_allowed)


def check_validity(validity: timedelta, is_allowed: bool) -> None:
    arguments = {"facts": FACTS, "evidence": EVIDENCE, "key": KEY, "now": NOW, "tool_version": "1"}
    if is_allowed:
        assert issue_certificate(**arguments, validity=validity).expires_at == NOW + validity
    else:
        with pytest.raises(CertificateError, match="365 days"):
            issue_certificate(**arguments, validity=validity)


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_key_of_another_size_neither_seals_nor_verifies(size: int) -> None:
    with pytest.raises(CertificateError, match=f"32 bytes, not {size}"):
        issue(key=bytes(size))
    with pytest.raises(CertificateError, match=f"32 bytes, not {size}"):
        verify_certificate(issue(), key=bytes(size), facts=FACTS, now=SOON)


# -- verifying


def test_a_lower_depth_and_fewer_paths_are_covered() -> None:
    for change in ({"depth": 1}, {"depth": 2}, {"paths": ("serve",)}, {"paths": ("chat",)}):
        assert fields(issue(), facts=FACTS.model_copy(update=change)) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"depth": 4}, "depth: certified 1 to 3, here 4"),
        ({"depth": 0}, "depth: certified 1 to 3, here 0"),
        ({"kv_slots": 2}, "kv_slots: certified 1, here 2"),
        ({"engine_digest": "00" * 32}, f"engine_digest: certified '{'a1' * 32}', here '{'00' * 32}'"),
        ({"weights_digest": "00" * 32}, f"weights_digest: certified '{'e5' * 32}', here '{'00' * 32}'"),
        ({"template_digest": None}, f"template_digest: certified '{'d4' * 32}', here None"),
        ({"cpu_features": ("avx2", "x86_64")}, "cpu_features: certified with fma, here with nothing else"),
        (
            {"cpu_features": ("avx2", "avx512f", "x86_64")},
            "cpu_features: certified with fma, here with avx512f",
        ),
        (
            {"settings": {"SEED": "20261130", "OMP_NUM_THREADS": "4", "NEW": ""}},
            "settings.COLI_MTP_GUARD_PCT: certified '0', here not set\n"
            "settings.NEW: certified not set, here ''\n"
            "settings.OMP_NUM_THREADS: certified '1', here '4'",
        ),
    ],
)
def test_a_difference_is_named_with_both_values(change: dict[str, object], expected: str) -> None:
    assert messages(issue(), facts=FACTS.model_copy(update=change)) == expected


def test_another_path_is_not_covered() -> None:
    certificate = issue(facts=FACTS.model_copy(update={"paths": ("chat",)}))
    here = FACTS.model_copy(update={"paths": ("serve",)})
    assert messages(certificate, facts=here) == "paths: certified chat, here serve"


def test_every_difference_is_named_at_once() -> None:
    here = FACTS.model_copy(update={"depth": 8, "kv_slots": 4, "cpu_model": "Another"})
    late = NOW + timedelta(days=31)
    assert fields(issue(), facts=here, now=late) == ["expires_at", "depth", "kv_slots", "cpu_model"]


def test_the_time_is_checked_to_the_second_on_both_ends() -> None:
    certificate = issue()
    second = timedelta(seconds=1)
    assert fields(certificate, now=NOW) == []
    assert fields(certificate, now=NOW - second) == ["issued_at"]
    assert fields(certificate, now=certificate.expires_at - second) == []
    assert fields(certificate, now=certificate.expires_at) == ["expires_at"]
    assert "expired at 2026-12-30T12:00:00Z, and it is 2026-12-30T12:00:00Z" in messages(
        certificate, now=certificate.expires_at
    )


def test_another_key_is_told_from_an_edit() -> None:
    other = bytes(32)
    assert fields(issue(), key=other) == ["seal"]
    assert key_id(KEY) in messages(issue(), key=other)
    assert key_id(other) in messages(issue(), key=other)
    edited = issue().model_copy(update={"tool_version": "9"})
    assert fields(edited) == ["seal"]
    assert "edited" in messages(edited)


def test_an_edit_that_fits_what_runs_is_still_not_valid() -> None:
    deeper = FACTS.model_copy(update={"depth": 8})
    assert fields(issue().model_copy(update={"facts": deeper}), facts=deeper) == ["seal"]


def test_the_seal_is_what_the_documentation_says() -> None:
    content = json.loads(canonical_bytes(issue()))
    seal = content.pop("seal")
    assert seal == hmac.digest(KEY, b"coli-ab certificate seal\0" + as_file(content), "sha256").hex()


# -- files


def test_a_file_gives_back_the_certificate(tmp_path: Path) -> None:
    certificate = issue()
    path = write_certificate(tmp_path, certificate)
    assert path == tmp_path / "certificate.json"
    assert read_certificate(tmp_path) == certificate
    assert read_certificate(path) == certificate
    assert path.read_bytes() == canonical_bytes(certificate)
    assert os.listdir(tmp_path) == ["certificate.json"]


def test_writing_replaces_a_file_whole(tmp_path: Path) -> None:
    target = tmp_path / "kept.json"
    target.write_text("x" * 100_000)
    write_certificate(target, issue())
    assert read_certificate(target) == issue()


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="cannot be written: No such file"):
        write_certificate(tmp_path / "missing" / "certificate.json", issue())


def test_the_form_is_plain_sorted_ascii_without_floats() -> None:
    text = canonical_bytes(issue(facts=FACTS.model_copy(update={"cpu_model": "Prozessor für alle"})))
    assert text.isascii()
    assert text.endswith(b"}\n")
    value = json.loads(text, parse_float=pytest.fail)
    assert as_file(value) == text
    assert value["issued_at"] == "2026-11-30T12:00:00Z"
    assert parse_certificate(text, source="x").facts.cpu_model == "Prozessor für alle"


GOOD = canonical_bytes(issue())


@pytest.mark.parametrize(
    "data",
    [
        GOOD + b"\n",
        GOOD + b"{}",
        GOOD[:-1],
        b"\xef\xbb\xbf" + GOOD,
        b" " + GOOD,
        json.dumps(json.loads(GOOD)).encode(),
        GOOD.replace(b"{\n", b'{\n  "format": 1,\n', 1),
        GOOD.replace(b'"depth": 3,', b'"depth": 8,\n    "depth": 3,'),
        GOOD.replace(b'"depth": 3,', b'"depth": 3.0,'),
        GOOD.replace(b'"depth": 3,', b'"depth": "3",'),
        GOOD.replace(b"12:00:00Z", b"12:00:00+00:00"),
        GOOD.replace(b"2026-11-30T12:00:00Z", b"2026-11-30T13:00:00+01:00"),
        GOOD.replace(b'"2026-11-30T12:00:00Z"', b"1796040000"),
        GOOD.replace(b"reference", b"\\u0072eference"),
        GOOD.replace(b'"avx2",\n      "fma"', b'"fma",\n      "avx2"'),
    ],
)
def test_other_bytes_for_the_same_values_are_refused(data: bytes) -> None:
    assert data != GOOD
    with pytest.raises(CertificateError):
        parse_certificate(data, source="x")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "Invalid JSON"),
        (b"\xff\xfe\x00", "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON"),
        (b"1" * 10_000, "not a certificate"),
        (b"[]\n", "not a certificate"),
        (b'{"format": 1}\n', "facts: Field required"),
        (GOOD.replace(b'"format": 1', b'"format": 2'), "format: 2, and this version reads 1"),
        (b'{"format": "new", "facts": 3}', "format: 'new', and this version reads 1"),
        (GOOD.replace(b'"verdict": "pass"', b'"verdict": "fail"'), "verdict 'fail'"),
        (GOOD.replace(b'"kv_slots": 1', b'"kv_slots": 2'), "kv_slots 2"),
        (GOOD.replace(b'"run_id": "', b'"run_id": "\\u001b[31m'), "evidence.run_id: String should match"),
        (GOOD.replace(b'"run_id": "', b'"run_id": "\\ud800'), "not a certificate"),
    ],
)
def test_a_bad_file_is_refused_by_name_and_reason(tmp_path: Path, data: bytes, complaint: str) -> None:
    path = tmp_path / "certificate.json"
    path.write_bytes(data)
    with pytest.raises(CertificateError, match=re.escape(complaint)) as raised:
        read_certificate(tmp_path)
    assert raised.value.message.startswith(f"{path}: not a certificate")
    assert raised.value.code == "certificate"
    assert isinstance(raised.value, UsageError)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing.json", tmp_path / "pipe"):
        with pytest.raises(CertificateError, match="no certificate there"):
            read_certificate(path)


@pytest.mark.parametrize(("excess", "complaint"), [(0, "one form"), (1, "larger than")])
def test_a_file_is_read_up_to_its_limit(tmp_path: Path, excess: int, complaint: str) -> None:
    path = tmp_path / "certificate.json"
    path.write_bytes(GOOD.ljust(CERTIFICATE_LIMIT_BYTES + excess))
    with pytest.raises(CertificateError, match=complaint):
        read_certificate(path)
