"""Makes ``vendor_files`` importable for the tests beside it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
