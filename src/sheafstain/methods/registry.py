"""The methods by name. A new one is a module beside this file and an entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sheafstain.errors import UsageError
from sheafstain.methods import cyclegan, pix2pix, sheafstain, unsb
from sheafstain.methods.engine import Engine
from sheafstain.methods.method import Method, Tiling


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """What trainer and translator need to know of a method.

    ``settings`` is the frozen dataclass that a configuration fills; ``build_generator(settings, width)`` makes the
    network that is exported, ``translate(network, settings, he, noise, M, c_n, nfe)`` uses it, ``tiling`` is its native
    way to cover an image, and ``train(settings, engine, width, tokens)`` makes the whole method.
    """

    name: str
    title: str
    settings: type
    build_generator: Callable[[Any, int], nn.Module]
    translate: Callable[..., Tensor]
    tiling: Tiling
    train: Callable[[Any, Engine, int, sheafstain.Tokens | None], Method]


METHODS: dict[str, MethodEntry] = {
    entry.name: entry
    for entry in (
        MethodEntry(
            "sheafstain",
            "SheafStain: the bridge conditioned on a section, glued on overlaps",
            sheafstain.SheafStainSettings,
            sheafstain.build_generator,
            sheafstain.translate,
            sheafstain.TILING,
            sheafstain.SheafStain,
        ),
        MethodEntry(
            "unsb",
            "UNSB: unpaired neural Schrödinger bridge (Kim et al. 2024), repaired or as released",
            unsb.UnsbSettings,
            unsb.build_generator,
            unsb.translate,
            unsb.TILING,
            lambda settings, engine, width, tokens: unsb.Unsb(settings, engine),
        ),
        MethodEntry(
            "cyclegan",
            "CycleGAN (Zhu et al. 2017)",
            cyclegan.CycleganSettings,
            cyclegan.build_generator,
            cyclegan.translate,
            cyclegan.TILING,
            lambda settings, engine, width, tokens: cyclegan.Cyclegan(settings, engine),
        ),
        MethodEntry(
            "pix2pix",
            "pix2pix (Isola et al. 2017)",
            pix2pix.Pix2pixSettings,
            pix2pix.build_generator,
            pix2pix.translate,
            pix2pix.TILING,
            lambda settings, engine, width, tokens: pix2pix.Pix2pix(settings, engine),
        ),
    )
}


def find_method(name: str) -> MethodEntry:
    if name not in METHODS:
        raise UsageError(f"there is no method {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]
