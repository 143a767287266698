"""A page for a browser that is one file: its pictures are inside, it has no script and asks nobody for anything."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape, unescape
from pathlib import Path
from typing import Any

HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }}
h2 {{ margin-top: 3rem; border-top: 1px solid #ccc; padding-top: 1rem }}
figure {{ margin: 1rem 0 }}
img {{ zoom: 1.3; max-width: 100%; display: block; margin: auto }}
figcaption, details, .files {{ font-size: .85rem; color: #444 }}
article {{ margin: 1rem 0; padding-left: 1rem; border-left: 4px solid #999 }}
.yes {{ border-color: #1b7f4b }} .no {{ border-color: #b3261e }}
article p {{ margin: 0 }} .sentence::first-letter {{ text-transform: uppercase }}
table {{ border-collapse: collapse }}
td, th {{ text-align: left; vertical-align: top; padding: .1rem .8rem .1rem 0; font-weight: normal }}
</style>
</head>
<body>
"""


@dataclass(frozen=True)
class Section:
    """A heading with pictures (SVG files of `figures.save`, which hold their captions) and what is said of them."""

    title: str
    pictures: tuple[Path, ...] = ()
    said: tuple[Said, ...] = ()


@dataclass(frozen=True)
class Said:
    """One sentence, a verdict on it, and what lies behind, which the reader unfolds.

    Attributes:
        holds: None where it is not decided.
        details: numbers to unfold, by their titles.
    """

    id: str
    sentence: str
    verdict: str
    holds: bool | None
    details: Mapping[str, Any] = field(default_factory=dict)


def render(title: str, lead: Iterable[str], sections: Iterable[Section]) -> str:
    """The whole page; the lead is paragraphs."""
    parts = [HEAD.format(title=escape(title)), f"<h1>{escape(title)}</h1>\n"]
    parts += [f"<p>{escape(paragraph)}</p>\n" for paragraph in lead]
    for section in sections:
        parts.append(f"<section>\n<h2>{escape(section.title)}</h2>\n")
        parts += map(_picture, section.pictures)
        parts += map(_article, section.said)
        parts.append("</section>\n")
    return "".join([*parts, "</body>\n</html>\n"])


def caption(svg: str) -> str:
    """What `figures.save` wrote into it."""
    found = re.search(r"<dc:description>(.*?)</dc:description>", svg, re.DOTALL)
    return unescape(found[1]) if found else ""


def _picture(path: Path) -> str:
    svg = path.read_text(encoding="utf-8")
    said, inside = escape(caption(svg)), base64.b64encode(svg.encode()).decode()
    files = f'<span class="files">({escape(path.stem)}.png, .svg, .pdf)</span>'
    alt = escape(path.stem.replace("_", " "))
    return (
        f'<figure>\n<img alt="{alt}" src="data:image/svg+xml;base64,{inside}">\n'
        f"<figcaption>{said} {files}</figcaption>\n</figure>\n"
    )


def _article(said: Said) -> str:
    tone = {True: "yes", False: "no", None: "open"}[said.holds]
    unfold = "".join(
        f"<details><summary>{escape(title)}</summary>{_value(value)}</details>\n"
        for title, value in said.details.items()
        if value
    )
    return (
        f'<article class="{tone}" id="{escape(said.id)}">\n'
        f"<p><b>{escape(said.id)}: {escape(said.verdict)}</b></p>\n"
        f'<p class="sentence">{escape(said.sentence)}</p>\n{unfold}</article>\n'
    )


def _value(value: Any) -> str:
    """Tables in tables, rows as one table with the columns of them all, lists in a row, numbers short."""
    if isinstance(value, Mapping):
        rows = (f"<tr><th>{escape(_words(k))}</th><td>{_value(v)}</td></tr>" for k, v in value.items())
        return f"<table>{''.join(rows)}</table>"
    if isinstance(value, list | tuple) and value and all(isinstance(row, Mapping) for row in value):
        columns = dict.fromkeys(column for row in value for column in row)
        head = "".join(f"<th>{escape(_words(column))}</th>" for column in columns)
        rows = ("".join(f"<td>{_value(row.get(column, ''))}</td>" for column in columns) for row in value)
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value)) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape({None: "none", True: "yes", False: "no"}.get(value, str(value)))


def _words(name: object) -> str:
    return str(name).replace("_", " ")
