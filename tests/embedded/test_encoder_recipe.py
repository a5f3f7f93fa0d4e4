"""The recipe of the embedded encoder at its smallest: drawn, trained, loaded, probed and audited."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from sheafstain.datasets.phantom.architecture import Tissue
from sheafstain.datasets.phantom.nuclei import Nucleus
from sheafstain.sheaf.encoders import load_encoder
from sheafstain.sheaf.registry import find_encoder

RECIPE = Path(__file__).parents[2] / "embedded"

# A machine that is there to train has torch, timm and little else.
ABSENT = ("cyclopts", "openslide", "imagecodecs", "zarr", "tifffile", "rich")
RUN = """
import runpy, sys
sys.modules.update(dict.fromkeys({!r}))
del sys.argv[0]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def script(name: str, *arguments: str | Path) -> None:
    command = [sys.executable, "-c", RUN.format(ABSENT), str(RECIPE / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr


@pytest.fixture
def crops(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(RECIPE)
    return import_module("encoder_crops")


@pytest.fixture
def train(crops: ModuleType) -> ModuleType:
    return import_module("train_encoder")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    script("draw.py", "blocks", folder / "store", "--count", "8", "--seed", "3", "--workers", "1")
    return folder


def test_a_store_holds_one_section_twice_with_its_labels(drawn: Path) -> None:
    images, labels, traits = (np.load(drawn / "store" / f"{name}.npy") for name in ("images", "labels", "traits"))
    assert images.shape == (8, 2, 512, 512, 3) and labels.shape == (8, 2, 256, 256)
    assert labels[:, 0].max() < len(Tissue) and labels[:, 1].max() <= max(Nucleus)
    assert (traits[:4] == traits[0]).all() and (traits[4:] == traits[4]).all() and (traits[0] != traits[4]).all()
    said = json.loads((drawn / "store" / "store.json").read_text())
    assert said["blocks"] == 8 and not {"her2", "er", "pr", "ki67"} & set(said["traits"]), "a label of the marker"
    # Nuclei are dark in both stains at once: the labels lie on both pictures.
    for picture in images[:, 0, ::2, ::2], images[:, 1, ::2, ::2]:
        grey, inside = picture.mean(-1), labels[:, 1] > 0
        assert grey[inside].mean() < grey[~inside].mean() - 10


def test_what_is_trained_is_what_the_registry_says(drawn: Path) -> None:
    script("train_encoder.py", drawn / "store", drawn / "out", "--steps", "3", "--batch", "4", "--every", "1")
    encoder = load_encoder(drawn / "out", device="cpu")
    assert encoder.entry is find_encoder("phantom-small")
    assert (drawn / "out" / "model.safetensors").stat().st_size < 12e6
    (tokens,) = encoder.encode([np.load(drawn / "store" / "images.npy")[:1, 0, :224, :224]])
    assert torch.isfinite(tokens.patch).all() and tokens.patch.std() > 0
    with (drawn / "out" / "losses.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3
    card = (drawn / "out" / "README.md").read_text(encoding="utf-8")
    assert "never seen tissue" in card and "3 steps of" in card and "{" not in card


def test_the_probe_and_the_audit_tell(drawn: Path) -> None:
    script("draw.py", "pairs", drawn / "set", "--val", "1", "--marker", "ER", "--side", "320", "--seed", "4")
    (drawn / "card.md").write_text("# card\n\n## Figures\n\nold\n")
    options = ("--encoder", "random-tiny", "--audit", drawn / "set", "--card", drawn / "card.md")
    script("probe.py", drawn / "store", drawn / "probe", *options)
    with (drawn / "probe" / "probe.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 2 * 3 and {row["tokens"] for row in rows} == {str(4 * 4 * 196)}
    card = (drawn / "card.md").read_text(encoding="utf-8")
    assert card.startswith("# card\n\n## Figures\n\nLinear probe") and "old" not in card
    assert "### Sheaf audit of random-tiny" in card and (drawn / "probe" / "audit" / "inverted_u.png").exists()


def test_labels_are_cut_and_turned_with_their_pictures(crops: ModuleType) -> None:
    """A block whose pictures say where each pixel is, and whose labels say the same."""
    store = object.__new__(crops.Store)
    place = torch.arange(256, dtype=torch.uint8)
    labels = torch.stack([place[:, None].expand(256, 256), place[None].expand(256, 256)])
    picture = labels.repeat_interleave(2, 1).repeat_interleave(2, 2)
    store.images = torch.stack([*picture, picture[0]], -1)[None, None].expand(1, 2, -1, -1, -1)
    store.labels, store.traits = labels[None], torch.zeros(1, 2)
    torch.manual_seed(0)
    images, cut, _ = store.crops(32)
    assert images.shape == (32, 224, 224, 3) and cut.shape == (32, 2, 112, 112)
    assert torch.equal(images[:, ::2, ::2, :2].permute(0, 3, 1, 2), cut)
    steps = images.int()[:, :, 0, 0].diff(dim=1).sum(1), images.int()[:, 0, :, 0].diff(dim=1).sum(1)
    assert {tuple(pair) for pair in torch.stack(steps, 1).sign().tolist()} == {(1, 0), (-1, 0), (0, 1), (0, -1)}


def test_the_target_of_a_cell_is_what_lies_in_it(crops: ModuleType) -> None:
    labels = torch.from_numpy(np.random.default_rng(0).integers(0, 8, (1, 2, 112, 112), np.uint8))
    tissue, nuclei = crops.shares(labels)
    assert tissue.shape == (1, 9, 56, 56) and nuclei.shape == (1, 8, 56, 56)

    def share(part: torch.Tensor) -> list[float]:
        return [float((part == c).float().mean()) for c in range(9)]

    within, around, crop = crops.scales(tissue)
    assert within[0, :, 7, 30].tolist() == share(labels[0, 0, 14:16, 60:62])
    # The token of row 1 and column 6 is pixels 8 … 15 and 48 … 55 of the labels: three more to each side, cut above.
    assert around.shape == (1, 9, 14, 14)
    assert around[0, :, 1, 6].tolist() == pytest.approx(share(labels[0, 0, :40, 24:80]), abs=1e-5)
    assert crop[0, :, 0, 0].tolist() == pytest.approx(share(labels[0, 0]), abs=1e-5)


def test_a_cell_of_the_head_lies_where_its_token_lies(train: ModuleType) -> None:
    """A head that says the number of its cell, and nothing of its token, repeats over the grid of tokens."""
    entry = find_encoder("phantom-small")
    pupil = train.Pupil(entry, 2).eval()
    with torch.no_grad():
        pupil.within.weight.zero_()
        pupil.within.bias.copy_(torch.arange(pupil.within.bias.numel()))
        cells, *_ = pupil(torch.zeros(1, 3, 224, 224), torch.zeros(1, 196, dtype=torch.bool))
    expected = torch.arange(17 * 16.0).reshape(17, 4, 4).repeat(1, 14, 14)
    assert torch.equal(cells[0], expected)


def test_hidden_patches_do_not_show(train: ModuleType) -> None:
    pupil = train.Pupil(find_encoder("phantom-small"), 2).eval()
    images = torch.rand(1, 3, 224, 224)
    hidden = torch.zeros(1, 196, dtype=torch.bool)
    hidden[0, 20] = True  # row 1, column 6
    changed = images.clone()
    changed[:, :, 16:32, 96:112] = 0
    with torch.no_grad():
        same, other = pupil(images, hidden)[0], pupil(changed, hidden)[0]
        seen = pupil(changed, torch.zeros_like(hidden))[0]
    assert torch.equal(same, other) and not torch.allclose(same, seen)


def test_of_some_ihc_crops_the_dab_alone_is_shown(crops: ModuleType) -> None:
    brown, blue = (120, 80, 50), (120, 120, 190)
    images = torch.tensor(brown, dtype=torch.uint8).repeat(100, 32, 32, 1)
    images[:, 16:] = torch.tensor(blue, dtype=torch.uint8)
    shown = crops.pictures(images)
    plain = images.permute(0, 3, 1, 2) / 255
    changed = [i for i in range(100) if not torch.equal(shown[i], plain[i])]
    assert changed == [1, 3, 5]  # a few, all of them IHC
    assert shown[1, :, :16].mean() < 0.7 and shown[1, :, 16:].min() > 0.9  # brown is left, blue is gone


def test_colours_change_and_stay_colours(crops: ModuleType) -> None:
    torch.manual_seed(0)
    images = torch.rand(8, 3, 32, 32)
    out = crops.recolour(images)
    assert out.shape == images.shape and out.min() >= 0 and out.max() <= 1 and torch.isfinite(out).all()
    assert (out - images).abs().mean((1, 2, 3)).min() > 0.01
    black_and_white = crops.recolour(torch.stack([torch.zeros(3, 8, 8), torch.ones(3, 8, 8)]))
    assert torch.isfinite(black_and_white).all()


def test_what_is_hidden_is_at_most_three_quarters_in_squares(crops: ModuleType) -> None:
    torch.manual_seed(0)
    hidden = crops.hide(400, 14, torch.device("cpu")).view(400, 7, 2, 7, 2)
    assert torch.equal(hidden, hidden[:, :, :1, :, :1].expand_as(hidden))
    share = hidden.float().mean((1, 2, 3, 4))
    assert 0.15 < (share == 0).float().mean() < 0.4 and share.max() < 0.95 and 0.2 < share.mean() < 0.4


def test_the_spread_is_nothing_for_white_tokens_and_counts_what_is_seen_only(train: ModuleType) -> None:
    drawn = np.random.default_rng(0).standard_normal((64, 8))
    white = np.linalg.qr(drawn - drawn.mean(0))[0] * 8  # orthogonal columns of mean 0 and mean square 1
    tokens = torch.from_numpy(np.concatenate([white, np.full((64, 8), 50.0)])[None].astype(np.float32))
    hidden = torch.arange(128)[None] >= 64
    assert train.spread(tokens, hidden).item() == pytest.approx(0, abs=1e-4)
    # All alike, at (2, …, 2): the mean is off by 2² and each variance by 1².
    alike = torch.full((1, 128, 8), 2.0)
    assert train.spread(alike, hidden).item() == pytest.approx(4 + train.SPREAD, rel=1e-5)
