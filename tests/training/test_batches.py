from __future__ import annotations

import numpy as np
import pytest
import torch

from sheafstain.bridge.noise import noise_field
from sheafstain.errors import SheafStainError
from sheafstain.methods.batch import Needs, Views
from sheafstain.training.batches import Batches
from sheafstain.training.sampling import Sampler, tissue_cells
from sheafstain.training.store import PixelStore

CPU = torch.device("cpu")
SIDE = 128


def batches(needs: Needs) -> Batches:
    random = np.random.default_rng(0)
    he = [random.integers(0, 200, (208, 224, 3), np.uint8) for _ in range(3)]
    ihc = [255 - image for image in he]
    stores = PixelStore.of(he, CPU), PixelStore.of(ihc, CPU)
    tissue = [tissue_cells(stores[0].image(k)) for k in range(3)]
    return Batches(Sampler(tissue, stores[0].sizes, 7, SIDE, needs.adjacent), *stores, needs)


def overlaps(a: Views, b: Views, k: int) -> tuple[torch.Tensor, torch.Tensor, tuple[slice, slice], tuple[slice, slice]]:
    overlap = a.windows[k].overlap(b.windows[k])
    here, there = overlap.within(a.windows[k]).slices, overlap.within(b.windows[k]).slices
    return a.images[k][:, *here], b.images[k][:, *there], here, there


def test_turned_neighbours_show_the_same_tissue_and_the_same_noise() -> None:
    made = batches(Needs(adjacent=True, second=True))
    turns = set()
    for seen in range(0, 64, 8):
        batch = made.batch(seen, 0, 8)
        assert batch.adjacent is not None and batch.second is not None
        first, second = batch.adjacent.part(slice(0, 8)), batch.adjacent.part(slice(8, 16))
        for k in range(8):
            for other in (first, second):
                one, two, here, there = overlaps(batch.ref, other, k)
                assert one.numel() and torch.equal(one, two)
                assert batch.ref.canvas[k] == other.canvas[k]
                fields = [noise_field(v.canvas[k : k + 1], [v.windows[k]], 1)[0] for v in (batch.ref, other)]
                assert torch.equal(fields[0][:, *here], fields[1][:, *there])
        turns |= {s.ref.turn for s in made.sampler.samples(seen, 0, 8)}
    assert turns == set(range(8))


def test_the_target_is_registered_with_the_reference() -> None:
    batch = batches(Needs()).batch(0, 0, 6)
    assert batch.adjacent is None and batch.second is None
    # The IHC of this data set is its negative, turned alike: H&E and IHC add up to grey.
    assert torch.allclose(batch.ref.images + batch.ihc, torch.zeros(()), atol=1e-6)
    assert batch.ref.images.min() >= -1 and batch.ihc.max() <= 1


def test_processes_share_a_batch() -> None:
    made = batches(Needs(adjacent=True, second=True))
    whole, parts = made.batch(40, 0, 4), [made.batch(40, 0, 2), made.batch(40, 2, 2)]
    assert torch.equal(whole.ref.images, torch.cat([p.ref.images for p in parts]))
    assert whole.second is not None and parts[1].second is not None
    assert torch.equal(whole.second.canvas[2:], parts[1].second.canvas)


def test_pairs_that_are_not_registered_are_refused() -> None:
    one, other = np.zeros((192, 192, 3), np.uint8), np.zeros((192, 208, 3), np.uint8)
    sampler = Sampler([np.ones((12, 12), bool)], [PixelStore.of([one], CPU).sizes[0]], 0, SIDE)
    with pytest.raises(SheafStainError, match="not registered"):
        Batches(sampler, PixelStore.of([one], CPU), PixelStore.of([other], CPU), Needs())
