"""SheafStain: virtual IHC from H&E histology, glued without seams, with a map of where not to trust it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sheafstain.translate.stainer import Stainer as Stainer

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``Stainer`` brings torch with it: it is imported when it is asked for."""
    if name == "Stainer":
        from sheafstain.translate.stainer import Stainer

        return Stainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
