"""Stories of GPUs that come and go, and mutants that these must find."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.device_plugin.cards import DetectedGpu
from gpushare.device_plugin.health import Diagnosis, Health
from gpushare.errors import SettingsError
from tests.simulation.chance import Chance, numbers
from tests.simulation.gpu_story import GpuStory
from tests.simulation.oracle import Violation

SEEDS, STEPS = 20, 40


def tell(seed: int) -> GpuStory:
    story = GpuStory()
    for number in numbers(seed, STEPS):
        story.step(Chance(number))
    story.judge_end()
    return story


def test_stories_keep_every_promise() -> None:
    total: Counter[str] = Counter()
    for seed in range(SEEDS):
        try:
            total.update(tell(seed).counts)
        except Violation as error:
            pytest.fail(f"seed {seed}: {error}")
    assert min(total.values()) > SEEDS / 2


def _heals_by_time(original: Any) -> Any:
    def of_xid(self: Diagnosis, seen: DetectedGpu, now: float) -> Any:
        return original(self, seen, now) if now < self._at + self.recover else None

    return of_xid


def _never_comes_back(original: Any) -> Any:
    del original
    return lambda self, seen: None


def _says_nothing(original: Any) -> Any:
    del original
    return lambda self: None


def _stops_at_the_first_failure(original: Any) -> Any:
    def watch(self: Health, seconds: float = 2.0) -> float:
        return 1e9 if self._watch_failures else float(original(self, seconds))

    return watch


def _reads_no_more_after_a_failure(original: Any) -> Any:
    def refresh(self: Health) -> None:
        if not self._failure:
            original(self)

    return refresh


def _loses_a_card(original: Any) -> Any:
    def read(self: GpuStory) -> Any:
        gpus = original(self)
        if any(gpu.problem for gpu in gpus):
            raise SettingsError("one of them cannot be read")
        return gpus

    return read


@pytest.mark.parametrize(
    ("owner", "name", "mutate"),
    [
        (Diagnosis, "_of_xid", _heals_by_time),
        (Diagnosis, "_listen", _never_comes_back),
        (Health, "check_silence", _says_nothing),
        (Health, "watch", _stops_at_the_first_failure),
        (Health, "refresh", _reads_no_more_after_a_failure),
        (GpuStory, "read", _loses_a_card),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_each_mutant_is_found(
    owner: Any, name: str, mutate: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mutate(getattr(owner, name)))
    with pytest.raises(Violation):
        all(tell(seed) for seed in range(SEEDS))
