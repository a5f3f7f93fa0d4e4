"""The translator as a user has it: load a model, stain an image, a slide or a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from sheafstain.errors import SheafStainError, UsageError
from sheafstain.methods.model import Model, load_model
from sheafstain.sheaf.encoders import load_encoder
from sheafstain.slides.image import MAX_PIXELS
from sheafstain.slides.read import open_slide
from sheafstain.translate import report as reports
from sheafstain.translate.conditioning import StainEncoder
from sheafstain.translate.image import ArraySink, Stained
from sheafstain.translate.measuring import Measuring
from sheafstain.translate.pipeline import run
from sheafstain.translate.pixels import ArraySource, Source
from sheafstain.translate.plan import Plan
from sheafstain.translate.protocol import Conditioning, Cover, StainProtocol, Translator
from sheafstain.translate.slide import Opened, Written, stain_file
from sheafstain.window import Size, Window

GPU_BATCH = 17  # windows; the 34 of a 1024² image are two batches: one is glued during the other
CPU_BATCH = 2  # larger ones leave the caches: a window in a batch of eight takes 1.4 times as long
GPU_CROPS = 64  # at the encoder: the 121 crops of a 1024² image are two batches, the 432 around its windows seven


class Stainer:
    """A model with the encoder that it needs, on one device.

    ::

        stained = Stainer.load("models/her2").stain(image)  # uint8 [h, w, 3]
        stained.pixels, stained.defect, stained.energy
    """

    def __init__(self, model: Translator, encoder: StainEncoder | None = None, *, batch: int | None = None) -> None:
        self.model, self.encoder = model, encoder
        self.batch = batch or (GPU_BATCH if model.device.type == "cuda" else CPU_BATCH)

    @classmethod
    def load(
        cls,
        name_or_path: str | Path,
        *,
        encoder: str | Path | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        compile: bool | None = None,  # noqa: A002
        batch: int | None = None,
        download: bool = False,
    ) -> Self:
        """A model by its folder, its name or its Hub id, and the encoder it was trained with.

        Parameters
        ----------
        encoder
            Where the encoder's weights are, when they are not where ``load_encoder`` looks for its name.
        device, dtype, compile
            Chosen by the machine when not given; they hold for model and encoder.
        batch
            Windows translated at once.
        download
            Fetch what is missing from the Hugging Face Hub; without it the network is never used.
        """
        model = load_model(name_or_path, device=device, dtype=dtype, compile=compile, download=download)
        return cls(model, _encoder(model, encoder, dtype, compile, download), batch=batch)

    def stain(
        self,
        image: np.ndarray | str | Path,
        *,
        conditioning: Conditioning | None = None,
        cover: Cover | None = None,
        nfe: int | None = None,
        seed: int = 0,
        samples: int = 1,
        advance: Callable[[int], None] | None = None,
    ) -> Stained:
        """Translate an image that fits into memory: uint8 [h, w, 3] at the µm/px of the model, or a file.

        A file is brought to the µm/px of the model, as by ``stain_file``, which is there for whole slides. A damaged
        one is an error.

        Parameters
        ----------
        conditioning, cover, nfe, seed, samples
            As in ``StainProtocol``; the model's own way when not given.
        advance
            Called with the number of windows just translated.
        """
        protocol = self.protocol(
            conditioning=conditioning, cover=cover, nfe=nfe, seed=seed, samples=samples, glass=True
        )
        pixels, source = _pixels(image, self.model.config.mpp)
        return self.stain_source(ArraySource(pixels), protocol, source, advance)

    def stain_file(
        self,
        path: str | Path,
        output: str | Path,
        *,
        conditioning: Conditioning | None = None,
        cover: Cover | None = None,
        nfe: int | None = None,
        seed: int = 0,
        samples: int = 1,
        glass: bool = False,
        mpp: float | None = None,
        level: int | None = None,
        region: Window | None = None,
        strict: bool = False,
        overwrite: bool = False,
        workers: int | None = None,
        start: Callable[[int, Size], Callable[[int], None]] | None = None,
    ) -> Written:
        """Translate an image or slide of any size into files; the name of ``output`` says of which kind.

        A call that was stopped, in whichever way, goes on where it was when it is repeated. Parameters are those of
        ``stain`` and of ``translate.slide.stain_file``; with ``glass`` places without tissue are translated too.
        """
        protocol = self.protocol(
            conditioning=conditioning, cover=cover, nfe=nfe, seed=seed, samples=samples, glass=glass
        )
        return stain_file(
            self,
            Path(path),
            Path(output),
            protocol,
            mpp=mpp,
            level=level,
            region=region,
            strict=strict,
            overwrite=overwrite,
            workers=workers,
            start=start,
        )

    def stain_source(
        self,
        source: Source,
        protocol: StainProtocol,
        about: dict[str, Any] | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> Stained:
        """Translate any source of rows into memory."""
        plan = Plan(protocol, source.size, Window.of(source.size))
        sink = ArraySink(source.size, protocol.samples)
        measuring = Measuring(plan, plan.target, sink)
        timing = run(source, self.model, self._encoder_for(protocol), measuring, batch=self.batch, advance=advance)
        said = reports.report(measuring, timing, self.model, self.encoder, about or {})
        return Stained(sink.pixels, sink.defect, sink.spread, measuring.energy.energy, said)

    def protocol(self, **settings: Any) -> StainProtocol:
        """The resolved settings of a translation with this model, as ``StainProtocol.of`` takes them."""
        config = self.model.config
        protocol = StainProtocol.of(self.model, **{"crop_stride": config.stride, **settings})
        self._encoder_for(protocol)
        return protocol

    def _encoder_for(self, protocol: StainProtocol) -> StainEncoder | None:
        if protocol.conditioning == "none":
            return None
        if self.encoder is None:
            raise UsageError(f"the conditioning {protocol.conditioning} needs an encoder, and none was loaded")
        return self.encoder


def _encoder(
    model: Model,
    path: str | Path | None,
    dtype: torch.dtype | None,
    compile: bool | None,  # noqa: A002
    download: bool,
) -> StainEncoder | None:
    config = model.config
    if model.conditioning == "none" or config.encoder is None:
        return None
    encoder = load_encoder(
        path or config.encoder,
        device=model.device,
        dtype=dtype,
        compile=compile,
        batch=GPU_CROPS if model.device.type == "cuda" else None,
        download=download,
    )
    if config.encoder_hash not in (None, encoder.weights_hash):
        raise SheafStainError(
            f"{config.name}: was trained with the encoder {config.encoder} of hash {str(config.encoder_hash)[:12]}; "
            f"the one here is {encoder.id} of {encoder.weights_hash[:12]}; give the right file with --encoder"
        )
    return encoder


def _pixels(image: np.ndarray | str | Path, mpp: float | None) -> tuple[np.ndarray, dict[str, Any]]:
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise UsageError(f"an image is uint8 [h, w, 3], RGB, with pixels, not {image.dtype} {list(image.shape)}")
        return image, {"size": [image.shape[1], image.shape[0]]}
    with open_slide(image, strict=True) as slide:
        opened = Opened.of(slide, mpp, None, None)
        size = opened.view.size
        if size.area > MAX_PIXELS:
            raise UsageError(f"{image}: is {size} px, too large to be kept in memory; stain_file writes files")
        return opened.view.read(), opened.about(mpp)
