"""Reports as text: JSON and back, CSV, and tables in Markdown."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sheafstain.errors import SheafStainError

T = TypeVar("T")


def json_text(said: Mapping[str, Any]) -> str:
    return json.dumps(said, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def read_json(path: Path, parse: Callable[[Any], T], what: str, command: str) -> T:
    """``parse`` what the file holds; a file that is none of ``what`` is named, with the command that writes one."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise SheafStainError(f"{path}: no such {what}; sheafstain {command} writes one") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SheafStainError(f"{path}: not a JSON {what} of sheafstain {command} ({error})") from error


def csv_text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Floats in full; undefined (NaN) is an empty cell."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return table.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    return value


def markdown_table(head: Sequence[str], body: Iterable[Sequence[str]], align: str = "--:") -> list[str]:
    """The first column to the left, the others as ``align`` says."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(head), line([":--", *[align] * (len(head) - 1)]), *map(line, body)]
