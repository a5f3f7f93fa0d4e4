"""Makes ``stain_doubles``, and the slides of ``tests/slides``, importable for the tests beside it.

The first also for the processes that they start.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "slides")]
