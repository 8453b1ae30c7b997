"""Tables of numbers as text, drawn as rich draws them: importing rich takes longer than planning a model of 70B."""

from __future__ import annotations

from collections.abc import Sequence

import click

#: Left end, line, crossing and right end of the rules above, below the header, and below the rows.
_TOP, _HEAD, _BOTTOM = ("┏", "━", "┳", "┓"), ("┡", "━", "╇", "┩"), ("└", "─", "┴", "┘")


def ruled(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table: columns to the right, as wide as their longest cell; the header is bold.

    Args:
        columns: the header.
        rows: as many cells each as there are columns.
    """
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    header = [click.style(name.rjust(width), bold=True) for name, width in zip(columns, widths, strict=True)]
    lines = [_rule(widths, _TOP), f"┃ {' ┃ '.join(header)} ┃", _rule(widths, _HEAD)]
    for row in rows:
        lines.append(f"│ {' │ '.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))} │")
    return "\n".join([*lines, _rule(widths, _BOTTOM)])


def _rule(widths: Sequence[int], drawn: tuple[str, str, str, str]) -> str:
    left, line, crossing, right = drawn
    return left + crossing.join(line * (width + 2) for width in widths) + right
