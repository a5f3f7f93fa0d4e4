"""From a configuration to what is learned from: records, pixels and sections on the device, held-out images, tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch

from sheafstain.datasets.layouts import open_dataset
from sheafstain.datasets.phantom.dataset import is_drawn
from sheafstain.datasets.records import Record
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.methods.batch import Needs
from sheafstain.methods.sheafstain import Tokens
from sheafstain.sheaf.cache import CacheKey, SectionCache, image_hash, image_id
from sheafstain.sheaf.cover import NEAREST
from sheafstain.sheaf.encoders import Encoder, load_encoder
from sheafstain.sheaf.registry import ENCODERS
from sheafstain.sheaf.section import encode_sections
from sheafstain.slides.image import image_size, read_image
from sheafstain.training.batches import Batches
from sheafstain.training.conditioning import Conditioning, LiveSections, MappedSections, ResidentSections
from sheafstain.training.config import TrainConfig
from sheafstain.training.events import Progress, silently
from sheafstain.training.parallel import World
from sheafstain.training.sampling import Sampler, tissue_cells
from sheafstain.training.store import PixelStore
from sheafstain.window import Size


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """A few held-out pairs, uint8 [h, w, 3], and where their sections come from."""

    names: tuple[str, ...]
    he: tuple[np.ndarray, ...]
    ihc: tuple[np.ndarray, ...]
    conditioning: Conditioning | None


@dataclass(frozen=True, slots=True)
class EncoderFacts:
    """Which encoder made the sections."""

    id: str
    weights_hash: str
    width: int
    random: bool


def select(config: TrainConfig, split: str) -> tuple[Record, ...]:
    """The records of a split, of the one stain that is learned."""
    data = config.data
    dataset = open_dataset(data.root, data.layout, split_file=data.split_file)
    stain = data.stain
    if stain is None:
        if len(dataset.stains) > 1:
            raise UsageError(f"{data.root}: holds {', '.join(dataset.stains)}; choose one with --data.stain")
        stain = dataset.stains[0] if dataset.stains else None
    records = dataset.select(split, stain)
    if not records:
        has = f"stains {', '.join(dataset.stains)}; splits {', '.join(dataset.splits)}"
        raise UsageError(f"{data.root}: no pair of split {split!r} and stain {stain!r}; it has {has}")
    return records


def held_out_records(config: TrainConfig) -> tuple[Record, ...]:
    """Those of the held-out split that are looked at, spread evenly over it."""
    if config.data.held_out is None or config.watch.images == 0:
        return ()
    records = select(config, config.data.held_out)
    chosen = np.linspace(0, len(records) - 1, min(config.watch.images, len(records))).round().astype(int)
    return tuple(records[k] for k in dict.fromkeys(chosen.tolist()))


def check_sizes(config: TrainConfig, records: Sequence[Record], neighbours: bool) -> None:
    """Partners of one size with room for the windows, from the headers alone."""
    side = config.data.window
    needed = side + (NEAREST if neighbours else 0)
    for record in records:
        he, ihc = image_size(record.he), image_size(record.ihc)
        if he != ihc:
            raise SheafStainError(f"{record.ihc}: is of {ihc} px and its H&E of {he}: they are not registered")
        if min(he.h, he.w) < needed:
            raise SheafStainError(
                f"{record.he}: {he} px are too few for windows of {side} px{' and their neighbours' * neighbours}, "
                f"which need {needed}; leave it out or lower --data.window"
            )


def fingerprint(records: Sequence[Record]) -> str:
    """Names a set of records by their ids."""
    return hashlib.sha256("\n".join(map(image_id, records)).encode()).hexdigest()[:16]


def synthetic(records: Sequence[Record]) -> bool:
    """Whether phantoms are among these pairs: the model has to say so to whoever uses it on tissue."""
    return any(is_drawn(folder) for folder in {record.he.parent for record in records})


def _is_random(encoder: str) -> bool:
    return any(entry.random for entry in ENCODERS if entry.id == encoder)


class Conditions:
    """The sections of a training: from the cache, completed if need be, or from the encoder in every step.

    The encoder is loaded where something must be encoded: sections that are not there, every step, or what the
    stain-align loss compares.
    """

    def __init__(self, config: TrainConfig, world: World) -> None:
        self.config, self.world = config, world
        self._encoder: Encoder | None = None
        self._cache: SectionCache | None = None
        self.live = config.encoder.live or config.settings.conditioning == "neighborhood"

    @property
    def encoder(self) -> Encoder:
        if self._encoder is None:
            engine = self.config.engine
            dtype = None if engine.precision is None else getattr(torch, engine.precision)
            self._encoder = load_encoder(
                self.config.encoder.name, device=self.world.device, dtype=dtype, compile=engine.compile
            )
        return self._encoder

    @property
    def tokens(self) -> Tokens:
        encoder = self.encoder
        return lambda images: encoder.differentiable(images).patch

    @property
    def facts(self) -> EncoderFacts:
        if self._encoder is None and self._cache is not None:
            key = self._cache.key
            return EncoderFacts(key.encoder, key.weights_hash, key.width, _is_random(key.encoder))
        return EncoderFacts(self.encoder.id, self.encoder.weights_hash, self.encoder.width, self.encoder.entry.random)

    def complete(self, records: Sequence[Record], progress: Progress) -> None:
        """Open the cache and encode what is missing; each process encodes its part."""
        if self.live:
            return
        mine = records[self.world.rank :: self.world.size]
        hashes = {}
        with progress("looking for sections", len(mine), "images") as advance:
            for record in mine:
                hashes[record] = image_hash(record.he)
                advance(1)
        self._cache = self._open(hashes)
        cache = self._cache
        missing = [record for record, digest in hashes.items() if not cache.has(image_id(record), digest)]
        with progress("encoding sections", len(missing), "images") as advance:
            images = (((image_id(record), hashes[record]), read_image(record.he)) for record in missing)
            for key, section in encode_sections(images, self.encoder, cache.key.stride) if missing else ():
                cache.write(*key, section)
                advance(1)
        self.world.wait()

    def _open(self, hashes: dict[Record, str]) -> SectionCache:
        """The only cache of that encoder and stride if it is complete, else that of the encoder itself."""
        root, stride = Path(self.config.encoder.sections), self.config.encoder.stride
        folders = list(root.glob(f"{quote(self.config.encoder.name, safe='')}-*-s{stride}"))
        if len(folders) == 1 and self._encoder is None:
            cache = SectionCache(folders[0], verify=False)
            complete = all(cache.has(image_id(record), digest) for record, digest in hashes.items())
            if not self.world.any(not complete):
                return cache
        else:
            self.world.any(True)  # the others ask as well
        return SectionCache.create(root, CacheKey.of(self.encoder, stride), verify=False)

    def over(self, records: Sequence[Record], pixels: PixelStore, progress: Progress) -> Conditioning:
        """What cuts M and c_n for windows of these images."""
        if self.live:
            kind = self.config.settings.conditioning
            return LiveSections(pixels, self.encoder, kind, self.config.encoder.stride)
        cache = self._cache
        assert cache is not None
        device = self.world.device
        largest = Size(max(size.h for size in pixels.sizes), max(size.w for size in pixels.sizes))
        if not ResidentSections.fit(largest, len(records), cache.key.width, device):
            return MappedSections(lambda k: cache.open(image_id(records[k])), cache.key.width, device)
        with progress("reading sections", len(records), "images") as advance:
            sections = (cache.open(image_id(record)) for record in records)
            return ResidentSections(sections, len(records), device, advance)


def read_batches(
    config: TrainConfig,
    records: Sequence[Record],
    needs: Needs,
    conditions: Conditions | None,
    world: World,
    progress: Progress = silently,
) -> Batches:
    """All pixels and sections of the training records, ready to be cut."""
    spill = Path(config.output) / "pixels"
    stores: list[PixelStore] = []
    for label, files in (("H&E", [r.he for r in records]), ("IHC", [r.ihc for r in records])):
        with progress(f"reading {label}", len(files), "images") as advance:
            stores.append(PixelStore.read(files, world.device, spill, advance=advance))
    he, ihc = stores
    cells = [tissue_cells(he.image(k)) for k in range(len(he))]
    sampler = Sampler(cells, he.sizes, config.seed, config.data.window, needs.adjacent)
    conditioning = conditions.over(records, he, progress) if conditions is not None else None
    return Batches(sampler, he, ihc, needs, conditioning)


def read_held_out(
    records: Sequence[Record], conditions: Conditions | None, world: World, progress: Progress = silently
) -> HeldOut | None:
    if not records:
        return None
    pairs = [(read_image(record.he), read_image(record.ihc)) for record in records]
    he, ihc = (tuple(images) for images in zip(*pairs, strict=True))
    store = PixelStore.of(he, world.device)
    conditioning = conditions.over(records, store, progress) if conditions is not None else None
    return HeldOut(tuple(record.id for record in records), he, ihc, conditioning)
