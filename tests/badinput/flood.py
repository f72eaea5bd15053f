"""Many inputs sent to the process by several clients at once, and the findings."""

import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field

from tests.badinput.attempt import Attempt, shown
from tests.badinput.costs import Cpu, Memory, Meter, cpu_of, resident
from tests.badinput.inputs import attempt
from tests.badinput.sender import Answer, Sender
from tests.badinput.world import BadWorld

CLIENTS = 6
MOST_GROWN = 96.0
"""Megabytes that the process may come to hold beyond its first batches."""
_BATCH = 2000
_SETTLING = 2
_GROUP = 16
"""Inputs whose cost is read together: few enough to cost less than one may."""
_MOST_FINDINGS = 20
_ALIKE = 3
"""Findings shown of those that look alike."""


@dataclass
class Result:
    """The sent inputs, the answers, and the findings."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    wrong: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def sent(self) -> int:
        return sum(self.kinds.values())


def flood(world: BadWorld, first: int, count: int, seed: int, seconds: float = math.inf) -> Result:
    """Send inputs `first` and following; after each batch the books must be as they were.

    seconds: when to begin no other batch. Inputs that cost too much CPU or memory are findings, and
    so is memory that stays.
    """
    result, begin = Result(), time.monotonic()
    (worker,) = world.extender.children()
    with closing(_Crowd(world)) as crowd:
        meter = Meter((Cpu(lambda: cpu_of(worker)), Memory(worker)), crowd.send)
        holding = 0.0
        for start in range(first, first + count, _BATCH):
            if time.monotonic() > begin + seconds:
                break
            numbers = range(start, min(start + _BATCH, first + count))
            _batch(crowd, meter, numbers, seed, result)
            place = f"inputs {numbers.start} to {numbers.stop - 1} of seed {seed}"
            result.findings += [f"{place}: {change}" for change in world.changes()]
            if len(result.findings) >= _MOST_FINDINGS or world.extender.ended():
                break
            now = resident(worker)
            # The first batches show the memory for answering six of the largest at once.
            holding = max(holding, now) if start < first + _SETTLING * _BATCH else holding
            if now > holding + MOST_GROWN:
                result.findings.append(f"{place}: {now:.0f} MB are held, {holding:.0f} before")
                holding = now
    result.seconds = time.monotonic() - begin
    return result


def _batch(crowd: "_Crowd", meter: Meter, numbers: range, seed: int, result: Result) -> None:
    for start in range(numbers.start, numbers.stop, _GROUP):
        group = range(start, min(start + _GROUP, numbers.stop))
        created = [attempt(number, seed, crowd.targets) for number in group]
        dear = meter.judge(created)
        # The first results: inputs that cost too much were sent more than once.
        for number, entry, (answers, wrong) in zip(
            group, created, crowd.first(created), strict=True
        ):
            _note(result, entry, answers, wrong, f"input {number} of seed {seed}")
        for element, cost in dear:
            result.wrong[element.kind, "cost"] += 1
            if result.wrong[element.kind, "cost"] <= _ALIKE:
                text = f"{element.kind}, {len(element.payload):,} bytes: {cost}"
                result.findings.append(f"seed {seed}: {text}\n    {shown(element.payload)}")


class _Crowd:
    """Several clients, who send a group of inputs side by side and wait for all answers."""

    def __init__(self, world: BadWorld) -> None:
        self.targets = world.targets
        ports = (world.extender.port, world.probe_port)
        self._senders = [Sender(*ports) for _ in range(CLIENTS)]
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._came: dict[int, tuple[list[Answer], str]] = {}

    def send(self, group: Sequence[Attempt]) -> None:
        """Send the inputs, and keep the result of each first time."""
        turn = iter(group)
        lock = threading.Lock()

        def client(sender: Sender) -> None:
            while True:
                with lock:
                    created = next(turn, None)
                if created is None:
                    return
                self._came.setdefault(id(created), _sent(sender, created))

        list(self._pool.map(client, self._senders))

    def first(self, group: Sequence[Attempt]) -> list[tuple[list[Answer], str]]:
        """The results of these inputs when they were sent first."""
        result = [self._came[id(item)] for item in group]
        self._came.clear()
        return result

    def close(self) -> None:
        self._pool.shutdown()
        for sender in self._senders:
            sender.close()


def _sent(sender: Sender, made: Attempt) -> tuple[list[Answer], str]:
    try:
        return sender.send(made)
    except OSError as error:
        return [], f"no connection: {error}"


def _note(result: Result, made: Attempt, answers: list[Answer], wrong: str, where: str) -> None:
    result.kinds[made.kind] += 1
    result.statuses.update(str(answer.status) for answer in answers)
    result.statuses["no answer"] += not answers
    if wrong:
        result.wrong[made.kind, wrong[:12]] += 1
        if result.wrong[made.kind, wrong[:12]] <= _ALIKE:
            result.findings.append(f"{where} ({made.kind}): {wrong}\n    {shown(made.payload)}")
