"""Sizes as people type them: WIDTHxHEIGHT."""

from __future__ import annotations

import re

from sheafstain.errors import UsageError
from sheafstain.window import Size


def parse_size(text: str, option: str) -> Size:
    """``1024x768``, ``1024×768``, or ``1024`` for a square."""
    match = re.fullmatch(r"(\d{1,7})(?:[x×](\d{1,7}))?", text)
    if match is None or not int(match[1]) or not int(match[2] or match[1]):
        raise UsageError(f"{option} is WIDTHxHEIGHT in pixels, as 1024x1024, not {text!r}")
    return Size(int(match[2] or match[1]), int(match[1]))
