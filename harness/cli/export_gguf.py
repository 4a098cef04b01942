"""``coli-ab export-gguf``: writes a checkpoint as a GGUF file, so that llama.cpp runs the same weights."""

import argparse
from pathlib import Path

from harness.cli.output import write_result


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "export-gguf",
        help="write a checkpoint as a GGUF file for llama.cpp",
        description="Writes a checkpoint of the embedded engine as a float32 GGUF file, with the MTP head,"
        " the tokenizer and the chat template. Needs coli-ab[llamacpp].",
    )
    parser.add_argument("--model", type=Path, metavar="DIR", help="default: the shipped checkpoint")
    parser.add_argument("output", type=Path, metavar="OUT.gguf", help="the new file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    # Only this command reads weights in this process; the others should start without the libraries for it.
    from engine_bindings.gguf_export import export_gguf  # noqa: PLC0415

    written = export_gguf(arguments.output, arguments.model)
    head = "with the MTP head" if written.has_mtp else "without an MTP head"
    write_result(f"{written.path}: {written.tensors} tensors, {written.size_bytes} bytes, {head}\n")
    return 0
