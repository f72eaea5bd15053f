"""Too high costs are found: CPU of an input, slow-downs with size."""

import os
import re
from collections.abc import Callable, Sequence

import pytest

from tests.badinput.attempt import Attempt
from tests.badinput.costs import CPU, Cpu, Memory, Meter, cpu_of, resident
from tests.badinput.decoders import Decoder
from tests.badinput.slow import LONG, SIZES, growth, slow_downs, stretches


class Counted:
    """A process with the CPU cost that its inputs name."""

    def __init__(self, noise: float = 0.0) -> None:
        self.used = 0.0
        self.sent = 0
        self.noise = noise

    def send(self, group: Sequence[Attempt]) -> None:
        self.used += sum(float(item.payload) for item in group) + self.noise
        self.noise = 0.0
        self.sent += len(group)


def inputs(*costs: float) -> list[Attempt]:
    return [Attempt(str(number), str(cost).encode()) for number, cost in enumerate(costs)]


def judged(process: Counted, *groups: list[Attempt]) -> list[str]:
    meter = Meter([Cpu(lambda: process.used)], process.send)
    return [item.kind for group in groups for item, _ in meter.judge(group)]


def test_the_inputs_that_cost_too_much_are_found_among_many() -> None:
    group = inputs(*[0.001] * 5, 2 * CPU, *[0.001] * 8, 9.0)
    assert judged(Counted(), group) == ["5", "14"]


def test_inputs_that_cost_little_are_sent_once() -> None:
    process = Counted()
    assert judged(process, inputs(*[0.002] * 16), inputs(*[0.002] * 16)) == []
    assert process.sent == 32


def test_a_moment_of_something_else_is_no_finding() -> None:
    assert judged(Counted(noise=3.0), inputs(*[0.001] * 16)) == []


def test_many_inputs_of_some_cost_are_no_finding() -> None:
    assert judged(Counted(), inputs(*[0.04] * 16)) == []


def test_what_this_process_uses_can_be_read() -> None:
    pid = str(os.getpid())
    before = cpu_of(pid)
    while cpu_of(pid) < before + 0.03:
        pass
    assert resident(pid) > 1


def test_the_input_for_which_much_is_held_is_found_though_nothing_stays() -> None:
    group = [Attempt(str(number), b"x" * size) for number, size in enumerate((10, 300_000, 20))]

    def send(body: Sequence[Attempt]) -> None:
        for item in body:
            survivors = b"y" * (len(item.payload) * 200)
            assert survivors

    result = Meter([Memory(str(os.getpid()))], send).judge(group)
    assert [(item.kind, cost.partition(" ")[2]) for item, cost in result] == [("1", "MB of memory")]


def zeros(size: int) -> bytes:
    return b"0" * size + b"x"


def quadratic(data: bytes) -> object:
    return re.search(rb"0*([0-9]+)[ \t]*\r", data)


def linear(data: bytes) -> object:
    return [byte for byte in data]  # noqa: C416 -- to take a while


@pytest.mark.parametrize(("run", "result"), [(quadratic, True), (linear, False)])
def test_a_quadratic_step_is_found(run: Callable[[bytes], object], *, result: bool) -> None:
    assert bool(growth(run, zeros, SIZES)) == result


def test_a_decoder_that_is_slow_in_one_place_is_found() -> None:
    decoder = Decoder("slow", quadratic, ({"a": [{"b": "c"}]},))
    tries, findings = slow_downs([decoder], heads=())
    assert tries == len(SIZES) * len(list(stretches(decoder)))
    assert any("a.0.b as a run of '0'" in finding for finding in findings)
    assert LONG > 0
