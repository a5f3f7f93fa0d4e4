"""Fetching published weights when the user asks for it: the only place where a metric touches the network."""

from __future__ import annotations

from pathlib import Path

from sheafstain.errors import SheafStainError
from sheafstain.hub import weights_folder
from sheafstain.metrics.catalogue import Metric
from sheafstain.metrics.weights import by_id, locate


def fetch_missing(metrics: tuple[Metric, ...], folder: Path | None = None) -> list[Path]:
    """Bring what these metrics need and is neither in ``folder`` nor in the usual places; the files that came.

    A file with another SHA-256 than the published one is not kept.
    """
    from torch.hub import download_url_to_file

    came = []
    for name in dict.fromkeys(name for metric in metrics for name in metric.weights):
        known = by_id(name)
        if known.url is None or locate(known, folder) is not None:
            continue
        target = weights_folder() / Path(known.url).name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            download_url_to_file(known.url, str(target), hash_prefix=known.sha256, progress=False)
        except (OSError, RuntimeError) as error:  # no network; another file than the published one
            reason = str(error).splitlines()[0]
            raise SheafStainError(
                f"{known.metrics}: {known.url} did not come ({reason}); fetch it elsewhere into {target.parent}"
            ) from error
        came.append(target)
    return came
