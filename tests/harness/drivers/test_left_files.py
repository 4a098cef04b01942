"""Which files an engine wrote in its directory of links."""

from pathlib import Path

from engine_bindings.model_directory import private_model_directory
from harness.drivers.left_files import list_left_files, read_files
from harness.transcript import LeftFile


def test_new_and_changed_files_are_listed_and_links_to_the_model_are_not(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_bytes(b"{}")
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "one").write_bytes(b"1")
    with private_model_directory(tmp_path) as private:
        (private / "grammar").write_bytes(b"root")
        before = read_files(private)
        assert list_left_files(before, read_files(private)) == ()

        (private / ".coli_kv").write_bytes(b"12345")
        (private / "logs").mkdir()
        (private / "logs" / "a.txt").write_bytes(b"")
        (private / "grammar").write_bytes(b"root ::= x")

        assert list_left_files(before, read_files(private)) == (
            LeftFile(name=".coli_kv", size_bytes=5),
            LeftFile(name="grammar", size_bytes=10),
            LeftFile(name="logs/a.txt", size_bytes=0),
        )


def test_file_of_the_model_that_was_written_through_its_link_is_listed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    with private_model_directory(tmp_path) as private:
        before = read_files(private)
        (private / "config.json").write_bytes(b"{ }")

        assert list_left_files(before, read_files(private)) == (LeftFile(name="config.json", size_bytes=3),)


def test_link_that_leads_nowhere_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")

    assert read_files(tmp_path) == {}
