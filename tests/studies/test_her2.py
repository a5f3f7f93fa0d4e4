"""The classifier: where it starts, that it learns what can be learned and no more, and that a stop changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sheafstain.device import choose_device
from sheafstain.errors import SheafStainError, UsageError
from sheafstain.hub import hash_of
from sheafstain.studies.her2 import Protocol, build, enough_memory
from sheafstain.studies.her2_cases import CaseSet, list_cases, read_cases
from sheafstain.studies.her2_measures import auroc
from sheafstain.studies.her2_training import Training, _flipped, score

CPU = torch.device("cpu")
SMALL = Protocol(backbone="resnet18", init="random", epochs=3, batch=8, lr=1e-3)

Stop = Callable[[int], None] | None


@pytest.fixture(scope="module")
def colours(toy, tmp_path_factory: pytest.TempPathFactory) -> tuple[CaseSet, CaseSet]:
    data = toy(tmp_path_factory.mktemp("colours"))
    return read_cases(*list_cases(data, None), None)


def train(cases: CaseSet, protocol: Protocol, checkpoint: Path, advance: Stop = None, about: str = "") -> Training:
    network, weights = build(protocol)
    training = Training(
        network, cases, protocol, CPU, checkpoint, {"weights": weights, "images": about or cases.sha256}
    )
    training.run(advance=advance)
    return training


@pytest.fixture(scope="module")
def trained(colours: tuple[CaseSet, CaseSet], tmp_path_factory: pytest.TempPathFactory) -> Training:
    return train(colours[0], SMALL, tmp_path_factory.mktemp("one-go") / "toy.safetensors")


def test_a_colour_is_learned(trained: Training, colours: tuple[CaseSet, CaseSet]):
    test = colours[1]
    p_high = score(trained.network, test, SMALL, CPU)
    assert auroc(test.high, p_high) > 0.95
    assert trained.losses[-1] < 0.2 < trained.losses[0]
    np.testing.assert_allclose(score(trained.network, test, Protocol(batch=3), CPU, workers=3), p_high, atol=1e-6)


def test_where_the_grade_shows_nowhere_nothing_is_learned(toy, tmp_path: Path):
    """Names say grades, pixels do not: a score far from chance would have come from the names or the test images."""
    data = toy(tmp_path / "nothing", signal=False, test=32)
    cases, test = read_cases(*list_cases(data, None), None)
    training = train(cases, SMALL, tmp_path / "nothing.safetensors")
    assert 0.25 < auroc(test.high, score(training.network, test, SMALL, CPU)) < 0.75


def test_a_stop_changes_nothing(trained: Training, colours: tuple[CaseSet, CaseSet], tmp_path: Path):
    """Bit for bit: weights, batch statistics and the state of Adam."""
    done = 0

    def stop(count: int) -> None:
        nonlocal done
        done += count
        if done > 24:  # of 16 images an epoch: in the middle of the second
            raise KeyboardInterrupt

    checkpoint = tmp_path / "toy.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(colours[0], SMALL, checkpoint, stop)
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.name]
    resumed = train(colours[0], SMALL, checkpoint)
    assert resumed.losses == trained.losses
    one, other = load_file(trained.checkpoint), load_file(checkpoint)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert sum(name.startswith("optimiser.") for name in one) == 3 * 62  # 62 parameters; step and two moments of each


def test_a_longer_training_begins_as_the_shorter_one(
    trained: Training, colours: tuple[CaseSet, CaseSet], tmp_path: Path
):
    shorter = Protocol(**{**SMALL.as_json(), "epochs": 2})
    training = train(colours[0], shorter, tmp_path / "toy.safetensors")
    assert training.losses == trained.losses[:2]
    longer = train(colours[0], SMALL, tmp_path / "toy.safetensors")
    assert longer.losses == trained.losses
    with pytest.raises(SheafStainError, match="has trained 3 epochs, more than the 2 asked for"):
        train(colours[0], shorter, tmp_path / "toy.safetensors")


def test_another_seed_is_another_training(trained: Training):
    first, again = build(SMALL)[0], build(Protocol(**{**SMALL.as_json(), "seed": 1}))[0]
    assert not torch.equal(first.conv1.weight, again.conv1.weight)  # type: ignore[arg-type]
    state = torch.random.get_rng_state()
    assert torch.equal(build(SMALL)[0].conv1.weight, first.conv1.weight)  # type: ignore[arg-type]
    assert torch.equal(torch.random.get_rng_state(), state), "the generator of whoever calls is left as it was"


def test_a_checkpoint_of_another_training_is_refused(trained: Training, colours: tuple[CaseSet, CaseSet]):
    other = Protocol(**{**SMALL.as_json(), "batch": 4})
    with pytest.raises(SheafStainError, match=r"of another training \(batch was 8, now 4\); choose another --name"):
        train(colours[0], other, trained.checkpoint)
    with pytest.raises(SheafStainError, match=r"images was [0-9a-f]{12}…, now cats"):
        train(colours[0], SMALL, trained.checkpoint, about="cats")


@pytest.mark.parametrize("what", ["truncated", "foreign", "text"])
def test_a_damaged_checkpoint_is_named(trained: Training, colours: tuple[CaseSet, CaseSet], tmp_path: Path, what: str):
    checkpoint = tmp_path / "toy.safetensors"
    content = trained.checkpoint.read_bytes()
    if what == "foreign":
        save_file({"x": torch.zeros(1)}, checkpoint)
    else:
        checkpoint.write_bytes(content[: len(content) // 2] if what == "truncated" else b"hello")
    with pytest.raises(SheafStainError, match=f"{checkpoint}: not a whole checkpoint of this task; remove it"):
        train(colours[0], SMALL, checkpoint)


def test_a_training_that_diverges_is_stopped(colours: tuple[CaseSet, CaseSet], tmp_path: Path):
    network, weights = build(SMALL)
    torch.nn.init.constant_(network.fc.weight, float("inf"))  # type: ignore[arg-type]
    training = Training(network, colours[0], SMALL, CPU, tmp_path / "toy.safetensors", {"weights": weights})
    with pytest.raises(SheafStainError, match=r"loss of epoch 1 is .*lower --lr"):
        training.run()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_checkpoint(colours: tuple[CaseSet, CaseSet], tiny_disk: Path):
    with pytest.raises(OSError, match="No space left") as caught:
        train(colours[0], SMALL, tiny_disk / "toy.safetensors")
    assert caught.value.filename == str(tiny_disk / "toy.safetensors")
    assert list(tiny_disk.iterdir()) == []


def test_flips_are_flips():
    pixels = torch.arange(4 * 3 * 2 * 2, dtype=torch.uint8).view(4, 3, 2, 2)
    turned = _flipped(pixels, np.array([[0, 0], [1, 0], [0, 1], [1, 1]], bool))
    for i, axes in enumerate(((), (1,), (2,), (1, 2))):
        np.testing.assert_array_equal(turned[i].numpy(), np.flip(pixels[i].numpy(), axes))


def test_the_network_is_the_papers():
    """ResNet-50 has 25,557,032 parameters, 2,049,000 of them for a thousand classes; here one logit of 2048 + 1."""
    network, weights = build(Protocol(init="random"))
    assert sum(p.numel() for p in network.parameters()) == 25_557_032 - 2_049_000 + 2049
    assert weights == "random"
    assert Protocol() == Protocol("resnet50", "imagenet", 100, 16, 1e-4)


def test_a_file_to_start_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Only the backbone is taken, with or without the classes of ImageNet and the counts of batches."""
    from torchvision.models import resnet18

    published = resnet18().state_dict()
    save_file(published, tmp_path / "any.safetensors")
    bare = {name: tensor for name, tensor in published.items() if "fc" not in name and "num_batches" not in name}
    save_file(bare, tmp_path / "bare.safetensors")
    for file in ("any", "bare"):
        network, weights = build(Protocol("resnet18", str(tmp_path / f"{file}.safetensors")))
        state = network.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in bare.items())
        assert state["fc.weight"].shape == (1, 512)
        assert weights == hash_of(bare)

    monkeypatch.setenv("SHEAFSTAIN_WEIGHTS", str(tmp_path))
    with pytest.raises(SheafStainError, match=r"resnet18-f37072fd\.pth is not in"):
        build(Protocol("resnet18"))
    (tmp_path / "any.safetensors").rename(tmp_path / "resnet18.tv_in1k.safetensors")  # timm's name
    assert build(Protocol("resnet18"))[1] == weights
    with pytest.raises(SheafStainError, match=r"bare\.safetensors: not the weights of this model"):
        build(Protocol("resnet50", str(tmp_path / "bare.safetensors")))


def test_missing_weights_say_how_to_get_them(tmp_path: Path):
    with pytest.raises(SheafStainError) as caught:
        build(Protocol())
    for part in ("resnet50-11ad3fa6.pth", "https://download.pytorch.org", "--download", "--init FILE", "--init random"):
        assert part in str(caught.value)
    with pytest.raises(SheafStainError, match="Hub cannot be reached"):
        build(Protocol(), fetch=True)
    with pytest.raises(SheafStainError, match="no such file"):
        build(Protocol(init=str(tmp_path / "mine.safetensors")))


def test_a_pickle_is_known_by_its_hash_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHEAFSTAIN_WEIGHTS", str(tmp_path))
    from torchvision.models import resnet18

    torch.save(resnet18().state_dict(), tmp_path / "resnet18-f37072fd.pth")
    with pytest.raises(SheafStainError, match="SHA-256"):
        build(Protocol("resnet18"))
    with pytest.raises(SheafStainError, match="never loaded"):
        build(Protocol("resnet18", str(tmp_path / "resnet18-f37072fd.pth")))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_out_of_memory_says_what_to_lower(error: Exception):
    with (
        pytest.raises(SheafStainError, match="batches of 16 images of 1024×1024 px; lower --batch, or --size"),
        enough_memory(CPU, 16, "1024×1024"),
    ):
        raise error


def test_other_errors_are_not_taken_for_it():
    with pytest.raises(RuntimeError, match="shape"), enough_memory(CPU, 16, ""):
        raise RuntimeError("shape mismatch")


def test_out_of_memory_while_training(
    colours: tuple[CaseSet, CaseSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    network, _ = build(SMALL)
    training = Training(network, colours[0], SMALL, CPU, tmp_path / "toy.safetensors", {})

    def full(_: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(network, "forward", full)
    with pytest.raises(SheafStainError, match="8 images of 64×64 px"):
        training.run()
    with pytest.raises(SheafStainError, match="8 images of 64×64 px"):
        score(network, colours[1], SMALL, CPU)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"epochs": 0}, "--epochs"), ({"batch": 1}, "--batch"), ({"lr": 0.0}, "--lr"), ({"seed": -1}, "--seed")],
)
def test_settings_that_make_no_sense(settings: dict[str, float], said: str):
    with pytest.raises(UsageError, match=said):
        Protocol(**settings)  # type: ignore[arg-type]


def test_a_device_that_is_not_here():
    assert choose_device("cpu") == CPU
    with pytest.raises(UsageError, match="no device 'quantum'"):
        choose_device("quantum")
