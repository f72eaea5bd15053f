"""Mixed load on one gunicorn process: the effect of threads, pools, time-outs and the switch
interval.

Starts a stub API server, a stub service per combination, and clients in processes of their own;
prints a table. Everything runs at once: binds, filters of 5,000 names, 500 pod events a second, a
CPU job of 90 ms every second, stalled sockets, probes. Figures are for comparing rows of one run
(the machine may be shared), so each row has the echo of the same bytes by bare Flask beside it.

    python -m tests.bench.mixed_load                      every group once, under 3 minutes
    python -m tests.bench.mixed_load --group switch --rounds 3
"""

import argparse
import dataclasses
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_EVENTS_PER_S = 500
_SETTLE_S = 0.6
_COLUMNS = (
    "columns: binds/s, bind p50 p99, filter p50 p99, echo p50 p99 (ms; median of the rounds and "
    "spread), filter/echo p50, probes answered within 1 s, errors of binds and filters"
)


@dataclasses.dataclass(frozen=True)
class LoadCombination:
    """One combination; the defaults are those of the service."""

    worker: str = "buffered"
    threads: int = 80
    pool: int = 64
    client: str = "urllib3"
    switch_ms: float = 1
    job: str = "none"
    stalled: int = 0
    api_ms: int = 20
    """How long the API server takes for a write."""
    rate: float = 0
    """Binds a second, 64 in flight at most; 0: always 64 in flight, as many as possible."""

    def label(self) -> str:
        rate = f"{self.rate:.0f}/s" if self.rate else "max"
        return (
            f"{self.worker:8} thr={self.threads:<3} pool={self.pool:<3} {self.client:11} "
            f"sw={self.switch_ms:<4} job={self.job:10} stall={self.stalled:<4} "
            f"api={self.api_ms:<3} load={rate:6}"
        )


GROUPS: dict[str, list[LoadCombination]] = {
    "threads": [LoadCombination(threads=threads) for threads in (8, 16, 32, 64, 80)],
    "stalls": [LoadCombination(worker="gthread", stalled=count, rate=200) for count in (0, 48, 200)]
    + [LoadCombination(stalled=count, rate=200) for count in (0, 200, 1000)]
    + [LoadCombination(threads=16, stalled=200, rate=200)],
    "switch": [
        LoadCombination(switch_ms=switch_ms, job=job, rate=100)
        for job in ("none", "thread", "sliced", "subprocess")
        for switch_ms in (5, 1, 0.5)
    ],
    "slow API server": [LoadCombination(threads=threads, api_ms=500) for threads in (16, 64, 80)],
    "pool": [LoadCombination(pool=pool) for pool in (8, 16, 32)]
    + [LoadCombination(client="http.client"), LoadCombination(worker="gthread")],
}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_open(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise TimeoutError(f"nothing listens on port {port}")


def _start(script: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(_HERE / script), *map(str, args)]
    # Under attack gunicorn's own worker logs a traceback per broken request: not for the table.
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=quiet, text=True)


def _stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def measure(case: LoadCombination, seconds: float) -> dict[str, Any]:
    """The figures of each kind of client."""
    ports = {"port": _free_port(), "probe_port": _free_port(), "api_port": _free_port()}
    api = _start("mixed_api_server.py", ports["api_port"], case.api_ms, _EVENTS_PER_S)
    _wait_open(ports["api_port"])
    service = _start("mixed_service.py", json.dumps(dataclasses.asdict(case) | ports))
    load = ports | {"in_flight": 64, "rate": case.rate, "seconds": seconds, "pause_s": 0.005}
    stall = ports | {"stalled": case.stalled}
    stalls = None
    try:
        _wait_open(ports["port"])
        _wait_open(ports["probe_port"])
        if case.stalled:
            stalls = _start("mixed_clients.py", "stall", json.dumps(stall))
        time.sleep(_SETTLE_S)
        clients = [
            _start("mixed_clients.py", kind, json.dumps(load))
            for kind in ("bind", "filter", "probe")
        ]
        result: dict[str, Any] = {}
        for client in clients:
            result |= json.loads(client.communicate()[0])
        return result
    finally:
        if stalls:
            stalls.kill()
            stalls.communicate()
        service.terminate()  # the worker too: a killed master leaves it behind
        try:
            service.wait(4)
        except subprocess.TimeoutExpired:
            subprocess.run(["pkill", "-KILL", "-P", str(service.pid)], check=False)
            _stop(service)
        _stop(api)


def _middle(results: list[dict[str, Any]], kind: str, figure: str) -> str:
    """Median of the rounds, with the spread when there are several."""
    values = [result[kind][figure] for result in results]
    text = f"{statistics.median(values):.1f}"
    return text if len(values) == 1 else f"{text} ({min(values):.1f}-{max(values):.1f})"


def row(case: LoadCombination, results: list[dict[str, Any]]) -> str:
    cells = [_middle(results, "bind", figure) for figure in ("per_s", "p50", "p99")]
    cells += [_middle(results, "filter", figure) for figure in ("p50", "p99")]
    cells += [_middle(results, "echo", figure) for figure in ("p50", "p99")]
    ratio = statistics.median(r["filter"]["p50"] / r["echo"]["p50"] for r in results)
    probes = [(r["probe"]["n"], r["probe"]["n"] + r["probe"]["errors"]) for r in results]
    answered, requests = map(sum, zip(*probes, strict=True))
    errors = sum(r[kind]["errors"] for r in results for kind in ("bind", "filter", "echo"))
    wide = 9 if len(results) == 1 else 22
    figures = " ".join(f"{cell:>{wide}}" for cell in cells)
    return f"{case.label()} {figures} {ratio:>6.2f} {answered:>5}/{requests:<5} {errors:>6}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", choices=sorted(GROUPS), action="append")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2)
    options = parser.parse_args()
    print(_COLUMNS)
    for group in options.group or GROUPS:
        cases = GROUPS[group]
        results: dict[LoadCombination, list[dict[str, Any]]] = {case: [] for case in cases}
        for _ in range(options.rounds):  # in another order each time: the neighbours vary
            for case in random.sample(cases, len(cases)):
                results[case].append(measure(case, options.seconds))
        print(f"\n{group}")
        for case in cases:
            print(row(case, results[case]), flush=True)


if __name__ == "__main__":
    main()
