"""Pieces of HTML that reports are put together from: no script, nothing to load. Knows no report and no colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def document(title: str, style: str, body: str) -> str:
    """Return a page.

    Args:
        title: plain text.
        style: CSS, as it is.
        body: HTML, as it is.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title><style>{style}</style></head>'
        f"<body><main>{body}</main></body></html>\n"
    )


def verdict(text: str, *, is_good: bool) -> str:
    """Return the badge that a page begins with."""
    return f'<p><span class="verdict{"" if is_good else " failed"}">{escape(text)}</span></p>'


def cards(entries: Iterable[tuple[str, str, str]]) -> str:
    """Return (name, value, what to say below it) as cards beside each other; plain text."""
    return f'<div class="cards">{"".join(map(_card, entries))}</div>'


def section(title: str, text: str, content: str) -> str:
    """Return a section.

    Args:
        title, text: plain text; no paragraph without a text.
        content: HTML, as it is.
    """
    said = f'<p class="soft">{escape(text)}</p>' if text else ""
    return f"<section><h2>{escape(title)}</h2>{said}{content}</section>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: frozenset[int], *, last: str = "") -> str:
    """Return a table.

    Args:
        head: plain text.
        rows: cells as HTML, as they are.
        numbers: columns that get the class `number`.
        last: class of the last column where it is none of `numbers`.
    """

    def row(cells: Sequence[str], tag: str) -> str:
        classes = ["number" if position in numbers else "" for position in range(len(cells))]
        classes[-1] = classes[-1] or last
        marked = (
            f"<{tag}{f' class={name}' if name else ''}>{cell}</{tag}>"
            for cell, name in zip(cells, classes, strict=True)
        )
        return f"<tr>{''.join(marked)}</tr>"

    return f"<table>{row([escape(cell) for cell in head], 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>"


def _card(entry: tuple[str, str, str]) -> str:
    name, value, below = map(escape, entry)
    return f'<div class="card"><span class="soft">{name}</span><b>{value}</b><span class="soft">{below}</span></div>'
