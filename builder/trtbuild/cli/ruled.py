"""Tables as text, drawn as rich draws them: importing rich takes longer than planning a model of 70B.

A table that is wider than the terminal wraps its cells between words; where that does not do, each row is a paragraph. A word is never broken and nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import TextWrapper

import click

from trtbuild.console import stdout_width

#: Left end, line, crossing and right end of the rules above, below the header, and below the rows.
_TOP, _HEAD, _BOTTOM = ("┏", "━", "┳", "┓"), ("┡", "━", "╇", "┩"), ("└", "─", "┴", "┘")
#: Most lines of a cell: a column with more of them is read worse than a paragraph.
_MOST_LINES = 6


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, align: str = "", title: str = "") -> None:
    """Write a table to stdout, as wide as the terminal at most; without a terminal, as wide as it is.

    Args:
        columns, rows: see `ruled`; without rows nothing is written.
        align: "<" or ">" for each column; all to the left when it is empty.
        title: a line above it.
    """
    if not rows:
        return
    width = stdout_width()
    if title:
        click.echo(title)
    if (table := _fitted(columns, rows, align or "<" * len(columns), width)) is None:
        click.echo("\n".join(_paragraphs(columns, rows, width or 0)))
    else:
        click.echo(table)


def ruled(columns: Sequence[str], rows: Sequence[Sequence[str]], *, align: str = "") -> str:
    """Return a table, its columns as wide as their longest cell; the header is bold.

    Args:
        columns: the header.
        rows: as many cells each as there are columns.
        align: "<" or ">" for each column; all to the right when it is empty.
    """
    table = _fitted(columns, rows, align or ">" * len(columns), None)
    assert table is not None  # it may be as wide as it is
    return table


def _fitted(columns: Sequence[str], rows: Sequence[Sequence[str]], align: str, width: int | None) -> str | None:
    """Return a table of at most `width` characters, None where it would take broken words or very tall cells."""
    by_column = [[name, *cells] for name, *cells in zip(columns, *rows, strict=True)]
    natural = [max(len(line) for cell in cells for line in cell.split("\n")) for cells in by_column]
    least = [max((len(word) for cell in cells for word in cell.split()), default=0) for cells in by_column]
    widths = natural if width is None else _widths(natural, least, width - 3 * len(columns) - 1)
    if widths is None:
        return None
    wrapped = [[_wrap(cell, size) for cell, size in zip(row, widths, strict=True)] for row in (columns, *rows)]
    if width is not None and any(len(lines) > _MOST_LINES for row in wrapped for lines in row):
        return None
    head, *body = wrapped
    lines = [_rule(widths, _TOP), *_row(head, widths, align, "┃", bold=True), _rule(widths, _HEAD)]
    for row in body:
        lines += _row(row, widths, align, "│")
    return "\n".join([*lines, _rule(widths, _BOTTOM)])


def _widths(natural: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Return widths of columns that fit, None when not even their longest words do; room goes to the columns that lack most of theirs."""
    widths = list(natural if sum(natural) <= room else least)
    if sum(widths) > room:
        return None
    for _ in range(min(room, sum(natural)) - sum(widths)):
        lacking = max(range(len(widths)), key=lambda column: natural[column] / max(1, widths[column]))
        widths[lacking] += 1
    return widths


def _wrap(cell: str, width: int) -> list[str]:
    wrapper = TextWrapper(max(1, width), break_long_words=False, break_on_hyphens=False)
    return [line for given in cell.split("\n") for line in wrapper.wrap(given) or [""]]


def _row(cells: Sequence[Sequence[str]], widths: Sequence[int], align: str, bar: str, *, bold: bool = False) -> Iterator[str]:  # fmt: skip
    for number in range(max(map(len, cells))):
        parts = [f"{lines[number] if number < len(lines) else '':{side}{width}}" for lines, width, side in zip(cells, widths, align, strict=True)]  # fmt: skip
        yield f"{bar} {f' {bar} '.join(click.style(part, bold=True) if bold else part for part in parts)} {bar}"


def _rule(widths: Sequence[int], drawn: tuple[str, str, str, str]) -> str:
    left, line, crossing, right = drawn
    return left + crossing.join(line * (width + 2) for width in widths) + right


def _paragraphs(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield rows as paragraphs: the first cell, and below it the others with their names; empty ones are left out."""
    indent = max(map(len, columns[1:]), default=0) + 4
    wrapper = TextWrapper(max(1, width), break_long_words=False, break_on_hyphens=False, subsequent_indent=" " * indent)
    for first, *others in rows:
        yield click.style(f"{columns[0]} {first}".strip(), bold=True)
        for name, cell in zip(columns[1:], others, strict=True):
            if cell:
                wrapper.initial_indent = f"  {name:<{indent - 4}}  "
                yield from wrapper.wrap(cell)
