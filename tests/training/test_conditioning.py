from __future__ import annotations

import numpy as np
import pytest
import torch

from sheafstain.sheaf.cover import cut
from sheafstain.sheaf.crops import neighborhood
from sheafstain.sheaf.encoders import Encoder, load_encoder
from sheafstain.sheaf.section import Section, encode_sections
from sheafstain.training.conditioning import LiveSections, MappedSections, ResidentSections
from sheafstain.training.sampling import Place
from sheafstain.training.store import PixelStore
from sheafstain.training.turns import turn
from sheafstain.window import Size, Window

CPU = torch.device("cpu")
GROUPS = [
    [Place(0, Window(32, 64, 128, 128), 5, 11), Place(0, Window(96, 64, 128, 128), 5, 11)],
    [Place(1, Window(0, 16, 128, 128), 0, 12), Place(1, Window(0, 80, 128, 128), 0, 12)],
]
PLACES = [place for group in GROUPS for place in group]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load_encoder("random-tiny", device="cpu")


@pytest.fixture(scope="module")
def images() -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [random.integers(0, 256, (*size, 3), np.uint8) for size in ((256, 320), (272, 256))]


@pytest.fixture(scope="module")
def sections(encoder: Encoder, images: list[np.ndarray]) -> list[Section]:
    return [section for _, section in encode_sections(enumerate(images), encoder)]


def expected(sections: list[Section]) -> tuple[torch.Tensor, torch.Tensor]:
    cuts = [sections[p.image].restrict(p.window) for p in PLACES]
    M = torch.stack([turn(c.M, p.turn) for c, p in zip(cuts, PLACES, strict=True)])
    return M, torch.stack([c.c_n for c in cuts])


def test_resident_sections_restrict_as_sections_do(sections: list[Section]) -> None:
    resident = ResidentSections(iter(sections), 2, CPU)
    M, c_n = resident.cut(GROUPS)
    true_M, true_c = expected(sections)
    assert torch.allclose(M.float(), true_M, atol=4e-3, rtol=2e-3)  # half precision
    assert torch.allclose(c_n, true_c, atol=4e-3, rtol=2e-3)
    assert resident.width == true_M.shape[1]


def test_mapped_sections_are_sections(sections: list[Section]) -> None:
    M, c_n = MappedSections(lambda k: sections[k], sections[0].sum.shape[-1], CPU).cut(GROUPS)
    true_M, true_c = expected(sections)
    assert torch.equal(M, true_M) and torch.equal(c_n, true_c)


def test_a_live_lattice_is_the_cached_one(encoder: Encoder, images: list[np.ndarray], sections: list[Section]) -> None:
    M, c_n = LiveSections(PixelStore.of(images, CPU), encoder, "lattice", 80).cut(GROUPS)
    true_M, true_c = expected(sections)
    assert torch.allclose(M, true_M, atol=1e-5)
    assert torch.allclose(c_n, true_c, atol=1e-5)


def test_neighbours_cut_the_section_of_their_reference(encoder: Encoder, images: list[np.ndarray]) -> None:
    M, c_n = LiveSections(PixelStore.of(images, CPU), encoder, "neighborhood", 80).cut(GROUPS)
    group, image = GROUPS[1], images[1]
    crops = neighborhood(group[0].window, Size(*image.shape[:2]), seed=12)
    (tokens,) = encoder.encode([np.stack([cut(image, c) for c in crops])])
    section = Section.of(crops, tokens.patch, tokens.cls, encoder.pitch)
    for k, place in enumerate(group, start=2):
        assert torch.allclose(M[k], section.restrict(place.window).M, atol=1e-5)
        assert torch.allclose(c_n[k], section.restrict(place.window).c_n, atol=1e-5)
    assert torch.equal(M[2][:, :, 4:], M[3][:, :, :4])  # one section: equal on the overlap
