"""A page of text for a terminal: headings, paragraphs, lists and tables of a given width."""

import io
import textwrap
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from engine_bindings.printable import escape_control

INDENT = "  "


class Page:
    """Collects a page and returns it as text. Nothing of the real terminal or environment is asked.

    What an engine said may be in any of it, so control characters are shown as escapes.
    """

    def __init__(self, *, width: int, colour: bool) -> None:
        self._width = width
        self._buffer = io.StringIO()
        self._console = Console(
            file=self._buffer,
            width=width,
            color_system="standard" if colour else None,
            force_terminal=colour,
            no_color=not colour,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
            _environ={},
        )

    def add_line(self, text: str, *, style: str = "") -> None:
        """Add one line that is never broken, however long it is."""
        self._console.print(Text(escape_control(text), style=style), soft_wrap=True)

    def add_heading(self, text: str) -> None:
        """Add an empty line and a heading."""
        self._console.print()
        self._console.print(Text(escape_control(text), style="bold"))

    def add_item(self, text: str, *, style: str = "", level: int = 0) -> None:
        """Add one item of a list, broken at spaces, with a hanging indent; ``level`` 1 is below another."""
        indent = INDENT * (level + 1)
        lines = textwrap.wrap(
            text,
            self._width,
            initial_indent=f"{indent}- ",
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines:
            self.add_line(line, style=style)

    def add_table(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        numeric: Iterable[int],
        styles: Sequence[str] = (),
    ) -> None:
        """Add a table.

        Args:
            headers: of the columns.
            rows: the cells.
            numeric: the columns that are set to the right; they and the first one are never broken.
            styles: one for each row; empty for none.
        """
        right = frozenset(numeric)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for index, header in enumerate(headers):
            table.add_column(
                header,
                justify="right" if index in right else "left",
                no_wrap=index in right or index == 0,
                overflow="fold",
            )
        for index, row in enumerate(rows):
            table.add_row(*map(escape_control, row), style=styles[index] if styles else None)
        self._console.print(Padding(table, (0, 0, 0, len(INDENT))))

    def render(self) -> str:
        """Return the page, without blanks at the ends of lines."""
        return "\n".join(line.rstrip() for line in self._buffer.getvalue().splitlines()) + "\n"
