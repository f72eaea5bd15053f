"""The mixture of one namespace: changes, alternations, and running pods as evidence."""

from collections import Counter

import numpy as np
import pytest

from gpushare.core.mixture import RECENT, Mixture
from gpushare.core.workload import PodClass

ONE, TWO, EIGHT = (PodClass(units=units, devices=1) for units in (1, 2, 8))
WHOLE = PodClass(units=16, devices=2)
DAY, NIGHT = {ONE: 0.6, TWO: 0.3, EIGHT: 0.1}, {EIGHT: 0.5, WHOLE: 0.5}
MOST = 4000


def come(mixture: Mixture, shares: dict[PodClass, float], pods: int, seed: int = 0) -> int:
    """How often another phase began."""
    classes = list(shares)
    drawn = np.random.default_rng(seed).choice(len(classes), pods, p=list(shares.values()))
    return sum(mixture.observe(classes[at], MOST) for at in drawn.tolist())


def shares(mixture: Mixture) -> dict[PodClass, float]:
    counts = mixture.counts()
    return {cls: count / sum(counts.values()) for cls, count in counts.items()}


def test_pods_of_one_mixture_begin_no_other_phase() -> None:
    for seed in range(20):
        mixture = Mixture()
        assert come(mixture, DAY, 5000, seed) == 0
        assert mixture.pods == MOST


def test_only_the_last_pods_count() -> None:
    mixture = Mixture()
    for cls in [WHOLE] * 5 + [ONE] * 10:
        mixture.observe(cls, 10)
    assert mixture.counts() == {ONE: 10}


@pytest.mark.parametrize("seed", range(5))
def test_other_pods_are_known_soon_and_the_old_ones_fade(seed: int) -> None:
    mixture = Mixture()
    come(mixture, DAY, 4000, seed)
    assert come(mixture, NIGHT, 200, seed) >= 1
    class_shares = shares(mixture)
    assert class_shares[ONE] < 0.2
    assert class_shares[WHOLE] > 0.3
    come(mixture, NIGHT, 2000, seed)
    assert shares(mixture)[ONE] < 0.02


def test_what_alternates_is_kept_from_the_second_time_on() -> None:
    mixture = Mixture()
    for seed in range(2):
        come(mixture, DAY, 500, seed)
        come(mixture, NIGHT, 500, seed)
    for at in range(4):
        come(mixture, (DAY, NIGHT)[at % 2], 300, at)
        class_shares = shares(mixture)
        assert class_shares[ONE] > 0.15
        assert class_shares[WHOLE] > 0.1


def test_a_burst_of_equal_pods_is_forgotten_when_it_is_over() -> None:
    mixture = Mixture()
    come(mixture, DAY, 1000)
    come(mixture, {WHOLE: 1.0}, 100)
    come(mixture, DAY, 300, 1)
    class_shares = shares(mixture)
    assert class_shares[ONE] > 0.4
    assert class_shares.get(WHOLE, 0) < 0.2


def test_a_phase_is_told_apart_by_sizes_whatever_the_unit() -> None:
    begun = []
    for scale in (1, 1024):
        mixture = Mixture()
        for shares_ in (DAY, NIGHT):
            scaled = {
                PodClass(units=cls.units * scale, devices=cls.devices): share
                for cls, share in shares_.items()
            }
            begun.append(come(mixture, scaled, 500))
    assert begun[:2] == begun[2:]


def test_too_few_pods_to_tell_begin_no_phase() -> None:
    mixture = Mixture()
    come(mixture, DAY, RECENT - 1)
    assert come(mixture, NIGHT, RECENT - 1) == 0


def running(
    seed: int, lives: dict[PodClass, float], often: dict[PodClass, float]
) -> list[tuple[PodClass, float]]:
    """The running pods at one moment as (class, age), with the rate of each class."""
    rng, pods = np.random.default_rng(seed), []
    for cls, share in often.items():
        ages = rng.uniform(0, 200, int(4000 * share))
        stay = rng.exponential(lives[cls], len(ages))
        pods += [(cls, age) for age in ages[stay > ages].tolist()]
    return pods


def test_of_pods_that_run_at_the_start_those_that_stay_long_are_not_overstated() -> None:
    lives, often = {ONE: 2.0, EIGHT: 20.0}, {ONE: 0.8, EIGHT: 0.2}
    running_pods = running(1, lives, often)
    counts = Counter(cls for cls, _ in running_pods)
    assert counts[EIGHT] > 2 * counts[ONE]
    mixture = Mixture()
    mixture.adopt(running_pods, MOST)
    assert shares(mixture)[ONE] == pytest.approx(0.8, abs=0.1)
    assert mixture.pods == pytest.approx(len(running_pods), abs=2)
    assert mixture.turnover > 0.8


def test_of_a_cluster_that_fills_what_runs_is_what_came() -> None:
    running_pods = [((ONE, EIGHT)[at % 4 == 0], float(at)) for at in range(400)]
    mixture = Mixture()
    mixture.adopt(running_pods, MOST)
    assert shares(mixture)[ONE] == pytest.approx(0.75, abs=0.02)
    assert mixture.turnover < 0.1


def test_what_runs_is_remembered_evenly_mixed_and_no_class_is_lost() -> None:
    mixture = Mixture()
    mixture.adopt([(ONE, 1.0)] * 300 + [(WHOLE, 9000.0)], 100)
    mixture.adopt([], 100)
    counts = mixture.counts()
    assert sum(counts.values()) == 100
    assert counts[WHOLE] == 1


def test_turnover_is_how_many_pods_left_for_each_that_was_placed() -> None:
    mixture = Mixture()
    mixture.went(ONE, None, 0.0)
    for at in range(3000):
        mixture.came(ONE, at)
        if at % 2:
            mixture.went(ONE, at - 1.0, at)
    assert mixture.turnover == pytest.approx(0.5, abs=0.01)
    for at in range(3000):
        mixture.went(ONE, None, 3000.0 + at)
    assert mixture.turnover == 1


def test_lives_are_those_of_pods_that_left_and_of_those_that_still_run() -> None:
    mixture = Mixture()
    for at in range(10):
        mixture.came(ONE, 10.0 * at)
    mixture.went(ONE, 0.0, 100.0)
    mixture.went(ONE, None, 100.0)
    stayed, ended = mixture.lives(200.0)[ONE]
    assert ended == 2
    assert stayed == pytest.approx(100 + 50 + sum(200 - 10 * at for at in range(1, 10)) - 150)
    for at in range(8):
        mixture.went(ONE, 10.0 * at, 200.0)
    assert mixture.lives(500.0)[ONE] == mixture.lives(900.0)[ONE]


def test_what_is_kept_of_a_namespace_is_bounded() -> None:
    mixture = Mixture()
    for at in range(20_000):
        cls = PodClass(units=1 + at, devices=1 + at // 500 % 8)
        mixture.observe(cls, 200)
        mixture.came(cls, float(at))
    assert len(mixture.counts()) <= 4 * 200
    assert len(mixture.lives(0.0)) <= 64
