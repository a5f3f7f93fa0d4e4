"""Which device to compute on."""

from __future__ import annotations

import torch

from sheafstain.errors import UsageError


def choose_device(name: str | torch.device | None) -> torch.device:
    """The named device, or the first GPU when there is one and none is named."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # an unknown word; a device this build or machine does not have
        raise UsageError(f"there is no device {str(name)!r} here ({str(error).splitlines()[0]})") from error
    return device
