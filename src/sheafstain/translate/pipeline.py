"""One translation: rows are decoded, windows translated, glued, measured and written at the same time.

    decode ──bands──▶ compute ──windows──▶ glue, measure and write

Threads are few on purpose: with NumPy's short calls one more waits longer for the interpreter than it works. The queues
are short, so memory grows with the width of the image and never with its height. Computing is done by the calling
thread, which is the one that Ctrl-C interrupts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sheafstain.translate.conditioning import StainEncoder, conditioned
from sheafstain.translate.gluing import glue
from sheafstain.translate.measuring import Measuring
from sheafstain.translate.pixels import Pixels, Source, decode
from sheafstain.translate.protocol import Translator
from sheafstain.translate.stages import Stages
from sheafstain.translate.windows import translate

BANDS, BATCHES = 1, 2  # that wait between the stages


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: of the whole, and those that each stage was at work, which overlap."""

    total: float
    decode: float
    compute: float
    glue: float
    write: float
    windows: int


def run(
    source: Source,
    model: Translator,
    encoder: StainEncoder | None,
    measuring: Measuring,
    *,
    batch: int,
    band: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> Timing:
    """Translate what the plan of ``measuring`` asks for; ``advance`` is called with the number of windows just done."""
    plan = measuring.plan
    began = time.perf_counter()
    with Stages() as stages:
        bands, translated = (stages.channel(room) for room in (BANDS, BATCHES))
        stages.start("decode", lambda: decode(source, plan, bands, band))
        stages.start("glue", lambda: measuring.run(glue(plan, translated)))
        pixels = Pixels(plan, bands, model.device)
        ready = conditioned(plan, pixels, encoder)
        count = translate(model, plan.protocol, ready, pixels, translated, batch, advance)
        computed = time.perf_counter() - began
    return Timing(
        total=time.perf_counter() - began,
        decode=stages.seconds["decode"] - bands.put_waited,
        compute=computed - bands.got_waited - translated.put_waited,
        glue=stages.seconds["glue"] - translated.got_waited - measuring.seconds,
        write=measuring.seconds,
        windows=count,
    )
