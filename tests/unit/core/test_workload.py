"""The workload: what is typical, and what is learned from pods created."""

from gpushare.core.model import Request
from gpushare.core.workload import WINDOW, Arrivals, PodClass, class_of, next_fit, workload_of

SMALL, LARGE = PodClass(cpu=500, units=2, devices=1), PodClass(cpu=8000, units=8, devices=2)


def test_typical_are_the_commonest_that_cover_the_share_the_larger_of_equals_first() -> None:
    counts = {SMALL: 40, LARGE: 40, PodClass(cpu=100): 15, PodClass(cpu=200): 5}
    workload = workload_of(counts)
    assert workload.typical(0.8) == ((LARGE, 40), (SMALL, 40))
    assert len(workload.typical()) == 3
    assert workload.pods == 100
    assert workload.gpu == 40 * 2 + 40 * 16


def test_typical_classes_leave_memory_out() -> None:
    counts = {PodClass(units=2, devices=1, memory=memory): 1 for memory in range(5)}
    assert workload_of(counts).typical() == ((PodClass(units=2, devices=1), 5),)


def test_a_pod_without_gpu_has_no_size_and_no_model() -> None:
    assert class_of(Request(cpu=5, memory=7, models=("A",))) == PodClass(cpu=5, memory=7)
    assert class_of(Request(3, 1, models=("B", "A"))).models == ("A", "B")


def test_only_the_last_pods_created_count() -> None:
    arrivals = Arrivals()
    for _ in range(10):
        arrivals.observe(LARGE)
    for _ in range(WINDOW):
        arrivals.observe(SMALL)
    assert arrivals.workload((8, 8)) == workload_of({SMALL: WINDOW}, (8,))
    assert arrivals.seen == WINDOW + 10
    assert len(arrivals.window) == WINDOW


def come(arrivals: Arrivals, pods: int) -> None:
    """So many come, every second of them is placed, and every fourth one leaves."""
    for number in range(pods):
        arrivals.observe(SMALL)
        if number % 2 == 0:
            arrivals.moved(1)
        if number % 4 == 0:
            arrivals.moved(-1)


def test_turnover_is_how_many_pods_left_for_each_that_was_placed() -> None:
    arrivals = Arrivals()
    arrivals.moved(-1)
    assert arrivals.turnover == 0
    come(arrivals, WINDOW)
    assert arrivals.turnover == arrivals.workload().turnover == 0.5
    for _ in range(2 * WINDOW):
        arrivals.moved(-1)
    assert arrivals.turnover == 1


def test_turnover_forgets_with_the_pods_that_are_forgotten() -> None:
    arrivals = Arrivals()
    come(arrivals, WINDOW)
    for _ in range(WINDOW - 1):
        arrivals.observe(SMALL)
        arrivals.moved(1)
    assert arrivals.turnover == 0
    arrivals.moved(-1)
    assert arrivals.turnover == 1 / (WINDOW - 1)


def test_what_was_seen_survives_a_restart() -> None:
    arrivals = Arrivals()
    for cls in (SMALL, LARGE, SMALL):
        arrivals.observe(cls)
    again = Arrivals(arrivals.window, arrivals.seen)
    assert again.workload() == arrivals.workload()
    assert again.seen == 3


def test_fits_come_early_at_first_and_then_every_so_many_pods() -> None:
    fits = [0]
    for _ in range(5):
        fits.append(next_fit(fits[-1]))
    assert fits == [0, 50, 100, 200, 450, 700]
