"""Inputs sent to the process by several clients at once, and the findings."""

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
"""Upper bound on megabytes that the process keeps beyond those of the first batches."""
_BATCH = 2000
_SETTLING = 2
_GROUP = 16
"""Inputs per measured group: few enough to stay below the limit of one input."""
_MOST_FINDINGS = 20
_ALIKE = 3
"""Findings shown of those that look alike."""


@dataclass
class Result:
    """The inputs, the answers, and the findings."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    wrong: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def sent(self) -> int:
        return sum(self.kinds.values())


def flood(world: BadWorld, first: int, count: int, seed: int, seconds: float = math.inf) -> Result:
    """Send inputs from `first` on; after each batch the books must be unchanged.

    seconds: the time limit for starting a batch. Inputs that cost too much CPU or memory are
    findings, and so is memory that stays.
    """
    result, begin = Result(), time.monotonic()
    (worker,) = world.extender.children()
    with closing(_Crowd(world)) as crowd:
        meter = Meter((Cpu(lambda: cpu_of(worker)), Memory(worker)), crowd.send)
        values = 0.0
        for start in range(first, first + count, _BATCH):
            if time.monotonic() > begin + seconds:
                break
            numbers = range(start, min(start + _BATCH, first + count))
            _batch(crowd, meter, numbers, seed, result)
            path = f"inputs {numbers.start} to {numbers.stop - 1} of seed {seed}"
            result.findings += [f"{path}: {change}" for change in world.changes()]
            if len(result.findings) >= _MOST_FINDINGS or world.extender.ended():
                break
            now = resident(worker)
            # The first batches show the memory for six of the largest inputs at once.
            values = max(values, now) if start < first + _SETTLING * _BATCH else values
            if now > values + MOST_GROWN:
                result.findings.append(f"{path}: {now:.0f} MB are held, {values:.0f} before")
                values = now
    result.seconds = time.monotonic() - begin
    return result


def _batch(crowd: "_Crowd", meter: Meter, numbers: range, seed: int, result: Result) -> None:
    for start in range(numbers.start, numbers.stop, _GROUP):
        group = range(start, min(start + _GROUP, numbers.stop))
        created = [attempt(number, seed, crowd.targets) for number in group]
        dear = meter.judge(created)
        # The results of the first sends: expensive inputs were sent more than once.
        for number, item, (answers, wrong) in zip(
            group, created, crowd.first(created), strict=True
        ):
            _note(result, item, answers, wrong, f"input {number} of seed {seed}")
        for item, cost in dear:
            result.wrong[item.kind, "cost"] += 1
            if result.wrong[item.kind, "cost"] <= _ALIKE:
                text = f"{item.kind}, {len(item.payload):,} bytes: {cost}"
                result.findings.append(f"seed {seed}: {text}\n    {shown(item.payload)}")


class _Crowd:
    """Several clients that send a group of inputs in parallel and wait for all answers."""

    def __init__(self, world: BadWorld) -> None:
        self.targets = world.targets
        ports = (world.extender.port, world.probe_port)
        self._senders = [Sender(*ports) for _ in range(CLIENTS)]
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._came: dict[int, tuple[list[Answer], str]] = {}

    def send(self, group: Sequence[Attempt]) -> None:
        """Send the group, and keep the first result of each input."""
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
        """The first result of each input."""
        result = [self._came[id(created)] for created in group]
        self._came.clear()
        return result

    def close(self) -> None:
        self._pool.shutdown()
        for sender in self._senders:
            sender.close()


def _sent(sender: Sender, created: Attempt) -> tuple[list[Answer], str]:
    try:
        return sender.send(created)
    except OSError as error:
        return [], f"no connection: {error}"


def _note(result: Result, created: Attempt, answers: list[Answer], wrong: str, path: str) -> None:
    result.kinds[created.kind] += 1
    result.statuses.update(str(answer.status) for answer in answers)
    result.statuses["no answer"] += not answers
    if wrong:
        result.wrong[created.kind, wrong[:12]] += 1
        if result.wrong[created.kind, wrong[:12]] <= _ALIKE:
            result.findings.append(
                f"{path} ({created.kind}): {wrong}\n    {shown(created.payload)}"
            )
