from __future__ import annotations

import numpy as np
import pytest
import torch

from sheafstain.methods.batch import Draw, Views
from sheafstain.window import Window


def test_draws_depend_on_all_of_their_coordinates() -> None:
    base = Draw(1, 2).integer("time", 2**60)
    assert Draw(1, 2).integer("time", 2**60) == base
    assert len({base, Draw(2, 2).integer("time", 2**60), Draw(1, 3).integer("time", 2**60)}) == 3
    assert Draw(1, 2).integer("other", 2**60) != base
    assert Draw(1, 2, first=8, epoch=5).integer("time", 2**60) == base  # the same on every process


def test_seeds_belong_to_samples_and_not_to_processes() -> None:
    whole = Draw(1, 2).seeds("z", 6)
    assert torch.equal(whole, torch.cat([Draw(1, 2, 0).seeds("z", 2), Draw(1, 2, 2).seeds("z", 4)]))
    assert len(set(whole.tolist())) == 6 and bool((whole >= 0).all())


def test_integers_are_uniform() -> None:
    drawn = np.bincount([Draw(0, step).integer("time", 5) for step in range(5000)], minlength=5)
    assert abs(drawn - 1000).max() < 5 * np.sqrt(5000 * 0.16)


def test_views_join_and_part() -> None:
    one = Views(torch.rand(2, 3, 4, 4), [Window(0, 0, 4, 4)] * 2, torch.tensor([1, 2]), torch.rand(2, 5, 1, 1), None)
    both = Views.joined([one, one])
    assert len(both) == 4 and both.c_n is None
    part = both.part(slice(1, 4, 2))
    assert torch.equal(part.images, one.images[[1, 1]]) and part.canvas.tolist() == [2, 2]
    assert part.M is not None and torch.equal(part.M, both.M[[1, 3]])  # type: ignore[index]
    bare = Views(one.images, one.windows, one.canvas)
    with pytest.raises(ValueError, match="conditioned"):
        Views.joined([one, bare])
