"""CPU of the extender for a placed pod: filter, prioritize, bind, and the watch events of the pod.

The real process, driven over HTTP in kube-scheduler's order: one pod after the other is filtered
and prioritized, and the bind runs beside the next pod. Like in kube-scheduler, each pod brings the
names of the nodes in another order, and only two idle connections are kept. With --names each pod
brings the next so many of the nodes, as kube-scheduler does in a large cluster. The figure is
Linux's count of CPU for the process and all children, so a busy machine matters less than for
times; with --against the same is done with another checkout, in turn, and only that ratio is to be
trusted.
Run as `python -m tests.bench.pod_cpu [--against FOLDER]`; a minute.
"""

import argparse
import asyncio
import contextlib
import json
import math
import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.peers import usage
from tests.bench.speed import extender, verb
from tests.bench.speed_api_server import node_name, waiting_pod

_BINDS_AT_ONCE = 4
_KEPT = 2
"""Connections that Go's client keeps while they are idle (MaxIdleConnsPerHost)."""
_GOROUTINES = 16
"""Of kube-scheduler, which look at the nodes (`parallelism`)."""


class _VerbCaller:
    """A connection to an extender; calls follow each other."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, name: str, body: dict[str, Any]) -> Any:
        """The answer to a verb."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        reader, writer = self._streams
        writer.write(verb(name, body))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        return json.loads(await reader.readexactly(length))

    def close(self) -> None:
        """Close the connection, if open."""
        if self._streams is not None:
            self._streams[1].close()


class _Callers:
    """Connections like in Go's client: the last used one is taken first."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[_VerbCaller] = []

    async def ask(self, name: str, body: dict[str, Any]) -> Any:
        """The answer to a verb."""
        caller = self._idle.pop() if self._idle else _VerbCaller(self._port)
        answer = await caller.ask(name, body)
        if len(self._idle) < _KEPT:
            self._idle.append(caller)
        else:
            caller.close()
        return answer

    def close(self) -> None:
        """Close those that are idle."""
        for caller in self._idle:
            caller.close()


def appended(names: list[str], dice: random.Random) -> list[str]:
    """The names as kube-scheduler lists those that fit: its goroutines take chunk after chunk, run
    in any order, and append to one list (findNodesThatPassFilters; client-go's parallelizer).
    """
    size = min(math.isqrt(len(names)), len(names) // _GOROUTINES + 1)
    chunks = [names[at : at + size] for at in range(0, len(names), size)][::-1]
    hands = [chunks.pop() for _ in range(min(_GOROUTINES, len(chunks)))]
    names_: list[str] = []
    while hands:
        at = dice.randrange(len(hands))
        run = dice.randint(1, size)
        names_ += hands[at][:run]
        hands[at] = hands[at][run:] or (chunks.pop() if chunks else [])
        if not hands[at]:
            del hands[at]
    return names_


class _PodScheduler:
    """kube-scheduler with pending pods, as far as an extender sees it."""

    def __init__(self, port: int, nodes: int, names: int, *, best: bool) -> None:
        self._all_names = [node_name(number) for number in range(nodes)]
        self._names = self._all_names[:names]
        self._best = best
        self._dice = random.Random(1)
        self._callers = _Callers(port)
        self._next = 0
        self._todo: list[int] = []

    async def call(self, name: str, number: int) -> None:
        """Call filter or prioritize for a pod as kube-scheduler does, and go no further."""
        await self._callers.ask(name, self._args(number, self._names))

    async def place(self, pods: int) -> None:
        """Place the next pods; one that another was quicker than is tried again, as there."""
        binding: set[asyncio.Task[None]] = set()
        self._todo = list(range(self._next + pods - 1, self._next - 1, -1))
        while self._todo or binding:
            if not self._todo:
                _, binding = await asyncio.wait(binding, return_when=asyncio.FIRST_COMPLETED)
                continue
            number = self._todo.pop()
            self._all_names = self._all_names[len(self._names) :] + self._names
            self._names = self._all_names[: len(self._names)]
            arguments = self._args(number, appended(self._names, self._dice))
            fit = (await self._callers.ask("filter", arguments))["NodeNames"]
            node = fit[0]
            if not self._best:
                scores = await self._callers.ask("prioritize", self._args(number, fit))
                node = max(scores, key=lambda each: each["Score"])["Host"]
            while len(binding) >= _BINDS_AT_ONCE:
                _, binding = await asyncio.wait(binding, return_when=asyncio.FIRST_COMPLETED)
            binding.add(asyncio.create_task(self._bind(number, node)))
        self._next += pods

    def close(self) -> None:
        """Close all connections."""
        self._callers.close()

    async def _bind(self, number: int, node: str) -> None:
        metadata = waiting_pod(number)["metadata"]
        args = {"PodName": metadata["name"], "PodNamespace": "default", "PodUID": metadata["uid"]}
        answer = await self._callers.ask("bind", args | {"Node": node})
        if answer["Error"]:
            self._todo.append(number)

    def _args(self, number: int, names: list[str]) -> dict[str, Any]:
        return {"Pod": waiting_pod(number), "Nodes": None, "NodeNames": names}


class _MeasuredExtender:
    """A running extender, the scheduler, and the measures, in us of CPU."""

    def __init__(self, scheduler: _PodScheduler, pid: int) -> None:
        self._scheduler = scheduler
        self._pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        self.taken: dict[str, list[float]] = {}

    async def round(self, calls: int, pods: int) -> None:
        """Measure so many calls of each verb while nothing changes, and so many pods placed."""
        for name in ("filter", "prioritize"):
            with self._counted(f"{name}, nothing new", calls):
                for number in range(calls):
                    await self._scheduler.call(name, number)
        with self._counted("a pod placed", pods):
            await self._scheduler.place(pods)

    async def warm(self, pods: int) -> None:
        """Place some pods that do not count."""
        await self._scheduler.place(pods)

    def close(self) -> None:
        """Close all connections."""
        self._scheduler.close()

    @contextlib.contextmanager
    def _counted(self, what: str, times: int) -> Iterator[None]:
        before = usage.cpu_seconds(self._pids)
        yield
        used = usage.cpu_seconds(self._pids) - before
        self.taken.setdefault(what, []).append(used / times * 1e6)


async def _measure(contenders: dict[str, _MeasuredExtender], options: argparse.Namespace) -> None:
    for contender in contenders.values():
        await contender.warm(options.pods // 4)
    for _ in range(options.rounds):
        for contender in contenders.values():
            await contender.round(options.calls, options.pods)
    for contender in contenders.values():
        contender.close()


def _table(title: str, contenders: dict[str, _MeasuredExtender]) -> None:
    print(f"\n{title}; us of CPU, median (least) of the rounds")
    first = next(iter(contenders.values()))
    for what in first.taken:
        line = f"{what:24}"
        medians = []
        for name, contender in contenders.items():
            seconds = contender.taken[what]
            medians.append(statistics.median(seconds))
            line += f"  {name} {medians[-1]:6.0f} ({min(seconds):.0f})"
        # Of few calls the count of CPU may be nothing.
        if len(medians) > 1 and medians[-1]:
            line += f"  ratio {medians[0] / medians[-1]:.2f}"
        print(line)


def main() -> None:
    """Print the cost of each verb and each pod, with each answer of filter."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--against", type=Path, help="another checkout, measured in turn")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--names", type=int, default=0, help="of each filter; all by default")
    parser.add_argument("--pods", type=int, default=400, help="placed in each round")
    parser.add_argument("--calls", type=int, default=200, help="of each verb in each round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--answer", choices=("all", "best"), help="of filter; both by default")
    options = parser.parse_args()
    places: dict[str, Path | None] = {"this": None}
    if options.against:
        places["other"] = options.against.resolve()
    pod_count = options.pods * (options.rounds + 1)
    for answer in [options.answer] if options.answer else ["all", "best"]:
        with contextlib.ExitStack() as stack:
            contenders = {}
            for name, code in places.items():
                port, _, child = stack.enter_context(
                    extender(
                        *("--filter-answer", answer, "--log-level", "info"),
                        code=code,
                        nodes=options.nodes,
                        waiting=pod_count,
                    )
                )
                scheduler = _PodScheduler(
                    port,
                    options.nodes,
                    options.names or options.nodes,
                    best=answer == "best",
                )
                contenders[name] = _MeasuredExtender(scheduler, child.pid)
            asyncio.run(_measure(contenders, options))
            _table(f"--filter-answer {answer}, {options.nodes:,} nodes", contenders)


if __name__ == "__main__":
    main()
