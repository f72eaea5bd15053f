"""Threads in virtual time: production loops run unchanged, and stop where a thread would wait.

A task is a greenlet: the code of a thread, called as usual, which continues only when resumed.
Independent of the tasks' work. One task runs at a time, and only `resume` starts a task, so the
order of everything is the caller's choice. A task of a frozen owner is not resumed by the clock.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from greenlet import GreenletExit, greenlet


class Owner(Protocol):
    """The owner of tasks: a process that may be stopped by SIGSTOP."""

    @property
    def frozen(self) -> bool:
        """Whether the threads of the process are stopped."""
        ...


@dataclass(eq=False, repr=False)
class Task:
    """One thread. until: when the clock resumes the thread; the awaited event may come earlier."""

    owner: Owner
    name: str
    body: greenlet
    until: float = math.inf

    @property
    def ended(self) -> bool:
        """Whether the task has ended."""
        return self.body.dead


class TimedOut:
    """The result of a wait after the timeout."""


TIMED_OUT = TimedOut()


@dataclass(repr=False)
class Tasks:
    """All tasks, and the common clock."""

    now: float = 1000.0
    _all: list[Task] = field(default_factory=list)
    _current: Task | None = None

    def spawn(self, owner: Owner, name: str, work: Callable[[], object]) -> Task:
        """A new task, run until the first wait. Errors of the task are raised here."""
        task = Task(owner, name, greenlet(lambda _: work()))
        self._all.append(task)
        self.resume(task, None)
        return task

    def resume(self, task: Task, value: object) -> None:
        """Resume the task with the awaited value, until the next wait or the end."""
        before, self._current = self._current, task
        task.until = math.inf
        try:
            task.body.switch(value)
        finally:
            self._current = before
            if task.body.dead:
                self._all.remove(task)

    def wait(self, until: float) -> object:
        """The value that resumes the current task; TIMED_OUT by the clock at `until`."""
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
        """time.sleep of a thread; no effect for a task that `kill` is ending."""
        if self._current is not None:
            self.wait(self.now + seconds)

    def clock(self) -> float:
        """time.monotonic of a thread."""
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
        """End all tasks of a process, like SIGKILL: no further effect of the tasks is seen."""
        for task in [task for task in self._all if task.owner is owner]:
            self._all.remove(task)
            task.body.throw(GreenletExit)


class Wake(threading.Event):
    """An event that tasks can wait for."""

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
        """Set the event; waiting tasks continue with the next look at the clock."""
        super().set()
        if self._waiter is not None:
            self._waiter.until = self._tasks.now
