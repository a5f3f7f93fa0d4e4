"""SheafStain: virtual IHC from H&E histology, glued without seams, with a map of where not to trust it."""

__version__ = "0.1.0"
