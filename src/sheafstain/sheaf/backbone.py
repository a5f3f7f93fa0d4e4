"""From an entry of the registry to its network with its weights: build, fill, and say what does not fit.

timm makes the networks. They are built without memory and take over the tensors of the file as they are, so that a
ViT-g is in memory once. Files in the layout of transformers' Dinov2Model (Phikon-v2, Midnight) are renamed into
timm's; the two compute the same function, which the tests hold against an implementation of their own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sheafstain import hub
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.sheaf.registry import EncoderEntry, Layout, find_encoder, list_encoders, missing, weights_of
from sheafstain.window import Resolution

# Tensors that published files carry and no forward pass of tokens uses.
_SHARP = 4.0

_UNUSED = ("mask_token", "head.", "fc_norm.", "embeddings.mask_token", "classifier.", "pooler.")


def find_weights(name_or_path: str | Path, *, download: bool = False) -> tuple[EncoderEntry, Path | None]:
    """The entry and the weights file that a user's words mean; no file for a random encoder."""
    text = str(name_or_path)
    if not Path(text).exists():
        name, is_pair, place = text.partition("=")
        if is_pair:
            return find_encoder(name), hub.resolve(Path(place).expanduser())
    if Path(text).exists() or Path(text).suffix.lower() in (".safetensors", *hub.PICKLES):
        path = hub.resolve(Path(text))
        return identify(path), path
    try:
        entry = find_encoder(text)
    except UsageError:
        if (path := hub.locate(text)) is None:
            raise
        return identify(path), path  # one of the user's own, kept where the others are
    if entry.random:
        return entry, None
    path = weights_of(entry) or (fetch(entry) if download else None)
    if path is None:
        raise SheafStainError(missing(entry))
    return entry, path


def fetch(entry: EncoderEntry) -> Path:
    """Download an encoder's weights; a published pickle is converted into SheafStain's own folder."""
    if entry.shipped:
        raise UsageError(f"{entry.id}: is part of SheafStain; there is nothing to download")
    if entry.repo is None or entry.published is None:
        raise UsageError(f"{entry.id}: has no published weights ({entry.note})")
    path = hub.download(entry.id, entry.repo, entry.published)
    return adopt(entry, path) if path.suffix in hub.PICKLES else path


def adopt(entry: EncoderEntry, pickle: Path) -> Path:
    """Convert a pickled state dict to safetensors where it will be found, once it is known to fit the encoder."""
    folder = hub.weights_folder() / entry.id
    fresh = hub.convert(pickle, folder / "converted.partial")
    try:
        _fitted(entry, fresh, called=pickle)
        return fresh.replace(folder / hub.SAFE)
    finally:
        fresh.unlink(missing_ok=True)


def build(entry: EncoderEntry, device: str = "meta") -> nn.Module:
    """The network of an entry, by default without memory for its weights, checked against what the entry says of it."""
    import timm

    arguments: dict[str, Any] = dict(entry.arguments)
    if entry.swiglu:
        from timm.layers.mlp import SwiGLUPacked

        arguments |= {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU}
    with torch.device(device):
        network: Any = timm.create_model(entry.architecture, pretrained=False, num_classes=0, **arguments)
    said = (entry.prefix, entry.width, entry.depth, (entry.pitch,) * 2, (entry.grid,) * 2)
    patches = network.patch_embed
    built = (network.num_prefix_tokens, network.embed_dim, len(network.blocks), patches.patch_size, patches.grid_size)
    words = ("prefix tokens", "width", "depth", "pitch", "grid")
    wrong = [f"{word} {b}, not {s}" for word, b, s in zip(words, built, said, strict=True) if b != s]
    if wrong:
        raise SheafStainError(f"{entry.id}: timm {timm.__version__} builds another network: {'; '.join(wrong)}")
    return network


def load_network(entry: EncoderEntry, path: Path) -> nn.Module:
    """The network of an entry with the weights of a safetensors file; a file that does not fit is named."""
    network, state = _fitted(entry, path, called=path)
    network.load_state_dict(state, strict=True, assign=True)
    return network


def _fitted(entry: EncoderEntry, path: Path, *, called: Path) -> tuple[nn.Module, dict[str, Tensor]]:
    """The empty network and the tensors that fit it, under its names."""
    network = build(entry)
    tensors = hub.load_tensors(path)
    state = {name: tensor for name, tensor in _in_timm(entry, tensors).items() if not name.startswith(_UNUSED)}
    if entry.resamples:
        _resample(state, network, entry)
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    hub.check_fit(called, {name: tuple(tensor.shape) for name, tensor in state.items()}, expected)
    return network, state


def random_network(entry: EncoderEntry, device: str = "cpu", seed: int | None = None) -> nn.Module:
    """The network of an entry with weights drawn from a seed: each tensor from its own generator, named by the
    tensor, so that nothing depends on an order.

    Weights have variance 1 / fan-in, which keeps the scale from block to block; queries and keys are drawn ``_SHARP``
    times wider, the position embedding narrow. At the usual start (0.02 everywhere) attention is all but uniform and
    every token receives the same context; wider, each token attends to a few others wherever they lie, and its value
    depends on what else the crop shows. A wide position embedding would hide that: tokens would then differ by where
    they lie.
    """
    network = build(entry, device)
    chosen = entry.seed if seed is None else seed
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            key = hashlib.sha256(f"{chosen} {name}".encode()).digest()
            generator = torch.Generator(parameter.device).manual_seed(int.from_bytes(key[:7], "big"))
            if parameter.ndim == 1:  # norms and layer scales pass through, biases are nothing
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            elif name in ("pos_embed", "cls_token", "reg_token"):
                parameter.normal_(0.0, 0.02, generator=generator)
            else:
                parameter.normal_(0.0, parameter[0].numel() ** -0.5, generator=generator)
                if name.endswith("attn.qkv.weight"):
                    parameter[: 2 * entry.width] *= _SHARP
    return network


# -- layouts ---------------------------------------------------------------------------------------------------------

_RENAMED = (
    (r"^embeddings\.cls_token$", "cls_token"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^layernorm\.", "norm."),
    (r"^encoder\.layer\.(\d+)\.", r"blocks.\1."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.layer_scale(\d)\.lambda1$", r".ls\1.gamma"),
    (r"\.mlp\.weights_in\.", ".mlp.fc1."),
    (r"\.mlp\.weights_out\.", ".mlp.fc2."),
)
_QKV = re.compile(r"^(blocks\.\d+)\.attention\.attention\.(query|key|value)\.(weight|bias)$")


def _renamed(name: str) -> str:
    name = name.removeprefix("dinov2.")
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def _in_timm(entry: EncoderEntry, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under timm's names: query, key and value stacked into one projection, everything else as it is."""
    if entry.layout == "timm":
        return dict(tensors)
    state: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        new = _renamed(name)
        if match := _QKV.match(new):
            block, part, kind = match.groups()
            parts.setdefault(f"{block}.attn.qkv.{kind}", {})[part] = tensor
        else:
            state[new] = tensor
    for name, part in parts.items():
        # A part may be missing from a wrong file: what is there is stacked, and its shape then tells.
        state[name] = torch.cat([part[key] for key in ("query", "key", "value") if key in part])
    return state


def _resample(state: dict[str, Tensor], network: Any, entry: EncoderEntry) -> None:
    """Interpolate a position embedding published for another grid, as the library the file comes from does: timm with
    antialiasing, transforms without."""
    from timm.layers.pos_embed import resample_abs_pos_embed

    published = state.get("pos_embed")
    if published is None or published.shape == network.pos_embed.shape or published.shape[-1] != entry.width:
        return
    prefix = 0 if network.no_embed_class else network.num_prefix_tokens
    side = round((published.shape[1] - prefix) ** 0.5)
    if side * side != published.shape[1] - prefix:
        return  # no square grid: left as it is, for check_fit to name
    state["pos_embed"] = resample_abs_pos_embed(
        published, [entry.grid, entry.grid], num_prefix_tokens=prefix, antialias=entry.layout == "timm"
    )


# -- what a file is --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Form:
    """What the shapes of a vision transformer's tensors tell of it."""

    layout: Layout
    width: int
    pitch: int
    depth: int
    prefix: int
    swiglu: bool

    @classmethod
    def of(cls, tensors: Mapping[str, hub.TensorInfo], path: Path) -> _Form:
        layout: Layout = "transformers" if any("encoder.layer.0." in name for name in tensors) else "timm"
        shapes = {_renamed(name) if layout == "transformers" else name: info.shape for name, info in tensors.items()}
        try:
            width, _, pitch, _ = shapes["patch_embed.proj.weight"]
            registers = shapes["reg_token"][1] if "reg_token" in shapes else 0
            blocks = {name.split(".")[1] for name in shapes if name.startswith("blocks.")}
            swiglu = shapes["blocks.0.mlp.fc1.weight"][0] == 2 * shapes["blocks.0.mlp.fc2.weight"][1]
        except (KeyError, ValueError, IndexError) as error:
            raise SheafStainError(f"{path}: holds no vision transformer ({len(tensors)} tensors, {error})") from error
        return cls(layout, width, pitch, len(blocks), int("cls_token" in shapes) + registers, swiglu)

    def fits(self, entry: EncoderEntry) -> bool:
        return not entry.random and (self.layout, self.width, self.pitch, self.depth, self.prefix) == (
            entry.layout,
            entry.width,
            entry.pitch,
            entry.depth,
            entry.prefix,
        )


def identify(path: Path) -> EncoderEntry:
    """Which encoder a safetensors file belongs to: a registered one of the same form and the same normalisation, else
    the one that timm's ``config.json`` beside it describes. A file alone does not say how its input is normalised, so
    it is not guessed at."""
    tensors = hub.read_header(path)
    form = _Form.of(tensors, path)
    fits = [entry for entry in list_encoders() if form.fits(entry)]
    advice = f"say which encoder it is: {' or '.join(entry.id for entry in fits) or 'NAME'}={path}"
    config = _read_json(path.with_name("config.json"))
    if config is None:
        raise UsageError(f"{path}: no config.json beside it; {advice}")
    normalisation = _normalisation(config, path)
    same = [entry for entry in fits if normalisation is None or entry.normalisation == normalisation]
    if len(same) == 1:
        return same[0]
    if same or normalisation is None or "architecture" not in config:
        raise UsageError(f"{path}: its config.json does not tell which encoder it is; {advice}")
    known = ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "init_values", "no_embed_class")
    arguments = {key: value for key, value in config.get("model_args", {}).items() if key in (*known, "reg_tokens")}
    return EncoderEntry(
        id=path.resolve().parent.name,
        title=str(config["architecture"]),
        repo=None,
        published=None,
        architecture=str(config["architecture"]),
        arguments=arguments,
        swiglu=form.swiglu,
        pitch=form.pitch,
        prefix=form.prefix,
        width=form.width,
        depth=form.depth,
        normalisation=normalisation,
        mpp=Resolution(config["mpp"]) if "mpp" in config else None,
        licence=str(config.get("license") or config.get("pretrained_cfg", {}).get("license") or "not stated"),
        parameters=sum(torch.Size(info.shape).numel() for info in tensors.values()),
        gflop=None,
    )


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise SheafStainError(f"{path}: not JSON ({error})") from error
    return content if isinstance(content, dict) else {}


def _normalisation(config: dict[str, Any], path: Path) -> tuple[Any, Any] | None:
    """Mean and standard deviation, as timm's config states them or as transformers' second file does."""
    timms = config.get("pretrained_cfg", {})
    other = _read_json(path.with_name("preprocessor_config.json")) or {}
    mean, std = timms.get("mean") or other.get("image_mean"), timms.get("std") or other.get("image_std")
    return (tuple(mean), tuple(std)) if mean and std else None
