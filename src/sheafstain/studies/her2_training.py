"""Training and scoring of the HER2 classifier: whole images, a checkpoint an epoch, the same result if it is stopped.

The order of the images and their flips are functions of seed and epoch alone, so an epoch that was cut short is simply
done again, and on a CPU the weights after the last one are the same bit for bit. The checkpoint is one safetensors file
with weights, the state of Adam and, in its header, what it was trained on; it is written under another name first.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sheafstain.errors import SheafStainError
from sheafstain.studies.her2 import MEAN, STD, Precision, Protocol, enough_memory
from sheafstain.studies.her2_cases import CaseSet
from sheafstain.whole import whole

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

FORMAT = 1
_AHEAD = 2  # batches decoded before they are needed

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Epoch:
    """What is known when an epoch ends."""

    number: int  # from 1
    loss: float  # mean over its images
    seconds: float


class Training:
    """A network on its way from its first to its last epoch, with the file that it goes on from.

    ``about`` names the start and the training images; a checkpoint of another training is refused.
    """

    def __init__(
        self,
        network: nn.Module,
        cases: CaseSet,
        protocol: Protocol,
        device: torch.device,
        checkpoint: Path,
        about: Mapping[str, Any],
    ) -> None:
        import torch

        self.network = network.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.cases, self.protocol, self.device, self.checkpoint = cases, protocol, device, checkpoint
        # Epochs are not part of it: with a constant learning rate a longer training begins as the shorter one did. Nor
        # is the name of the start: ``about`` has the hash of its weights.
        settings = {key: value for key, value in protocol.as_json().items() if key not in ("epochs", "init")}
        self.about = {**settings, **about}
        self.optimiser = torch.optim.Adam(
            self.network.parameters(), lr=protocol.lr, fused=True if device.type == "cuda" else None
        )
        self.losses: list[float] = []  # one an epoch
        if checkpoint.exists():
            self._resume()

    @property
    def epoch(self) -> int:
        """How many are done."""
        return len(self.losses)

    def run(
        self,
        *,
        workers: int = 1,
        advance: Advance | None = None,
        finished: Callable[[Epoch], None] | None = None,
    ) -> None:
        """Train what is left of the epochs, writing the checkpoint after each."""
        import torch

        if self.epoch > self.protocol.epochs:
            raise SheafStainError(
                f"{self.checkpoint}: has trained {self.epoch} epochs, more than the {self.protocol.epochs} asked for; "
                "choose another --name"
            )
        with (
            enough_memory(self.device, self.protocol.batch, self.cases.size),
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True),
        ):
            for epoch in range(self.epoch, self.protocol.epochs):
                started = time.monotonic()
                loss = self._one_epoch(epoch, workers, advance)
                if not math.isfinite(loss):
                    raise SheafStainError(f"the loss of epoch {epoch + 1} is {loss}: the training diverged; lower --lr")
                self.losses.append(loss)
                self._save()
                if finished:
                    finished(Epoch(self.epoch, loss, time.monotonic() - started))

    def _one_epoch(self, epoch: int, workers: int, advance: Advance | None) -> float:
        import torch
        from torch.nn.functional import binary_cross_entropy_with_logits

        draw = np.random.default_rng((self.protocol.seed, epoch))
        order = draw.permutation(len(self.cases.cases))
        flips = draw.random((len(order), 2)) < 0.5
        high = torch.from_numpy(self.cases.high).float()
        total = torch.zeros((), device=self.device)
        self.network.train()
        for chosen, pixels in _batches(self.cases, _split(order, self.protocol.batch), workers):
            pixels = _flipped(pixels.to(self.device), flips[chosen])
            logits = _logits(self.network, pixels, self.protocol.precision)
            loss = binary_cross_entropy_with_logits(logits, high[torch.from_numpy(chosen)].to(self.device))
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            total += loss.detach() * len(chosen)
            if advance:
                advance(len(chosen))
        return float(total) / len(order)

    def _save(self) -> None:
        from safetensors.torch import save

        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{name}": tensor for name, tensor in state.items()}
        header = {"format": FORMAT, "about": self.about, "losses": self.losses}
        content = save(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
            {"her2": json.dumps(header, ensure_ascii=False)},
        )
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        with whole(self.checkpoint) as part:
            part.write_bytes(content)

    def _resume(self) -> None:
        from safetensors import SafetensorError, safe_open

        damaged = f"{self.checkpoint}: not a whole checkpoint of this task; remove it and start again"
        try:
            with safe_open(self.checkpoint, framework="pt") as file:
                header = json.loads((file.metadata() or {})["her2"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if header["format"] != FORMAT:
                raise ValueError(header["format"])
            before, losses = dict(header["about"]), [float(loss) for loss in header["losses"]]
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise SheafStainError(f"{damaged} ({error})") from error
        differ = [key for key in {**before, **self.about} if before.get(key) != self.about.get(key)]
        if differ:
            said = "; ".join(
                f"{key} was {_brief(before.get(key))}, now {_brief(self.about.get(key))}" for key in differ
            )
            raise SheafStainError(f"{self.checkpoint}: of another training ({said}); choose another --name")
        try:
            self.network.load_state_dict(_under("network.", tensors))
            self.optimiser.load_state_dict(self._optimiser_state(_under("optimiser.", tensors)))
        except (RuntimeError, ValueError, KeyError) as error:
            raise SheafStainError(damaged) from error
        self.losses = losses

    def _optimiser_state(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = tensor
        return {"state": state, "param_groups": self.optimiser.state_dict()["param_groups"]}


def score(
    network: nn.Module,
    cases: CaseSet,
    protocol: Protocol,
    device: torch.device,
    *,
    workers: int = 1,
    advance: Advance | None = None,
) -> NDArray[np.float64]:
    """The probability of High of each image, float64 [n].

    In float32 whatever the training ran in, float64 from the logit on: rounding makes ties, which AUROC counts half.
    """
    import torch
    from scipy.special import expit

    network.eval()
    logits: list[NDArray[np.float32]] = []
    order = np.arange(len(cases.cases))
    with enough_memory(device, protocol.batch, cases.size), torch.inference_mode():
        for chosen, pixels in _batches(cases, _split(order, protocol.batch), workers):
            logits.append(_logits(network, pixels.to(device), "float32").cpu().numpy())
            if advance:
                advance(len(chosen))
    found = expit(np.concatenate(logits).astype(np.float64))
    if not np.isfinite(found).all():
        raise SheafStainError("the classifier gives no finite answer: the training diverged; lower --lr")
    return found


def _logits(network: nn.Module, pixels: Tensor, precision: Precision) -> Tensor:
    """uint8 [n, 3, h, w] → float32 logits of High [n]."""
    import torch

    mean, std = (torch.tensor(values, device=pixels.device).view(1, 3, 1, 1) for values in (MEAN, STD))
    images = ((pixels.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)
    with torch.autocast(pixels.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        return network(images)[:, 0].float()


def _flipped(pixels: Tensor, flips: NDArray[np.bool_]) -> Tensor:
    """Each image of [n, 3, h, w] as its row of ``flips`` [n, 2] says: upside down, left to right."""
    import torch

    for axis, which in ((2, flips[:, 0]), (3, flips[:, 1])):
        chosen = torch.from_numpy(which).to(pixels.device).view(-1, 1, 1, 1)
        pixels = torch.where(chosen, pixels.flip(axis), pixels)
    return pixels


def _split(order: NDArray[np.int64], batch: int) -> list[NDArray[np.int64]]:
    return [order[i : i + batch] for i in range(0, len(order), batch)]


def _batches(
    cases: CaseSet, batches: Sequence[NDArray[np.int64]], workers: int
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Indices with their images, uint8 [n, 3, h, w], decoded ahead by threads: Pillow lets them run side by side."""
    import torch

    with ThreadPoolExecutor(workers) as pool:
        coming: deque[tuple[NDArray[np.int64], list[Future[NDArray[np.uint8]]]]] = deque()
        rest = iter(batches)

        def submit(count: int) -> None:
            for chosen in islice(rest, count):
                coming.append((chosen, [pool.submit(cases.pixels, int(i)) for i in chosen]))

        submit(_AHEAD)
        try:
            while coming:
                submit(1)
                chosen, decoding = coming.popleft()
                yield chosen, torch.from_numpy(np.stack([image.result() for image in decoding])).permute(0, 3, 1, 2)
        finally:
            for _, decoding in coming:
                for left in decoding:
                    left.cancel()


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _brief(value: object) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text
