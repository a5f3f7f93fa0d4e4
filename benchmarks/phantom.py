"""How fast are phantoms drawn, and does a slide's height cost memory?

    python benchmarks/phantom.py

Each case runs in a process of its own. Pairs: 1024² H&E and consecutive IHC at 0.5 µm/px on one core, in processor
time, since other work on the machine is not the phantom's. Slides: the H&E of two slides of one width, one four times
as tall, with as many workers as cores; memory is that of the process that writes, its workers excluded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import record

PAIRS = 6


def pairs(folder: Path, layout: str) -> dict:
    """Draw and, with a layout, write pairs of six specimens."""
    from sheafstain.datasets.phantom.dataset import write_dataset
    from sheafstain.datasets.phantom.phantom import Phantom
    from sheafstain.datasets.phantom.plan import Plan
    from sheafstain.window import Resolution, Size

    plan = Plan(
        "pairs" if layout == "none" else layout, 5, PAIRS, 0, ("HER2",), Size(1024, 1024), Resolution(0.5), 1, False
    )
    items = plan.items()
    Phantom(items[0].specimen).draw(items[0].window, ("he",))  # imports and first-use costs are not a rate
    clock, cpu = time.perf_counter(), time.process_time()
    if layout == "none":
        for item in items:
            Phantom(item.specimen).draw(item.window, ("he", "ihc"))
    else:
        write_dataset(folder / layout, plan, workers=1)
    clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
    return {"per_core_second": PAIRS / cpu, "per_second": PAIRS / clock}


def slide(folder: Path, height: int) -> dict:
    import resource

    from sheafstain.datasets.phantom.slide import write_slide
    from sheafstain.window import Resolution, Size

    size = Size(height, 4096)
    clock = time.perf_counter()
    write_slide(folder / "slide.tif", 1, size, Resolution(0.5))
    clock = time.perf_counter() - clock
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"per_second": size.area / 1e6 / clock, "peak_mb": peak}


CASES = {
    "pairs, drawn": ("pairs", "none"),
    "pairs, drawn and written as PNG": ("pairs", "pairs"),
    "pairs, drawn and written as JPEG": ("pairs", "mist"),
    "slide 4096×4096": ("slide", 4096),
    "slide 4096×16384": ("slide", 16384),
}


def main() -> None:
    rows = []
    for case, (what, argument) in CASES.items():
        env = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        out = subprocess.run(
            [sys.executable, __file__, what, str(argument)], env=env, check=True, capture_output=True, text=True
        ).stdout
        measured = {"per_core_second": "-", "per_second": "-", "peak_mb": "-"} | json.loads(out)
        rows.append({"case": case, "unit": "Mpx" if what == "slide" else "pairs", **measured})
    record("phantom", rows)
    short, tall = (row["peak_mb"] for row in rows[-2:])
    print(f"four times the height: {tall / short:.2f} × the memory")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        with tempfile.TemporaryDirectory() as scratch:
            what, argument = sys.argv[1:]
            case = pairs(Path(scratch), argument) if what == "pairs" else slide(Path(scratch), int(argument))
        print(json.dumps(case))
