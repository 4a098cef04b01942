"""The numbers that engines report, each with its line form: `parse` reads it, `to_line` writes it exactly.

Every `parse` raises ValueError when a field is missing or is not the number it should be.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

_DECIMAL = re.compile(rb"-?[0-9]{1,40}(\.[0-9]{1,40})?")


def parse_count(field: bytes) -> int:
    """Read a whole number in plain digits; `int` alone would also take signs, spaces and underscores."""
    if not field.isdigit() or len(field) > 20:
        raise ValueError(f"not a count: {field[:40]!r}")
    return int(field)


def _parse_decimal(field: bytes) -> float:
    if _DECIMAL.fullmatch(field) is None:
        raise ValueError(f"not a decimal number: {field[:40]!r}")
    return float(field)


def _parse_flag(field: bytes) -> bool:
    if field not in {b"0", b"1"}:
        raise ValueError(f"not a flag: {field[:40]!r}")
    return field == b"1"


def _fields(line: bytes, kind: bytes, least: int) -> list[bytes]:
    found, *fields = line.split(b" ")
    if found != kind or len(fields) < least:
        raise ValueError(f"not a {kind.decode()} line of {least} or more fields")
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """`STAT emitted tok_s hit% rss_gb [prompt_tokens length_limited [more ...]]`: what one turn did.

    The short form of four fields follows READY, RESET, MORE and an empty line; its last two values are None.
    `extra` holds fields beyond the sixth as they came (`swap_pct=0.0`).
    """

    emitted_tokens: int
    tokens_per_s: float
    hit_percent: float
    rss_gb: float
    prompt_tokens: int | None = None
    length_limited: bool | None = None
    extra: tuple[str, ...] = ()

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """Read either form, without a newline."""
        fields = _fields(line, b"STAT", 4)
        if len(fields) == 5:
            raise ValueError("a STAT line has 4 fields, or 6 and more")
        long = len(fields) > 4
        return cls(
            emitted_tokens=parse_count(fields[0]),
            tokens_per_s=_parse_decimal(fields[1]),
            hit_percent=_parse_decimal(fields[2]),
            rss_gb=_parse_decimal(fields[3]),
            prompt_tokens=parse_count(fields[4]) if long else None,
            length_limited=_parse_flag(fields[5]) if long else None,
            extra=tuple(field.decode("utf-8", "replace") for field in fields[6:]),
        )

    def to_line(self) -> bytes:
        """Write the form that the values ask for: long when prompt_tokens is known, else short."""
        line = f"STAT {self.emitted_tokens} {self.tokens_per_s:.2f} {self.hit_percent:.1f} {self.rss_gb:.2f}"
        if self.prompt_tokens is not None:
            line += f" {self.prompt_tokens} {int(bool(self.length_limited))}"
            line += "".join(f" {field}" for field in self.extra)
        return line.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """`PROF ...`: where the time of one served request went, and how many decode forwards it took."""

    wall_s: float
    prompt_tokens: int
    completion_tokens: int
    expert_disk_s: float
    expert_wait_s: float
    expert_matmul_s: float
    attention_s: float
    head_s: float
    forwards: int

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """Read a PROF line without its newline; fields beyond the ninth are ignored."""
        fields = _fields(line, b"PROF", 9)
        seconds = [_parse_decimal(field) for field in (fields[0], *fields[3:8])]
        return cls(
            wall_s=seconds[0],
            prompt_tokens=parse_count(fields[1]),
            completion_tokens=parse_count(fields[2]),
            expert_disk_s=seconds[1],
            expert_wait_s=seconds[2],
            expert_matmul_s=seconds[3],
            attention_s=seconds[4],
            head_s=seconds[5],
            forwards=parse_count(fields[8]),
        )

    def to_line(self) -> bytes:
        """Write the line without a newline."""
        parts = (self.expert_disk_s, self.expert_wait_s, self.expert_matmul_s, self.attention_s, self.head_s)
        spent = " ".join(f"{seconds:.3f}" for seconds in parts)
        line = f"PROF {self.wall_s:.3f} {self.prompt_tokens} {self.completion_tokens} {spent} {self.forwards}"
        return line.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """`HWINFO cores ram_total ram_available gpus vram cpu|gpu`: the machine, as serve mode tells it."""

    cores: int
    ram_total_gb: float
    ram_available_gb: float
    gpus: int = 0
    vram_gb: float = 0.0
    cpu: str = ""
    gpu: str = ""

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """Read an HWINFO line without its newline; the names may hold spaces."""
        fields = _fields(line, b"HWINFO", 5)
        cpu, _, gpu = b" ".join(fields[5:]).decode("utf-8", "replace").partition("|")
        return cls(
            cores=parse_count(fields[0]),
            ram_total_gb=_parse_decimal(fields[1]),
            ram_available_gb=_parse_decimal(fields[2]),
            gpus=parse_count(fields[3]),
            vram_gb=_parse_decimal(fields[4]),
            cpu=cpu,
            gpu=gpu,
        )

    def to_line(self) -> bytes:
        """Write the line without a newline."""
        ram = f"{self.ram_total_gb:.1f} {self.ram_available_gb:.1f}"
        return f"HWINFO {self.cores} {ram} {self.gpus} {self.vram_gb:.1f} {self.cpu}|{self.gpu}".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """`TIERS vram ram disk vram_gb ram_gb`: how many experts lie where."""

    vram_experts: int = 0
    ram_experts: int = 0
    disk_experts: int = 0
    vram_gb: float = 0.0
    ram_gb: float = 0.0

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """Read a TIERS line without its newline; fields beyond the fifth are ignored."""
        fields = _fields(line, b"TIERS", 5)
        return cls(
            vram_experts=parse_count(fields[0]),
            ram_experts=parse_count(fields[1]),
            disk_experts=parse_count(fields[2]),
            vram_gb=_parse_decimal(fields[3]),
            ram_gb=_parse_decimal(fields[4]),
        )

    def to_line(self) -> bytes:
        """Write the line without a newline."""
        counts = f"{self.vram_experts} {self.ram_experts} {self.disk_experts}"
        return f"TIERS {counts} {self.vram_gb:.2f} {self.ram_gb:.2f}".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMap:
    """`EMAP rows columns hex`: one byte per expert, `tier << 6 | heat` (tier 0 disk, 1 RAM, 2 VRAM)."""

    rows: int
    columns: int
    cells: bytes

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """Read an EMAP line without its newline."""
        rows, columns, cells = _parse_grid(line, b"EMAP", lambda rows, columns: rows * columns)
        return cls(rows=rows, columns=columns, cells=cells)

    def to_line(self) -> bytes:
        """Write the line without a newline."""
        return f"EMAP {self.rows} {self.columns} {self.cells.hex()}".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertHits:
    """`HITS rows columns hex`: one bit per expert used since the last such line, lowest bit first."""

    rows: int
    columns: int
    bits: bytes

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """Read a HITS line without its newline."""
        rows, columns, bits = _parse_grid(line, b"HITS", lambda rows, columns: (rows * columns + 7) // 8)
        return cls(rows=rows, columns=columns, bits=bits)

    def to_line(self) -> bytes:
        """Write the line without a newline."""
        return f"HITS {self.rows} {self.columns} {self.bits.hex()}".encode()


def _parse_grid(line: bytes, kind: bytes, size: Callable[[int, int], int]) -> tuple[int, int, bytes]:
    fields: Sequence[bytes] = _fields(line, kind, 3)
    rows, columns = parse_count(fields[0]), parse_count(fields[1])
    cells = bytes.fromhex(fields[2].decode("ascii", "replace"))
    if len(cells) != size(rows, columns):
        raise ValueError(f"{kind.decode()} of {rows} x {columns} holds {len(cells)} bytes")
    return rows, columns, cells
