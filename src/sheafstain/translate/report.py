"""What was done and how far to trust it: the JSON beside every output."""

from __future__ import annotations

import math
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from sheafstain import __version__
from sheafstain.slides.write import NOTICE
from sheafstain.translate import maps
from sheafstain.translate.conditioning import StainEncoder
from sheafstain.translate.measuring import Measuring
from sheafstain.translate.pipeline import Timing
from sheafstain.translate.protocol import StainProtocol, Translator
from sheafstain.window import Window

LISTED = 20  # bad places by name
_PACKAGES = ("torch", "timm", "numpy", "scipy", "pillow", "imagecodecs", "tifffile", "openslide-python", "zarr")


def report(
    measured: Measuring,
    timing: Timing,
    model: Translator,
    encoder: StainEncoder | None,
    source: Mapping[str, Any],
    *,
    damaged: Sequence[Window] = (),
    seconds: float | None = None,
) -> dict[str, Any]:
    """All that is known once the last row is there; places are [x, y, width, height] in pixels of the output.

    ``seconds`` of all runs together, where an earlier one was stopped.
    """
    protocol = measured.plan.protocol
    return {
        "notice": NOTICE,
        "input": source,
        "output": {"size": [measured.region.w, measured.region.h], "place": _place(measured.region)},
        "model": about_model(model),
        "encoder": about_encoder(protocol, encoder),
        "protocol": protocol.as_dict(),
        "windows": {**measured.windows, "translated_by_this_run": timing.windows},
        "defect": _defect(measured),
        "energy": _energy(measured),
        "damaged": [_place(window) for window in damaged],
        "seconds": {
            "total": round(timing.total if seconds is None else seconds, 3),
            "decode": round(timing.decode, 3),
            "compute": round(timing.compute, 3),
            "glue": round(timing.glue, 3),
            "write": round(timing.write, 3),
        },
        "peak_memory_mb": _peak_memory(model.device),
        "device": _device(model.device),
        "versions": versions(),
    }


def about_model(model: Translator) -> dict[str, Any]:
    config = model.config
    return {
        "name": config.name,
        "method": config.method,
        "stain": config.stain,
        "mpp": config.mpp,
        "hash": model.hash,
        "evaluations": model.evaluations,
        "synthetic": config.synthetic,
    }


def about_encoder(protocol: StainProtocol, encoder: StainEncoder | None) -> dict[str, Any] | None:
    if encoder is None or protocol.conditioning == "none":
        return None
    return {"id": encoder.id, "hash": encoder.weights_hash}


def versions() -> dict[str, str]:
    found = {"sheafstain": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _defect(measured: Measuring) -> dict[str, Any]:
    """RMS values on the [0, 1] scale; ``worst`` are 256-px squares."""
    tally, worst = measured.tally, measured.areas.worst()
    return {
        "defined": _number(tally.defined),
        "rms": _root(tally.mean),
        "rms_median": _root(tally.quantile(0.5)),
        "rms_p99": _root(tally.quantile(0.99)),
        "scale": f"map value v > 0: RMS difference (v - 1) / {maps.STEPS}; 0: undefined",
        "worst_share": 0.01,
        "worst_squares": len(worst),
        "worst": [{"place": _place(window), "rms": round(rms, 6)} for window, rms in worst[:LISTED]],
    }


def _energy(measured: Measuring) -> dict[str, Any]:
    summary = measured.energy.summary().as_dict()
    worst = measured.energy.worst
    return {key: _number(value) for key, value in summary.items()} | {
        "worst_overlap": None if worst is None else _place(worst)
    }


def _place(window: Window) -> list[int]:
    return [window.x, window.y, window.w, window.h]


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def _root(value: float) -> float | None:
    return None if math.isnan(value) else round(math.sqrt(value), 6)


def _peak_memory(device: torch.device) -> dict[str, int]:
    unit = 1 if sys.platform == "darwin" else 1024
    peak = {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 10**6}
    if device.type == "cuda":
        peak["gpu"] = torch.cuda.max_memory_allocated(device) // 10**6
    return peak


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
