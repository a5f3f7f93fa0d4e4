"""PatchNCE heads F: features at the same few positions of two images, projected onto a sphere (CUT)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sheafstain.nets.blocks import initialise


class PatchHeads(nn.Module):
    """One two-layer head for each feature layer.

    Built from ``widths``, the channels of the feature layers (``BridgeGenerator.feature_widths``), so that no pass over
    data is needed before an optimiser can hold the parameters.
    """

    def __init__(self, widths: Sequence[int], out: int = 256) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(width, out), nn.ReLU(), nn.Linear(out, out)) for width in widths
        )
        initialise(self)

    def forward(self, features: Sequence[Tensor], positions: Sequence[Tensor]) -> list[Tensor]:
        """Features [b, c, h, w] and positions [p] for each layer → unit vectors [b, p, out], float32."""
        return [
            _on_sphere(head(feature.flatten(2).index_select(2, at).transpose(1, 2)))
            for head, feature, at in zip(self.heads, features, positions, strict=True)
        ]


def draw_positions(
    features: Sequence[Tensor], count: int = 256, generator: torch.Generator | None = None
) -> list[Tensor]:
    """For each feature layer [b, c, h, w] at most ``count`` different positions [p] among its h·w.

    Draw once for a pair of images and give the same positions to both: position i of one is the positive of position i
    of the other. Drawn where ``generator`` lives, returned where the features are.
    """
    device = generator.device if generator is not None else features[0].device
    return [
        torch.randperm(feature[0, 0].numel(), generator=generator, device=device)[:count].to(feature.device)
        for feature in features
    ]


def _on_sphere(vectors: Tensor) -> Tensor:
    # CUT's: the norm is guarded by adding 1e-7 to it, not by a lower bound as in torch's ``normalize``.
    vectors = vectors.float()
    return vectors / (torch.linalg.vector_norm(vectors, dim=-1, keepdim=True) + 1e-7)
