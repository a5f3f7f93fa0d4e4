"""The paper's schedule, against the formula of the code it continues and against hand-counted epochs."""

from __future__ import annotations

import pytest

from sheafstain.training.schedule import Schedule


def released(epoch: int) -> float:
    """UNSB, pix2pix and CycleGAN: epochs from 0, n_epochs = n_epochs_decay = 200, ``epoch_count`` = 1."""
    e = epoch - 1
    return 1.0 - max(0, e + 1 - 200) / float(200 + 1)


def test_the_learning_rate_is_the_released_one():
    schedule = Schedule()
    assert [schedule.factor(epoch) for epoch in range(1, 401)] == [released(epoch) for epoch in range(1, 401)]
    assert schedule.factor(200) == 1
    assert schedule.factor(201) == 1 - 1 / 201
    assert schedule.factor(400) == pytest.approx(1 / 201)


def test_epochs_are_counted_from_one_in_samples():
    schedule, of = Schedule(), 4 * 3896  # BCI
    assert schedule.epoch(0, of) == 1
    assert schedule.epoch(of - 1, of) == 1
    assert schedule.epoch(of, of) == 2
    assert schedule.epoch(350 * of - 1, of) == 350  # the last without stain-align
    assert schedule.epoch(350 * of, of) == 351
    assert schedule.epoch(400 * of - 1, of) == 400
    assert schedule.epoch(400 * of, of) == 400


@pytest.mark.parametrize(("constant", "decay"), [(0, 0), (-1, 5), (5, -1)])
def test_no_schedule(constant: int, decay: int):
    with pytest.raises(ValueError, match="epoch"):
        Schedule(constant, decay)


def test_decay_alone_and_none():
    assert [Schedule(0, 3).factor(epoch) for epoch in (1, 2, 3)] == [0.75, 0.5, 0.25]
    assert Schedule(3, 0).factor(3) == 1
