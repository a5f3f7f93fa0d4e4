"""``python -m sheafstain``, the same as ``sheafstain``."""

from sheafstain.cli import main

main()
