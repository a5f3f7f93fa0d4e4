from __future__ import annotations

import numpy as np
import torch

from sheafstain.nets.generator import BridgeGenerator
from sheafstain.nets.patchnce import PatchHeads, draw_positions


def features() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, 22, 30), torch.randn(2, 8, 4, 5)]


def test_parameters_exist_before_any_data() -> None:
    with torch.device("meta"):
        heads = PatchHeads(BridgeGenerator().feature_widths((0, 4, 8, 12, 16)))
    assert sum(parameter.numel() for parameter in heads.parameters()) == 560_384


def test_heads_by_hand() -> None:
    heads, maps = PatchHeads([3, 8], 16), features()
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter)
    positions = draw_positions(maps, 7, torch.Generator().manual_seed(3))
    for head, feature, at, got in zip(heads.heads, maps, positions, heads(maps, positions), strict=True):
        w1, b1, w2, b2 = (parameter.detach().numpy().astype(float) for parameter in head.parameters())
        for n in range(2):
            for p, place in enumerate(at.tolist()):
                y, x = divmod(place, feature.shape[-1])
                vector = w2 @ np.maximum(w1 @ feature[n, :, y, x].numpy() + b1, 0) + b2
                expected = vector / (np.linalg.norm(vector) + 1e-7)
                np.testing.assert_allclose(got[n, p].detach().numpy(), expected, atol=1e-5)


def test_positions_are_different_seeded_and_no_more_than_there_are() -> None:
    maps = features()
    first, again = (draw_positions(maps, 256, torch.Generator().manual_seed(5)) for _ in range(2))
    other = draw_positions(maps, 256, torch.Generator().manual_seed(6))
    assert [len(at) for at in first] == [256, 20]
    assert all(len(set(at.tolist())) == len(at) for at in first)
    assert [at.max().item() < f[0, 0].numel() for at, f in zip(first, maps, strict=True)] == [True, True]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_the_layout_of_a_feature_in_memory_does_not_matter() -> None:
    heads, maps = PatchHeads([3, 8], 16), features()
    positions = draw_positions(maps, 9, torch.Generator().manual_seed(0))
    other = [feature.to(memory_format=torch.channels_last) for feature in maps]
    for a, b in zip(heads(maps, positions), heads(other, positions), strict=True):
        torch.testing.assert_close(a, b)
