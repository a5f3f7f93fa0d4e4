"""Pages that are one file: nothing is fetched, nothing is run, and text stays text."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable

import numpy as np
from PIL import Image

from sheafstain.view.page import Figure, code, figures, note, page, paragraph, section, table
from sheafstain.view.pictures import LIMIT, as_uri, defect_over, difference, shrunk


def test_a_page_is_one_file_and_text_stays_text(elements_of: Callable[[str], set[str]]):
    pixels = np.zeros((30, 40, 3), np.uint8)
    hostile = '<script>alert("x")</script> & "y"'
    html = page(
        hostile,
        hostile,
        [
            section(hostile, paragraph(hostile, code(hostile)), note(hostile)),
            table(("", "n"), [(hostile, "1.5"), ("b", "−2")]),
            figures([Figure('a" onload="x', pixels, hostile)]),
        ],
    )
    seen = elements_of(html)
    assert {"h1", "table", "figure", "img"} <= seen
    assert 'alt="a&quot; onload=&quot;x"' in html
    assert html.count("&lt;script&gt;") >= 7
    assert "Research use only" in html
    assert '<td class="number">1.5</td>' in html and '<td class="number">−2</td>' in html
    assert html.startswith("<!doctype html>") and 'lang="en-GB"' in html


def test_pictures_are_made_small_by_averaging():
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[::2] = 200
    assert shrunk(pixels, 96) is pixels
    small = shrunk(pixels, 48)
    assert small.shape == (32, 48, 3) and (small == 100).all()
    decoded = Image.open(io.BytesIO(base64.b64decode(as_uri(pixels, 48).partition(",")[2])))
    assert decoded.size == (48, 32) and abs(np.asarray(decoded).astype(int) - 100).max() <= 3


def test_a_defect_darkens_with_disagreement_and_undefined_is_neither():
    white = np.full((64, 64, 3), 255, np.uint8)
    shown = [defect_over(white, np.full((64, 64), rms, np.float32)) for rms in (0, LIMIT / 4, LIMIT / 2, LIMIT)]
    assert (shown[0] == 255).all()
    means = [float(each.mean()) for each in shown]
    assert means == sorted(means, reverse=True) and means[-1] < means[0] - 100
    assert np.array_equal(shown[-1], defect_over(white, np.full((64, 64), 5 * LIMIT, np.float32)))
    hatched = defect_over(white, np.full((64, 64), np.nan, np.float32))
    lines = (hatched != 255).any(-1)
    assert 0.1 < lines.mean() < 0.15 and (hatched[lines] == (120, 132, 150)).all()


def test_a_difference_is_red_where_there_is_more():
    more = np.array([[1.0, 0.0, 0.5, 9.0]], np.float32)
    less = np.array([[0.0, 1.0, 0.5, 0.0]], np.float32)
    red, blue, equal, beyond = difference(more, less, 1.0)[0]
    assert red[0] > red[2] and blue[2] > blue[0]
    assert tuple(equal) == (255, 255, 255) and tuple(beyond) == tuple(red)
