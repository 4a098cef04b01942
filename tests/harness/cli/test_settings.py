"""A misspelt name of a setting gets a remark; a name that nobody knows may well be right."""

import pytest

from engine_bindings.registry import find_binding
from harness.cli import main
from harness.cli.settings import describe_near_misses


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("KV_SLOT", "KV_SLOTS"),
        ("COLI_TMP", "COLI_TEMP"),
        ("DRAFTS", "DRAFT"),
        ("autopin", "AUTOPIN"),
        ("REF_KERNEL", "REF_KERNELS"),
        ("OMP_NUM_THREAD", "OMP_NUM_THREADS"),
    ],
)
def test_a_near_miss_names_the_setting(name: str, meant: str) -> None:
    assert describe_near_misses(find_binding("reference"), [name]) == [
        f"--set {name}: no setting of that name is known; did you mean {meant}?"
    ]


@pytest.mark.parametrize("name", ["DRAFT", "CTX", "TOPK", "COLI_TEMP", "REF_KERNELS", "REF_DEFECT", "EXTRA"])
def test_known_and_quite_other_names_get_none(name: str) -> None:
    assert describe_near_misses(find_binding("reference"), [name]) == []


def test_a_setting_of_llama_cpp_that_is_no_pin_is_known() -> None:
    assert describe_near_misses(find_binding("llamacpp"), ["LLAMA_ARG_SPEC_DRAFT_MODEL"]) == []


def test_the_remark_is_made_before_anything_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--dry-run", "--set", "KV_SLOT=2"]) == 0
    assert "did you mean KV_SLOTS?" in capsys.readouterr().err
