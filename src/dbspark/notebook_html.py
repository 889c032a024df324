"""HTML for notebooks: tables under a title, with all text escaped. Any module may import this one."""

from __future__ import annotations

import html
from collections.abc import Sequence


def html_rows(head: Sequence[tuple[str, str]], lines: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """A table in HTML: `head` has column names with their tooltips, `right` says which columns are
    aligned to the right."""
    align = [f' style="text-align: {"right" if r else "left"}"' for r in right]
    names = "".join(
        f'<th{align[i]} title="{html.escape(told)}">{html.escape(name)}</th>' for i, (name, told) in enumerate(head)
    )
    body = "".join(
        f"<tr>{''.join(f'<td{align[i]}>{html.escape(cell)}</td>' for i, cell in enumerate(line))}</tr>"
        for line in lines
    )
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def titled(title: str, remark: str, body: str) -> str:
    """HTML under a title and a remark."""
    return f"<div><strong>{html.escape(title)}</strong> <small>{html.escape(remark)}</small>{body}</div>"


__all__ = ["html_rows", "titled"]
