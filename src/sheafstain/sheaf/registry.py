"""The foundation models that can serve as encoder, as data: what each is, what it expects, and how to get its weights.

Nothing here imports torch, so that listing encoders costs nothing. The architecture arguments are the ones published
with the weights; the parameter counts, token grids and FLOPs are held against the models themselves in the tests.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from sheafstain import hub
from sheafstain.errors import UsageError
from sheafstain.window import Resolution

CROP = 224  # px: the side of every crop an encoder sees (paper, "Notation")

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
H_OPTIMUS = (0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517)

TWENTY_TIMES = Resolution(0.5)  # 20× magnification, at which the pathology models were trained

# Which names the tensors of the published file carry: timm's own, or those of transformers' Dinov2Model.
Layout = Literal["timm", "transformers"]


def _frozen(**arguments: Any) -> Mapping[str, Any]:
    return MappingProxyType(arguments)


@dataclass(frozen=True, slots=True)
class EncoderEntry:
    """One encoder. ``prefix`` counts the tokens before the patch tokens (CLS, then registers); ``gflop`` is one forward
    at 224 px with a multiply-add counted as two operations."""

    id: str
    title: str
    repo: str | None  # on the Hugging Face Hub
    published: str | None  # name of the weights file there
    architecture: str  # timm's name
    arguments: Mapping[str, Any] = field(hash=False)
    pitch: int  # px between token centres
    prefix: int
    width: int
    depth: int
    normalisation: tuple[tuple[float, float, float], tuple[float, float, float]]  # mean, standard deviation on [0, 1]
    mpp: Resolution | None  # None: not trained on microscope images
    licence: str
    parameters: int
    gflop: float | None
    gate: str | None = None  # what stands between a user and the weights; None: nothing
    layout: Layout = "timm"
    swiglu: bool = False  # packed SwiGLU in place of the two-layer perceptron
    resamples: bool = False  # the published position embedding is of another grid and is interpolated to 224 px
    shipped: bool = False  # the weights are part of this package
    seed: int | None = None  # weights drawn from this seed: knows nothing, for tests and for timing
    note: str = field(default="", compare=False)

    @property
    def crop(self) -> int:
        return CROP

    @property
    def grid(self) -> int:
        """Tokens along one side of a crop."""
        return CROP // self.pitch

    @property
    def random(self) -> bool:
        return self.seed is not None

    @property
    def page(self) -> str | None:
        return f"https://huggingface.co/{self.repo}" if self.repo else None


def _giant(**changes: Any) -> dict[str, Any]:
    """What the ViT-g of DINOv2 and its descendants share."""
    return {"width": 1536, "depth": 40, "mpp": TWENTY_TIMES, "normalisation": IMAGENET} | changes


_TERMS = "log in to Hugging Face and accept the terms on its page"
_INSTITUTION = "log in to Hugging Face, accept the terms with an institutional e-mail address and wait for approval"

ENCODERS: tuple[EncoderEntry, ...] = (
    EncoderEntry(
        id="prov-gigapath",
        title="Prov-GigaPath tile encoder",
        repo="prov-gigapath/prov-gigapath",
        published="pytorch_model.bin",
        architecture="vit_giant_patch14_dinov2",
        # Without the patch-16 override this architecture is a 518-px model that refuses 224-px crops.
        arguments=_frozen(img_size=CROP, patch_size=16, mlp_ratio=5.33334, init_values=1e-5),
        pitch=16,
        prefix=1,
        licence="Apache-2.0, research use only",
        parameters=1_134_953_984,
        gflop=456.2,
        gate=_TERMS,
        note="the encoder of the paper",
        **_giant(),
    ),
    EncoderEntry(
        id="uni",
        title="UNI",
        repo="MahmoodLab/UNI",
        published="pytorch_model.bin",
        architecture="vit_large_patch16_224",
        arguments=_frozen(init_values=1e-5),
        pitch=16,
        prefix=1,
        width=1024,
        depth=24,
        normalisation=IMAGENET,
        mpp=TWENTY_TIMES,
        licence="CC-BY-NC-ND-4.0",
        parameters=303_350_784,
        gflop=123.1,
        gate=_INSTITUTION,
    ),
    EncoderEntry(
        id="uni2-h",
        title="UNI2-h",
        repo="MahmoodLab/UNI2-h",
        published="pytorch_model.bin",
        architecture="vit_giant_patch14_224",
        arguments=_frozen(
            embed_dim=1536,
            depth=24,
            num_heads=24,
            mlp_ratio=5.33334,
            init_values=1e-5,
            no_embed_class=True,
            reg_tokens=8,
        ),
        swiglu=True,
        pitch=14,
        prefix=9,
        width=1536,
        depth=24,
        normalisation=IMAGENET,
        mpp=TWENTY_TIMES,
        licence="CC-BY-NC-ND-4.0",
        parameters=681_394_176,
        gflop=370.9,
        gate=_INSTITUTION,
    ),
    EncoderEntry(
        id="virchow",
        title="Virchow",
        repo="paige-ai/Virchow",
        published="pytorch_model.bin",
        architecture="vit_huge_patch14_224",
        arguments=_frozen(mlp_ratio=5.3375, init_values=1e-5, global_pool=""),
        swiglu=True,
        pitch=14,
        prefix=1,
        width=1280,
        depth=32,
        normalisation=IMAGENET,
        mpp=TWENTY_TIMES,
        licence="Apache-2.0",
        parameters=631_229_184,
        gflop=334.8,
        gate="log in to Hugging Face and fill in the form on its page",
    ),
    EncoderEntry(
        id="virchow2",
        title="Virchow2",
        repo="paige-ai/Virchow2",
        published="pytorch_model.bin",
        architecture="vit_huge_patch14_224",
        arguments=_frozen(mlp_ratio=5.3375, init_values=1e-5, global_pool="", reg_tokens=4),
        swiglu=True,
        pitch=14,
        prefix=5,
        width=1280,
        depth=32,
        normalisation=IMAGENET,
        mpp=TWENTY_TIMES,
        licence="CC-BY-NC-ND-4.0",
        parameters=631_239_424,
        gflop=340.1,
        gate=_INSTITUTION,
    ),
    EncoderEntry(
        id="h-optimus-0",
        title="H-optimus-0",
        repo="bioptimus/H-optimus-0",
        published="pytorch_model.bin",
        architecture="vit_giant_patch14_reg4_dinov2",
        arguments=_frozen(img_size=CROP, init_values=1e-5),
        pitch=14,
        prefix=5,
        licence="Apache-2.0",
        parameters=1_134_774_272,
        gflop=608.3,
        gate=_TERMS,
        **_giant(normalisation=H_OPTIMUS),
    ),
    EncoderEntry(
        id="h-optimus-1",
        title="H-optimus-1",
        repo="bioptimus/H-optimus-1",
        published="pytorch_model.bin",
        architecture="vit_giant_patch14_reg4_dinov2",
        arguments=_frozen(img_size=CROP, init_values=1e-5),
        pitch=14,
        prefix=5,
        licence="CC-BY-NC-ND-4.0",
        parameters=1_134_774_272,
        gflop=608.3,
        gate=_TERMS,
        **_giant(normalisation=H_OPTIMUS),
    ),
    EncoderEntry(
        id="phikon-v2",
        title="Phikon-v2",
        repo="owkin/phikon-v2",
        published="model.safetensors",
        architecture="vit_large_patch14_dinov2",
        arguments=_frozen(img_size=CROP, patch_size=16),
        layout="transformers",
        pitch=16,
        prefix=1,
        width=1024,
        depth=24,
        normalisation=IMAGENET,
        mpp=TWENTY_TIMES,
        licence="Owkin non-commercial",
        parameters=303_350_784,
        gflop=123.1,
    ),
    EncoderEntry(
        id="midnight-12k",
        title="Midnight-12k",
        repo="kaiko-ai/midnight",
        published="model.safetensors",
        architecture="vit_giant_patch14_dinov2",
        arguments=_frozen(img_size=CROP),
        layout="transformers",
        resamples=True,
        pitch=14,
        prefix=1,
        licence="MIT",
        parameters=1_134_769_664,
        gflop=598.8,
        note="the pathology model here that neither asks for an account nor forbids commercial use",
        **_giant(normalisation=HALF),
    ),
    EncoderEntry(
        id="kaiko-vits16",
        title="Kaiko ViT-S/16",
        repo="1aurent/vit_small_patch16_224.kaiko_ai_towards_large_pathology_fms",
        published="model.safetensors",
        architecture="vit_small_patch16_224",
        arguments=_frozen(),
        pitch=16,
        prefix=1,
        width=384,
        depth=12,
        normalisation=HALF,
        mpp=TWENTY_TIMES,
        licence="Kaiko non-commercial",
        parameters=21_665_664,
        gflop=9.2,
        note="a pathology model small enough for a CPU",
    ),
    EncoderEntry(
        id="dinov2-small",
        title="DINOv2 ViT-S/14",
        repo="timm/vit_small_patch14_dinov2.lvd142m",
        published="model.safetensors",
        architecture="vit_small_patch14_dinov2",
        arguments=_frozen(img_size=CROP),
        resamples=True,  # published for 518 px
        pitch=14,
        prefix=1,
        width=384,
        depth=12,
        normalisation=IMAGENET,
        mpp=None,
        licence="Apache-2.0",
        parameters=21_628_800,
        gflop=12.2,
        note="natural images",
    ),
    EncoderEntry(
        id="dinov2-base",
        title="DINOv2 ViT-B/14",
        repo="timm/vit_base_patch14_dinov2.lvd142m",
        published="model.safetensors",
        architecture="vit_base_patch14_dinov2",
        arguments=_frozen(img_size=CROP),
        resamples=True,
        pitch=14,
        prefix=1,
        width=768,
        depth=12,
        normalisation=IMAGENET,
        mpp=None,
        licence="Apache-2.0",
        parameters=85_724_928,
        gflop=46.3,
        note="natural images",
    ),
    EncoderEntry(
        id="phantom-small",
        title="SheafStain's own ViT, trained on phantoms",
        repo=None,
        published=None,
        architecture="vit_tiny_patch16_224",
        arguments=_frozen(embed_dim=256, depth=8, num_heads=4, mlp_ratio=3),
        pitch=16,
        prefix=1,
        width=256,
        depth=8,
        normalisation=HALF,
        mpp=TWENTY_TIMES,
        licence="Apache-2.0",
        parameters=5_515_520,
        gflop=2.5,
        shipped=True,
        note="part of SheafStain; it has seen synthetic tissue only",
    ),
    EncoderEntry(
        id="random-tiny",
        title="Random ViT, 4 blocks",
        repo=None,
        published=None,
        architecture="vit_tiny_patch16_224",
        arguments=_frozen(depth=4),
        pitch=16,
        prefix=1,
        width=192,
        depth=4,
        normalisation=IMAGENET,
        mpp=None,
        licence="none needed",
        parameters=1_965_504,
        gflop=0.9,
        seed=0,
        note="untrained: a stand-in for tests and timing",
    ),
    EncoderEntry(
        id="random-small",
        title="Random ViT-S/16",
        repo=None,
        published=None,
        architecture="vit_small_patch16_224",
        arguments=_frozen(),
        pitch=16,
        prefix=1,
        width=384,
        depth=12,
        normalisation=IMAGENET,
        mpp=None,
        licence="none needed",
        parameters=21_665_664,
        gflop=9.2,
        seed=0,
        note="untrained: a stand-in for tests and timing",
    ),
)


def list_encoders() -> tuple[EncoderEntry, ...]:
    """Every registered encoder, the paper's first."""
    return ENCODERS


def find_encoder(name: str) -> EncoderEntry:
    """The entry of that id, or of that Hugging Face id; an unknown name is answered with the nearest known one."""
    wanted = name.lower()
    for entry in ENCODERS:
        if wanted == entry.id or (entry.repo is not None and wanted == entry.repo.lower()):
            return entry
    ids = [entry.id for entry in ENCODERS]
    near = difflib.get_close_matches(wanted, ids, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(ids)}"
    raise UsageError(f"no encoder is called {name!r}; {hint} (sheafstain encoders lists them)")


def weights_of(entry: EncoderEntry) -> Path | None:
    """The safetensors file of an encoder on this machine, or None; never the network."""
    return None if entry.random else hub.locate(entry.id, entry.repo)


def how_to_get(entry: EncoderEntry) -> str:
    """What a user has to do to have the weights here."""
    if entry.shipped:
        return f"they are part of SheafStain ({hub.shipped_folder() / entry.id}): install it again"
    if (pickle := hub.locate_pickle(entry.id, entry.repo)) is not None:
        return f"{pickle} is a pickle, which is never loaded; run: {hub.conversion(pickle, entry.id)}"
    access = f"{entry.gate} ({entry.page}), then run" if entry.gate else "run"
    by_hand = (
        f"put {entry.published} into {hub.weights_folder() / entry.id}"
        if entry.published == hub.SAFE
        else f"fetch {entry.published} and run: sheafstain encoders {entry.id} --convert {entry.published}"
    )
    return f"{access}: sheafstain encoders {entry.id} --download; or {by_hand}"


def missing(entry: EncoderEntry) -> str:
    """What to say when an encoder is asked for and is not here: how to get its weights, and what works instead."""
    others = [other for other in ENCODERS if not other.random and other is not entry]
    ready = [other for other in others if weights_of(other)]
    open_ones = [other for other in others if other.gate is None and other not in ready and not other.shipped]
    works = [
        f"{words}: {', '.join(f'{other.id} (synthetic tissue only)' if other.shipped else other.id for other in some)}"
        for words, some in (("ready here now", ready), ("to be had without an account", open_ones))
        if some
    ]
    return "; ".join([f"{entry.id}: no weights on this machine", how_to_get(entry), *works])
