"""Files of weights against their layouts, and what is said of those that do not fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from sheafstain import hub
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.sheaf import backbone
from sheafstain.sheaf.encoders import Encoder, Tokens, load_encoder
from sheafstain.sheaf.registry import find_encoder, how_to_get, missing

CPU = torch.device("cpu")


def noise(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 224, 224, 3), np.uint8)


def only(tokens: Iterator[Tokens]) -> Tokens:
    (one,) = tokens
    return one


# -- files -------------------------------------------------------------------------------------------------------------

SMALL = find_encoder("kaiko-vits16")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in the layout of a registered encoder's repository."""
    folder = tmp_path_factory.mktemp("kaiko")
    save_file(backbone.random_network(SMALL, seed=3).state_dict(), folder / "model.safetensors")
    config = {"architecture": "vit_small_patch16_224", "pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(hub, "shipped_folder", lambda: tmp_path / "shipped")
    monkeypatch.setenv("SHEAFSTAIN_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def test_a_folder_a_file_and_an_installed_name_give_the_same_encoder(weights: Path, tmp_path: Path) -> None:
    file = weights / "model.safetensors"
    (tmp_path / "weights" / SMALL.id).mkdir(parents=True)
    (tmp_path / "weights" / SMALL.id / "model.safetensors").symlink_to(file)
    crops = noise(1)
    expected = only(Encoder(backbone.random_network(SMALL, seed=3), SMALL, weights_hash="", device=CPU).encode([crops]))
    for name in (weights, f"{SMALL.id}={file}", f"{SMALL.id}={weights}", SMALL.id, SMALL.repo):
        assert name is not None
        encoder = load_encoder(name, device="cpu")
        assert (encoder.id, encoder.weights_hash) == (SMALL.id, hub.content_hash(file))
        torch.testing.assert_close(only(encoder.encode([crops])).patch, expected.patch)


def test_the_hub_cache_serves_without_the_network(weights: Path, tmp_path: Path) -> None:
    assert SMALL.repo is not None
    repo = tmp_path / "hub" / f"models--{SMALL.repo.replace('/', '--')}"
    (repo / "snapshots" / "abc").mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc")
    (repo / "snapshots" / "abc" / "model.safetensors").symlink_to(weights / "model.safetensors")
    assert load_encoder(SMALL.id, device="cpu").entry is SMALL


def test_a_bare_file_is_not_guessed_at(weights: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.safetensors"
    bare.symlink_to(weights / "model.safetensors")
    with pytest.raises(UsageError, match=rf"no config\.json beside it; say which encoder it is: kaiko-vits16={bare}"):
        load_encoder(bare)


def test_two_encoders_of_one_form_have_to_be_told_apart(tmp_path: Path) -> None:
    one = torch.empty(0)
    form = {"patch_embed.proj.weight": torch.empty(1536, 3, 14, 14), "reg_token": torch.empty(1, 4, 1536)}
    form |= {f"blocks.{i}.norm1.bias": one.clone() for i in range(40)} | {"cls_token": one.clone()}
    form |= {"blocks.0.mlp.fc1.weight": torch.empty(8, 1), "blocks.0.mlp.fc2.weight": torch.empty(1, 4)}
    save_file(form, tmp_path / "model.safetensors")
    published = find_encoder("h-optimus-0").normalisation
    config = {"architecture": "x", "pretrained_cfg": dict(zip(("mean", "std"), published, strict=True))}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=r"h-optimus-0 or h-optimus-1="):
        backbone.identify(tmp_path / "model.safetensors")


def test_an_unregistered_model_is_what_its_config_says(tmp_path: Path) -> None:
    folder = tmp_path / "my-encoder"
    folder.mkdir()
    arguments = {"embed_dim": 48, "depth": 2, "num_heads": 3, "patch_size": 16, "img_size": 224}
    pretrained = {"mean": [0.7, 0.6, 0.7], "std": [0.2, 0.2, 0.2], "license": "mit"}
    config = {
        "architecture": "vit_tiny_patch16_224",
        "model_args": arguments,
        "pretrained_cfg": pretrained,
        "mpp": 0.25,
    }
    (folder / "config.json").write_text(json.dumps(config))
    entry = replace(find_encoder("random-tiny"), arguments=arguments, width=48, depth=2)
    network = backbone.random_network(entry)
    save_file(network.state_dict(), folder / "model.safetensors")
    encoder = load_encoder(folder, device="cpu")
    assert (encoder.id, encoder.width, encoder.grid, encoder.pitch) == ("my-encoder", 48, 14, 16)
    assert encoder.entry.normalisation == ((0.7, 0.6, 0.7), (0.2, 0.2, 0.2))
    assert encoder.entry.licence == "mit" and encoder.entry.mpp is not None and encoder.entry.mpp.mpp == 0.25
    assert encoder.entry.parameters == sum(parameter.numel() for parameter in network.parameters())

    folder.rename(hub.weights_folder().parent / "elsewhere")
    with pytest.raises(UsageError, match="no encoder is called 'my-encoder'"):
        load_encoder("my-encoder", device="cpu")
    hub.weights_folder().mkdir()
    (hub.weights_folder().parent / "elsewhere").rename(hub.weights_folder() / "my-encoder")
    found = load_encoder("my-encoder", device="cpu")  # by its name, as the others
    assert (found.id, found.weights_hash) == (encoder.id, encoder.weights_hash)


def test_a_wrong_file_is_told_by_its_tensors(weights: Path, tmp_path: Path) -> None:
    state = hub.load_tensors(weights / "model.safetensors")
    del state["blocks.3.attn.qkv.bias"]
    state["norm.weight"] = torch.ones(7)
    state["reg_token"] = torch.ones(1, 4, 384)
    state["head.weight"] = torch.ones(1000, 384)  # a classifier does no harm
    path = tmp_path / "wrong.safetensors"
    save_file(state, path)
    with pytest.raises(SheafStainError) as caught:
        load_encoder(f"{SMALL.id}={path}")
    said = str(caught.value)
    assert said.startswith(f"{path}: not the weights of this model")
    assert "1 missing (blocks.3.attn.qkv.bias)" in said
    assert "1 misshapen (norm.weight is 7, expected 384)" in said
    assert "1 unknown (reg_token)" in said
    assert "\n" not in said


def test_a_file_that_is_no_vision_transformer(tmp_path: Path) -> None:
    save_file({"conv.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SheafStainError, match="no vision transformer"):
        load_encoder(tmp_path)


def test_what_is_missing_says_how_to_get_it(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(SheafStainError) as caught:
        load_encoder("prov-gigapath")
    said = str(caught.value)
    assert "accept the terms" in said and "https://huggingface.co/prov-gigapath/prov-gigapath" in said
    assert "sheafstain encoders prov-gigapath --download" in said
    assert "sheafstain encoders prov-gigapath --convert pytorch_model.bin" in said
    assert "without an account: phikon-v2, midnight-12k, kaiko-vits16, dinov2-small" in said
    assert "random" not in said and "\n" not in said
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / f"{SMALL.id}.safetensors").symlink_to(weights / "model.safetensors")
    assert "ready here now: kaiko-vits16; to be had without an account: phikon-v2" in missing(
        find_encoder("prov-gigapath")
    )
    shipped = tmp_path / "shipped" / "phantom-small" / "model.safetensors"
    shipped.parent.mkdir(parents=True)
    shipped.symlink_to(weights / "model.safetensors")
    assert "ready here now: kaiko-vits16, phantom-small (synthetic tissue only); " in missing(find_encoder("uni"))
    by_hand = f"or put model.safetensors into {tmp_path / 'weights' / 'phikon-v2'}"
    assert how_to_get(find_encoder("phikon-v2")) == f"run: sheafstain encoders phikon-v2 --download; {by_hand}"


def test_a_pickle_that_is_here_is_not_loaded_but_adopted_on_request(weights: Path, tmp_path: Path) -> None:
    state = hub.load_tensors(weights / "model.safetensors")
    folder = tmp_path / "weights" / SMALL.id
    folder.mkdir(parents=True)
    torch.save(state, folder / "pytorch_model.bin")
    with pytest.raises(SheafStainError, match=rf"never loaded; run: sheafstain encoders {SMALL.id} --convert"):
        load_encoder(SMALL.id)
    assert backbone.adopt(SMALL, folder / "pytorch_model.bin") == folder / "model.safetensors"
    assert load_encoder(SMALL.id, device="cpu").weights_hash == hub.hash_of(state)


def test_a_pickle_of_another_model_is_not_adopted(weights: Path, tmp_path: Path) -> None:
    torch.save({"some.weight": torch.ones(3)}, tmp_path / "w.bin")
    with pytest.raises(SheafStainError, match=r"w\.bin: not the weights of this model: of 150 tensors 150 missing"):
        backbone.adopt(SMALL, tmp_path / "w.bin")
    assert not list((tmp_path / "weights" / SMALL.id).iterdir())


def test_a_download_of_a_pickle_is_converted_on_arrival(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(hub.load_tensors(weights / "model.safetensors"), tmp_path / "pytorch_model.bin")
    monkeypatch.setattr(hub, "download", lambda *_: tmp_path / "pytorch_model.bin")
    path = backbone.fetch(replace(SMALL, published="pytorch_model.bin"))
    assert path == tmp_path / "weights" / SMALL.id / "model.safetensors"
    assert load_encoder(SMALL.id, device="cpu").weights_hash == hub.content_hash(weights / "model.safetensors")


def test_a_random_encoder_has_nothing_to_download() -> None:
    with pytest.raises(UsageError, match="no published weights"):
        backbone.fetch(find_encoder("random-tiny"))


# -- the layout of transformers' Dinov2Model ---------------------------------------------------------------------------


def published_dinov2(width: int, depth: int, side: int, pitch: int, swiglu: bool) -> dict[str, Tensor]:
    """Random tensors under the names and shapes in which Phikon-v2 and Midnight are published."""
    generator = torch.Generator().manual_seed(0)
    hidden = (int(4 * width * 2 / 3) + 7) // 8 * 8 if swiglu else 4 * width
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.cls_token": (1, 1, width),
        "embeddings.mask_token": (1, width),
        "embeddings.position_embeddings": (1, 1 + side**2, width),
        "embeddings.patch_embeddings.projection.weight": (width, 3, pitch, pitch),
        "embeddings.patch_embeddings.projection.bias": (width,),
        "layernorm.weight": (width,),
        "layernorm.bias": (width,),
    }
    for i in range(depth):
        layer = f"encoder.layer.{i}"
        for part in ("attention.attention.query", "attention.attention.key", "attention.attention.value"):
            shapes |= {f"{layer}.{part}.weight": (width, width), f"{layer}.{part}.bias": (width,)}
        shapes |= {f"{layer}.attention.output.dense.weight": (width, width)}
        shapes |= {f"{layer}.attention.output.dense.bias": (width,)}
        for norm in ("norm1", "norm2"):
            shapes |= {f"{layer}.{norm}.weight": (width,), f"{layer}.{norm}.bias": (width,)}
        shapes |= {f"{layer}.layer_scale{k}.lambda1": (width,) for k in (1, 2)}
        names = (("weights_in", 2 * hidden), ("weights_out", hidden)) if swiglu else (("fc1", hidden), ("fc2", hidden))
        shapes |= {f"{layer}.mlp.{names[0][0]}.weight": (names[0][1], width)}
        shapes |= {f"{layer}.mlp.{names[0][0]}.bias": (names[0][1],)}
        shapes |= {
            f"{layer}.mlp.{names[1][0]}.weight": (width, names[1][1]),
            f"{layer}.mlp.{names[1][0]}.bias": (width,),
        }
    return {
        name: torch.randn(shape, generator=generator) * (0.5 if len(shape) == 1 else shape[-1] ** -0.5)
        for name, shape in shapes.items()
    }


def dinov2_forward(w: dict[str, Tensor], images: Tensor, heads: int, depth: int) -> Tensor:
    """The forward pass of Dinov2Model, written from its description with nothing of timm in it."""
    patches = functional.conv2d(
        images,
        w["embeddings.patch_embeddings.projection.weight"],
        w["embeddings.patch_embeddings.projection.bias"],
        stride=w["embeddings.patch_embeddings.projection.weight"].shape[-1],
    )
    grid, width = patches.shape[-1], patches.shape[1]
    position = w["embeddings.position_embeddings"]
    side = round((position.shape[1] - 1) ** 0.5)
    if side != grid:
        square = position[:, 1:].reshape(1, side, side, width).permute(0, 3, 1, 2)
        square = functional.interpolate(square, size=(grid, grid), mode="bicubic", align_corners=False)
        position = torch.cat([position[:, :1], square.permute(0, 2, 3, 1).reshape(1, -1, width)], 1)
    x = torch.cat([w["embeddings.cls_token"].expand(len(images), -1, -1), patches.flatten(2).transpose(1, 2)], 1)
    x = x + position

    def norm(x: Tensor, name: str) -> Tensor:
        return functional.layer_norm(x, (width,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-6)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    for i in range(depth):
        layer = f"encoder.layer.{i}"
        y = norm(x, f"{layer}.norm1")
        q, k, v = (
            linear(y, f"{layer}.attention.attention.{part}").unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        weights = (q @ k.transpose(-1, -2) / (width // heads) ** 0.5).softmax(-1)
        y = linear((weights @ v).transpose(1, 2).flatten(2), f"{layer}.attention.output.dense")
        x = x + y * w[f"{layer}.layer_scale1.lambda1"]
        y = norm(x, f"{layer}.norm2")
        if f"{layer}.mlp.weights_in.weight" in w:
            gate, value = linear(y, f"{layer}.mlp.weights_in").chunk(2, -1)
            y = linear(functional.silu(gate) * value, f"{layer}.mlp.weights_out")
        else:
            y = linear(functional.gelu(linear(y, f"{layer}.mlp.fc1")), f"{layer}.mlp.fc2")
        x = x + y * w[f"{layer}.layer_scale2.lambda1"]
    return norm(x, "layernorm")


@pytest.mark.parametrize(
    ("name", "pitch", "side", "swiglu"),
    [("phikon-v2", 16, 14, False), ("midnight-12k", 14, 16, True), ("midnight-12k", 14, 37, True)],
    ids=["phikon", "midnight", "midnight-518px"],
)
def test_the_transformers_layout_computes_the_same_in_timm(
    tmp_path: Path, name: str, pitch: int, side: int, swiglu: bool
) -> None:
    width, depth, heads = 48, 2, 4
    tensors = published_dinov2(width, depth, side, pitch, swiglu)
    save_file(tensors, tmp_path / "model.safetensors")
    published = find_encoder(name)
    smaller = {"embed_dim": width, "depth": depth, "num_heads": heads} | ({"mlp_ratio": 16 / 3} if swiglu else {})
    entry = replace(published, arguments=dict(published.arguments) | smaller, width=width, depth=depth)
    encoder = Encoder(backbone.load_network(entry, tmp_path / "model.safetensors"), entry, weights_hash="", device=CPU)
    crops = noise(2)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in entry.normalisation)
    images = (torch.from_numpy(crops).permute(0, 3, 1, 2) / 255 - mean) / std
    expected = dinov2_forward(tensors, images, heads, depth)
    tokens = only(encoder.encode([crops]))
    torch.testing.assert_close(tokens.patch, expected[:, 1:], atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(tokens.cls, expected[:, 0], atol=2e-4, rtol=1e-4)


def test_the_names_of_the_published_phikon_are_all_understood() -> None:
    """At full size, without memory: every tensor finds its place in the network and none is left over."""
    entry = find_encoder("phikon-v2")
    with torch.device("meta"):
        network = backbone.build(entry)
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    small = published_dinov2(64, 24, 14, 16, False)
    grown = {  # the published names at the published width
        name: torch.empty([size * 16 if size in (64, 256) else size for size in tensor.shape], device="meta")
        for name, tensor in small.items()
    }
    renamed = {
        name: tuple(tensor.shape)
        for name, tensor in backbone._in_timm(entry, grown).items()
        if not name.startswith(backbone._UNUSED)
    }
    assert renamed == expected


def test_a_wrong_transformers_file_is_named_and_does_not_crash(tmp_path: Path) -> None:
    tensors = published_dinov2(48, 2, 14, 16, False)
    del tensors["encoder.layer.1.attention.attention.key.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    published = find_encoder("phikon-v2")
    arguments = dict(published.arguments) | {"embed_dim": 48, "depth": 2, "num_heads": 4}
    with pytest.raises(
        SheafStainError, match=r"1 misshapen \(blocks\.1\.attn\.qkv\.weight is 96×48, expected 144×48\)"
    ):
        backbone.load_network(
            replace(published, arguments=arguments, width=48, depth=2), tmp_path / "model.safetensors"
        )


def test_a_position_embedding_of_518_px_is_brought_to_224(tmp_path: Path) -> None:
    """timm's files of DINOv2: what timm itself makes of them."""
    import timm
    from timm.models.vision_transformer import checkpoint_filter_fn

    published = find_encoder("dinov2-small")
    smaller = {"embed_dim": 48, "depth": 1, "num_heads": 4}
    large = timm.create_model(published.architecture, num_classes=0, **smaller)  # built at its own 518 px
    state = {name: torch.randn(tensor.shape) for name, tensor in large.state_dict().items()}
    assert state["pos_embed"].shape == (1, 1 + 37**2, 48)
    save_file(state, tmp_path / "model.safetensors")
    entry = replace(published, arguments=dict(published.arguments) | smaller, width=48, depth=1)
    ours = backbone.load_network(entry, tmp_path / "model.safetensors").state_dict()
    theirs = checkpoint_filter_fn(
        state, timm.create_model(published.architecture, num_classes=0, img_size=224, **smaller)
    )
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name])
    with pytest.raises(SheafStainError, match="1 misshapen"):  # other encoders are published for 224 px
        backbone.load_network(replace(entry, resamples=False), tmp_path / "model.safetensors")
