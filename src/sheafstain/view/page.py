"""One HTML file that needs no other: pictures inside, no script, no font, no address; light or dark as its reader is.

    page("Title", "What this is.", [section("A part", paragraph("…"), figures([Figure("H&E", pixels)]))])

Text is escaped wherever it is not ``Html`` already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from sheafstain.slides.write import NOTICE
from sheafstain.view.pictures import as_uri

_VOID = frozenset({"img", "input", "meta"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


@dataclass(frozen=True, eq=False, slots=True)
class Figure:
    """A picture uint8 [h, w, 3] with its name and what it means."""

    title: str
    pixels: NDArray[np.uint8]
    text: str = ""


def element(name: str, /, *children: str, **attributes: str) -> Html:
    """``<name attribute="…">children</name>``; ``class_`` and ``aria_label`` are called class and aria-label."""
    given = "".join(f' {key.strip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    inner = "".join(child if isinstance(child, Html) else escape(child, quote=False) for child in children)
    return Html(f"<{name}{given}>" if name in _VOID else f"<{name}{given}>{inner}</{name}>")


def paragraph(*children: str) -> Html:
    return element("p", *children)


def code(text: str) -> Html:
    return element("code", text)


def listing(lines: Iterable[str]) -> Html:
    """Commands to copy."""
    return element("pre", element("code", "\n".join(lines)))


def section(title: str, *children: str) -> Html:
    return element("section", element("h2", title), *children)


def note(*children: str) -> Html:
    """Something that must not be overlooked."""
    return element("p", *children, class_="note")


def figures(shown: Sequence[Figure], longest: int = 1024) -> Html:
    """Pictures side by side, at most ``longest`` px a side; a click enlarges one and another shrinks it again."""
    return element("div", *(_figure(figure, longest) for figure in shown), class_="figures")


def _figure(figure: Figure, longest: int) -> Html:
    picture = element("img", src=as_uri(figure.pixels, longest), alt=figure.title)
    enlarge = element("input", type="checkbox", aria_label=f"Enlarge {figure.title}")
    caption = element("figcaption", element("b", figure.title), " ", figure.text)
    return element("figure", element("label", enlarge, picture), caption)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """The first column names the row; columns after it are aligned as numbers where all their cells look like some."""
    cells = [list(row) for row in rows]
    numeric = [bool(cells) and all(_is_number(row[k]) for row in cells) for k in range(len(columns))]
    head = element("tr", *(_cell("th", name, number) for name, number in zip(columns, numeric, strict=True)))
    body = (element("tr", *(_cell("td", *pair) for pair in zip(row, numeric, strict=True))) for row in cells)
    return element("div", element("table", element("thead", head), element("tbody", *body)), class_="table")


def _cell(kind: str, text: str, number: bool) -> Html:
    return element(kind, text, class_="number") if number else element(kind, text)


def _is_number(text: str) -> bool:
    return (isinstance(text, str) and text.lstrip("−-")[:1].isdecimal()) or text in ("–", "")


def page(title: str, lead: str, sections: Iterable[Html]) -> str:
    """The whole file."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(_STYLE)),
    )
    notice = element("p", f"{NOTICE[:1].upper()}{NOTICE[1:]}.", class_="notice")
    main = element("main", element("h1", title), notice, element("p", lead, class_="lead"), *sections)
    return f"<!doctype html>\n{element('html', head, element('body', main), lang='en-GB')}\n"


_STYLE = """
:root { --paper: #fff; --ink: #1c1c1e; --quiet: #5b5b61; --line: #d9d9de; --shade: #f4f4f6; --alert: #8a3b00; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #161618; --ink: #e8e8ea; --quiet: #a2a2a9; --line: #3a3a3f; --shade: #222225; --alert: #ffb27a; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 17px/1.55 system-ui, sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 2rem 1.25rem 5rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .4rem; text-wrap: balance; }
h2 { font-size: 1.3rem; margin: 3rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 0; }
p, li { max-width: 46rem; }
.lead { font-size: 1.1rem; }
.notice { color: var(--alert); font-weight: 600; margin: 0 0 1rem; }
.note { border-left: 4px solid var(--alert); background: var(--shade); padding: .6rem 1rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 1.25rem; margin: 1.2rem 0; }
figure { margin: 0; }
figcaption { font-size: .9rem; color: var(--quiet); margin-top: .4rem; }
figcaption b { color: var(--ink); }
img { display: block; width: 100%; height: auto; background: #fff; border: 1px solid var(--line); cursor: zoom-in; }
label { display: block; }
label input { position: absolute; opacity: 0; }
label input:focus-visible + img { outline: 3px solid var(--alert); }
label input:checked + img { position: fixed; inset: 0; width: 100vw; height: 100vh; object-fit: contain; z-index: 1;
  background: var(--paper); border: 0; cursor: zoom-out; }
.table { overflow-x: auto; margin: 1.2rem 0; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .35rem 1rem .35rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 600; }
.number { text-align: right; white-space: nowrap; }
code, pre { font: .88em/1.6 ui-monospace, monospace; }
pre { background: var(--shade); padding: .8rem 1rem; overflow-x: auto; border-radius: 4px; }
.ramp { height: .8rem; max-width: 24rem; border: 1px solid var(--line); }
.scale { display: flex; justify-content: space-between; max-width: 24rem; font-size: .85rem; color: var(--quiet);
  margin: .2rem 0 1rem; }
"""
