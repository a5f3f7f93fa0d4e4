"""Makes ``stain_doubles`` importable for the tests beside it and for the processes that they start."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
