"""So many inputs sent to the process by several clients at once, and what was found."""

import itertools
import math
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.badinput.attempt import Attempt, shown
from tests.badinput.inputs import attempt
from tests.badinput.sender import Answer, Sender
from tests.badinput.world import BadWorld

CLIENTS = 6
_BATCH = 2000
_MOST_FINDINGS = 20
_ALIKE = 3
"""Findings shown of those that look alike."""


@dataclass
class Result:
    """What was sent, what came back, and what must not have happened."""

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

    seconds: when to begin no other batch.
    """
    result, begin = Result(), time.monotonic()
    for start in range(first, first + count, _BATCH):
        if time.monotonic() > begin + seconds:
            break
        numbers = range(start, min(start + _BATCH, first + count))
        _batch(world, numbers, seed, result)
        where = f"inputs {numbers.start} to {numbers.stop - 1} of seed {seed}"
        result.findings += [f"{where}: {change}" for change in world.changes()]
        if len(result.findings) >= _MOST_FINDINGS or world.extender.ended():
            break
    result.seconds = time.monotonic() - begin
    return result


def _batch(world: BadWorld, numbers: range, seed: int, result: Result) -> None:
    turn, lock = itertools.count(numbers.start), threading.Lock()

    def client() -> None:
        sender = Sender(world.extender.port, world.probe_port)
        try:
            while (number := next(turn)) < numbers.stop:
                made = attempt(number, seed, world.targets)
                answers, wrong = _sent(sender, made)
                with lock:
                    _note(result, made, answers, wrong, f"input {number} of seed {seed}")
        finally:
            sender.close()

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


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
