"""Train the encoder that ships with SheafStain, on a store of phantoms (``embedded/draw.py blocks``).

    python embedded/train_encoder.py STORE OUT --minutes 4

**What it learns.** From a 224-px crop in one of five stains (H&E, HER2, ER, PR, Ki-67), where up to three quarters of
the patches are hidden: which tissue and which nucleus lies in each 4-px cell, under the hidden patches too; from each
token, the mix of the 112 px around it; from CLS, that of the crop and the traits of the specimen that H&E shows. Labels
and not self-supervision, because a phantom has labels for nothing, and self-supervision pays after hours.
Hidden patches and surroundings make tokens depend on their crop, as those of real foundation models do; 16 cells a
token keep them from being a bare class, and so does a loss that wants them centred and their numbers unrelated: labels
alone use few directions, and all tokens then point much the same way. The dyes are mixed anew in every crop, so that a
token means tissue and not colour. One part of the truth is never shown: neither the DAB nor the status of a marker is a
label.

**What it writes**, when the time is over: ``model.safetensors`` in half precision, ``config.json``, ``README.md``, and
``losses.csv``. Heads and mask token are thrown away. ``--steps`` in place of the clock repeats a run.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from encoder_crops import CLASSES, Store, hide, pictures, recolour, scales, shares
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from sheafstain import __version__
from sheafstain.sheaf.backbone import build
from sheafstain.sheaf.registry import EncoderEntry, find_encoder
from sheafstain.whole import whole, write_whole

CELL = 4  # px: a token says what lies in each of its 4 × 4 cells
RATE, DECAY, WARM = 1e-3, 0.05, 0.05  # AdamW; the share of the run in which the rate rises
SCALES = {"within": 1.0, "around": 0.5, "crop": 0.5}  # what the classes at each count
SPREAD = 0.02  # what the tokens' covariance counts


class Pupil(nn.Module):
    """The encoder with what only its training needs: a mask token and four linear heads."""

    def __init__(self, entry: EncoderEntry, traits: int) -> None:
        super().__init__()
        self.encoder: Any = build(entry, "cpu")
        self.grid, self.cells = entry.grid, entry.pitch // CELL
        self.mask = nn.Parameter(torch.zeros(entry.width))
        self.within = nn.Linear(entry.width, self.cells**2 * sum(CLASSES))
        self.around = nn.Linear(entry.width, sum(CLASSES))
        self.crop = nn.Linear(entry.width, sum(CLASSES))
        self.traits = nn.Linear(entry.width, traits)

    def forward(self, images: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Normalised images [b, 3, 224, 224], hidden [b, 196] → classes within tokens [b, 17, 56, 56], around them
        [b, 17, 14, 14] and in the crop [b, 17, 1, 1], traits [b, t], and the tokens [b, 196, d]."""
        net = self.encoder
        patches = torch.where(hidden[..., None], self.mask.to(images.dtype), net.patch_embed(images))
        tokens = net.norm(net.blocks(net._pos_embed(patches)))
        whole, each = tokens[:, 0], tokens[:, 1:]
        within = self.within(each).unflatten(-1, (-1, self.cells, self.cells)).unflatten(1, (self.grid, self.grid))
        within = within.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
        around = self.around(each).transpose(1, 2).unflatten(2, (self.grid, self.grid))
        return within, around, self.crop(whole)[:, :, None, None], self.traits(whole), each


def spread(tokens: Tensor, hidden: Tensor) -> Tensor:
    """How far the tokens [b, n, d] of patches that are seen are from centred, of one variance, and unrelated."""
    seen = (~hidden).unsqueeze(-1).to(tokens.dtype)
    mean = (tokens * seen).sum((0, 1)) / seen.sum()
    apart = ((tokens - mean) * seen).flatten(0, 1)
    covariance = apart.T @ apart / seen.sum()
    return (
        mean.square().mean() + SPREAD * (covariance - torch.eye(len(mean), device=mean.device)).square().sum(1).mean()
    )


def losses(
    said: tuple[Tensor, ...], hidden: Tensor, labels: Tensor, traits: Tensor, weights: list[Tensor]
) -> dict[str, Tensor]:
    *classes, guessed, tokens = (tensor.float() for tensor in said)
    out = {"spread": spread(tokens, hidden), "traits": 0.2 * functional.smooth_l1_loss(guessed, traits)}
    true = zip(*(scales(share) for share in shares(labels)), strict=True)
    for (scale, counts), logits, targets in zip(SCALES.items(), classes, true, strict=True):
        for name, part, target, weight in zip(
            ("tissue", "nuclei"), logits.split(CLASSES, 1), targets, weights, strict=True
        ):
            out[f"{name} {scale}"] = counts * functional.cross_entropy(part, target, weight)
    return out


def train(pupil: Pupil, store: Store, entry: EncoderEntry, chosen: argparse.Namespace) -> Iterator[dict[str, float]]:
    """Yields the losses now and then."""
    device = store.images.device
    on_gpu = device.type == "cuda"
    model, recoloured = (torch.compile(pupil), torch.compile(recolour)) if on_gpu else (pupil, recolour)
    mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in entry.normalisation)
    matrices = [p for p in pupil.parameters() if p.ndim > 1 and p is not pupil.encoder.pos_embed]
    others = [p for p in pupil.parameters() if not any(p is m for m in matrices)]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, RATE, betas=(0.9, 0.98), fused=on_gpu)
    weights = store.weights()
    began, step, past = time.perf_counter(), 0, 0.0
    while past < 1:
        rate = RATE * (past / WARM if past < WARM else 0.5 + 0.5 * math.cos(math.pi * (past - WARM) / (1 - WARM)))
        for group in optimiser.param_groups:
            group["lr"] = max(rate, 1e-6)
        images, labels, traits = store.crops(chosen.batch)
        with torch.no_grad():
            images = (recoloured(pictures(images)) - mean) / std
        hidden = hide(len(images), pupil.grid, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            said = model(images, hidden)
        parts = losses(said, hidden, labels, traits, weights)
        loss = torch.stack(list(parts.values())).sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(pupil.parameters(), 1.0)
        optimiser.step()
        if step == 0:  # building kernels is not training
            loss.item()
            began = time.perf_counter()
        step += 1
        if step % chosen.every == 0:
            seconds = time.perf_counter() - began
            yield {"step": step, "seconds": seconds, "rate": rate, **{k: v.item() for k, v in parts.items()}}
        elapsed = (time.perf_counter() - began) / (60 * chosen.minutes)
        past = step / chosen.steps if chosen.steps else elapsed
    chosen.steps = step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--steps", type=int, help="so many, however long they take")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--every", type=int, default=50, help="steps between two lines of losses.csv")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.manual_seed(chosen.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    entry = find_encoder("phantom-small")
    store = Store(chosen.store, device)
    pupil = Pupil(entry, store.traits.shape[1]).to(device)
    rows = []
    for row in train(pupil, store, entry, chosen):
        rows.append({name: f"{value:.6g}" for name, value in row.items()})
        if not math.isfinite(sum(row.values())):
            raise SystemExit(f"a loss is not finite: {row}")
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    machine = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    recipe = {key: getattr(chosen, key) for key in ("steps", "batch", "seed")} | {"store": store.said}
    export(pupil, entry, chosen.out, recipe | {"machine": machine, "date": f"{datetime.now(UTC):%Y-%m-%d}"})
    with whole(chosen.out / "losses.csv") as part, part.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0] if rows else ["step"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{chosen.steps} steps of {chosen.batch} crops; {chosen.out}", flush=True)


def export(pupil: Pupil, entry: EncoderEntry, folder: Path, recipe: dict[str, Any]) -> None:
    """The encoder alone, in half precision, with what is needed to use it and to know it."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().half().cpu().contiguous() for name, tensor in pupil.encoder.state_dict().items()}
    mean, std = entry.normalisation
    config = {
        "architecture": entry.architecture,
        "model_args": dict(entry.arguments),
        "pretrained_cfg": {"mean": mean, "std": std, "license": entry.licence},
        "mpp": entry.mpp.mpp if entry.mpp else None,
        "trained": recipe | {"sheafstain": __version__, "torch": torch.__version__},
    }
    write_whole(folder / "config.json", (json.dumps(config, indent=1) + "\n").encode())
    store = recipe["store"]
    said = {"crops": recipe["steps"] * recipe["batch"], "blocks": store["blocks"], "traits": ", ".join(store["traits"])}
    card = Path(__file__).with_name("encoder_card.md").read_text(encoding="utf-8")
    write_whole(folder / "README.md", card.format(id=entry.id, parameters=entry.parameters, **said, **recipe).encode())
    with whole(folder / "model.safetensors") as part:
        save_file(state, part, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
