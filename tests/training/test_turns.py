from __future__ import annotations

import pytest
import torch

from sheafstain.training.turns import TURNS, displaced, grids, turn


def test_the_grids_turn_as_torch_does() -> None:
    image = torch.rand(5, 5)
    rows, columns = grids(5, torch.device("cpu"))
    for g in range(TURNS):
        assert torch.equal(image[rows[g], columns[g]], turn(image, g))


def test_the_eight_turns_differ() -> None:
    image = torch.arange(9.0).view(3, 3)
    assert len({tuple(turn(image, g).flatten().tolist()) for g in range(TURNS)}) == TURNS


@pytest.mark.parametrize("g", range(TURNS))
def test_a_displaced_window_is_found_where_it_is_said_to_lie(g: int) -> None:
    side, dy, dx = 4, 2, -3
    image = torch.rand(12, 12)
    ref, near = image[4 : 4 + side, 4 : 4 + side], image[4 + dy : 4 + dy + side, 4 + dx : 4 + dx + side]
    y, x = displaced(g, dy, dx)
    # Lay both turned windows on the turned canvas: where they overlap they must show the same pixels.
    canvas = torch.full((20, 20), torch.nan)
    canvas[8 : 8 + side, 8 : 8 + side] = turn(ref, g)
    other = torch.full((20, 20), torch.nan)
    other[8 + y : 8 + y + side, 8 + x : 8 + x + side] = turn(near, g)
    both = ~canvas.isnan() & ~other.isnan()
    assert both.sum() == (side - abs(dy)) * (side - abs(dx))
    assert torch.equal(canvas[both], other[both])
