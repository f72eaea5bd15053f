"""A process that uses more and more is told from one that does not."""

import os
from random import Random

import pytest

from tests.simulation.usage import Sample, growth, sample


def samples(*mb: float) -> list[tuple[float, Sample]]:
    return [(5.0 * turn, Sample(used, 20, 30)) for turn, used in enumerate(mb)]


def test_what_rises_at_first_and_is_flat_later_does_not_grow() -> None:
    assert growth(samples(*range(50), *[50.0] * 50)).mb == 0


@pytest.mark.parametrize("noise", [0.0, 3.0])
def test_a_leak_is_seen_through_noise(noise: float) -> None:
    chance = Random(1)
    rising = [60 + turn / 10 + chance.uniform(-noise, noise) for turn in range(400)]
    trend = growth(samples(*rising))
    assert trend.mb == pytest.approx(20, abs=2)
    assert (trend.descriptors, trend.threads) == (0, 0)


def test_peaks_are_no_growth() -> None:
    assert growth(samples(*[60.0, 60.0, 90.0] * 40)).mb == 0


def test_a_process_can_be_sampled() -> None:
    used = sample(str(os.getpid()))
    assert used.mb > 1
    assert used.descriptors > 2
    assert used.threads >= 1
