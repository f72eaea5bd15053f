"""Threads in virtual time: production loops run as they are, and stand still where they would wait.

A task is a greenlet: the code of a thread, called as ever, which goes on only when it is resumed.
Knows nothing of what the tasks do. One of them runs at a time, and only `resume` starts it, so the
order of everything is the caller's choice. A task of a frozen owner is not resumed by the clock.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from greenlet import GreenletExit, greenlet


class Owner(Protocol):
    """Whose task it is: a process that may be stopped by SIGSTOP."""

    @property
    def frozen(self) -> bool:
        """Whether none of its threads runs."""
        ...


@dataclass(eq=False, repr=False)
class Task:
    """One thread. until: when the clock resumes it; what it waits for may come earlier."""

    owner: Owner
    name: str
    body: greenlet
    until: float = math.inf

    @property
    def ended(self) -> bool:
        """Whether it has come to its end."""
        return self.body.dead


class TimedOut:
    """What a wait gives when its time is over."""


TIMED_OUT = TimedOut()


@dataclass(repr=False)
class Tasks:
    """All tasks, and the clock they share."""

    now: float = 1000.0
    _all: list[Task] = field(default_factory=list)
    _current: Task | None = None

    def spawn(self, owner: Owner, name: str, work: Callable[[], object]) -> Task:
        """A new task, run until it waits for the first time. What it raises is raised here."""
        task = Task(owner, name, greenlet(lambda _: work()))
        self._all.append(task)
        self.resume(task, None)
        return task

    def resume(self, task: Task, value: object) -> None:
        """Let the task go on with what it waited for, until it waits again or ends."""
        before, self._current = self._current, task
        task.until = math.inf
        try:
            task.body.switch(value)
        finally:
            self._current = before
            if task.body.dead:
                self._all.remove(task)

    def wait(self, until: float) -> object:
        """What the current task is resumed with; TIMED_OUT by the clock at `until`."""
        assert self._current is not None
        self._current.until = until
        hub = self._current.body.parent
        assert hub is not None
        return hub.switch()

    def current(self) -> Task:
        """The task that runs."""
        assert self._current is not None
        return self._current

    def sleep(self, seconds: float) -> None:
        """What time.sleep is to a thread; nothing to one that `kill` is ending."""
        if self._current is not None:
            self.wait(self.now + seconds)

    def clock(self) -> float:
        """What time.monotonic is to a thread."""
        return self.now

    def next_timer(self) -> float:
        """When the clock will resume somebody; infinity: never."""
        return min((task.until for task in self._all if not task.owner.frozen), default=math.inf)

    def run_due(self) -> bool:
        """Whether a task was due now, and has been resumed."""
        for task in self._all:
            if task.until <= self.now and not task.owner.frozen:
                self.resume(task, TIMED_OUT)
                return True
        return False

    def kill(self, owner: Owner) -> None:
        """End all tasks of a process, as SIGKILL does: nothing they do any more is seen."""
        for task in [task for task in self._all if task.owner is owner]:
            self._all.remove(task)
            task.body.throw(GreenletExit)


class Wake(threading.Event):
    """An event whose waiting is a task's."""

    def __init__(self, tasks: Tasks) -> None:
        super().__init__()
        self._tasks = tasks
        self._waiter: Task | None = None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as threading.Event does."""
        if not self.is_set():
            self._waiter = self._tasks.current()
            self._tasks.wait(self._tasks.now + (math.inf if timeout is None else timeout))
            self._waiter = None
        return self.is_set()

    def set(self) -> None:
        """Set it; who waits goes on with the next look at the clock."""
        super().set()
        if self._waiter is not None:
            self._waiter.until = self._tasks.now
