"""The cost of making and trying policies for concurrent requests, and of a new kind of request.

One extender of 5,000 nodes of 8 devices, with two small pods on each, is asked by one client, one
call at a time. It makes its policies anew for a while (those of `auto` are tried, too), then not
for a while, and so on, and says when: the machine's own moods come over all alike. Run as
`python -m tests.bench.learning [POLICY [SECONDS]]`, by default of auto and for two minutes.
"""

import argparse
import contextlib
import json
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.clients import Blocking, summary
from tests.bench.speed import _KUBECONFIG, free_port, pod, process, verb, wait_for, wait_ready
from tests.bench.speed_api_server import node_name

_NODES = 5000
_KINDS = 16
"""Kinds that are known before: as many as a ranking learns before its use."""
_NEW_EVERY = 20
"""Turns from one new kind to the next."""
_REST = 1.5
"""Seconds from one making to the next; one takes twice as long."""
_SECONDS = 120.0
"""At most 140: the API server of this bench never says a word, and is given up then."""

_SERVE = """
import sys, time
from gpushare.core.workload import Arrivals, PodClass
from gpushare.extender.learning import policy_refresher

# A workload of some 70 classes, as the openb trace has; the weights hardly matter here.
shares = [PodClass(4000 + 500 * (u % 7), u, 1, (), 2**34) for u in range(1, 16) for _ in range(40)]
whole = [PodClass(8000 * n + c, 16, n, (), n * 2**35) for n in (1, 2, 4, 8)
         for c in range(0, 8000, 1000) for _ in range(40 // n)]
plain = [PodClass(cpu=c, memory=2**32) for c in range(1000, 32000, 1000) for _ in range(10)]
window = (shares + whole + plain) * 2
told, rest = open(sys.argv[1], "a", buffering=1), float(sys.argv[2])

class Restless(policy_refresher.PolicyRefresher):
    def __init__(self, *args):
        super().__init__(*args)
        for state in self._states.values():
            state.estimator.arrivals = Arrivals(window)
            state.trials._again_at = time.monotonic() + 30.0

    def _renew(self, state):
        begin = time.monotonic()
        super()._renew(state)
        end = state.tried = time.monotonic()
        print("made", begin, end, file=told)

    def _try(self, state):
        begin = time.monotonic()
        print("tried", begin, "inf", file=told)
        super()._try(state)
        end = state.tried = time.monotonic()
        print("tried", begin, end, file=told)

policy_refresher._LOOK_EVERY = 0.05
policy_refresher._ResourceState.is_due = lambda state, now: now > state.tried + rest
policy_refresher.PolicyRefresher = Restless
from gpushare.cli.main import main
sys.exit(main(sys.argv[3:]))
"""

Taken = list[tuple[str, float, float]]
"""Of each call: the kind, the start by the clock, and the milliseconds."""


@contextlib.contextmanager
def api_server(folder: Path) -> Iterator[Path]:
    """A kubeconfig for the cluster."""
    options = {"nodes": _NODES, "devices": 8, "units": 16, "delay_ms": 0}
    options |= {"pods": 10_000, "gpu_pods": 10_000}
    port = free_port()
    path = folder / "kubeconfig"
    path.write_text(_KUBECONFIG.format(port=port))
    with process("-m", "tests.bench.speed_api_server", str(port), json.dumps(options)):
        wait_for(port)
        yield path


@contextlib.contextmanager
def extender(policy: str, kubeconfig: Path, event_file: Path) -> Iterator[tuple[int, int]]:
    """The ports for the verbs and for probes. event_file: the process writes the times of new
    policies there.
    """
    port, health = free_port(), free_port()
    listen = ("--listen", f"127.0.0.1:{port}", "--health-listen", f"127.0.0.1:{health}")
    serve = ("serve", "--leadership", "off", "--policy", policy, "--log-level", "warning")
    apart = ("-c", _SERVE, str(event_file), str(_REST))
    with process(*apart, *serve, *listen, "--kubeconfig", str(kubeconfig)):
        wait_ready(health)
        yield port, health


def ask_all(port: int, seconds: float) -> Taken:
    """Filter and prioritize of known kinds in turn, and now and then prioritize of a new one."""
    names = [node_name(number) for number in range(_NODES)]
    client, samples = Blocking(port, 30), Taken()

    def ask(name: str, body: dict[str, Any], title: str = "") -> None:
        message, begin = verb(name, body), time.monotonic()
        took = client.ask(message)
        if took is None:
            raise SystemExit("no answer")
        samples.append((title, begin, took))

    def ask_known() -> None:
        """So that none has been pushed out by a new one, and all are among the last asked for."""
        for body in known_pods:
            ask("prioritize", body)

    known_pods = [of_kind(number, names) for number in range(_KINDS)]
    ask_known()
    turn, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        turn += 1
        for name in ("filter", "prioritize"):
            ask(name, known_pods[turn % _KINDS], name)
        if turn % _NEW_EVERY == 0:
            ask("prioritize", of_kind(_KINDS + turn, names), "prioritize, new kind")
            ask_known()
    return [call for call in samples if call[0]]


def of_kind(number: int, names: list[str]) -> dict[str, Any]:
    """The request for a pod with so much CPU."""
    new_pod = pod("pod", 1 + number % 4)
    new_pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = f"{1000 + number}m"
    return {"Pod": new_pod, "NodeNames": names}


def bench(policy: str, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, event_file = Path(name), Path(name) / "told"
        with (
            api_server(folder) as kubeconfig,
            extender(policy, kubeconfig, event_file) as (port, health),
        ):
            taken = ask_all(port, seconds)
            counters = made_anew(health)
        lines = [line.split() for line in event_file.read_text().splitlines()]
        # Of one that has not ended the end is infinite; of one that has, the last line counts.
        ends = {(event, float(since)): float(until) for event, since, until in lines}
        spans = [(event, since, until) for (event, since), until in ends.items()]
    samples: dict[tuple[str, str], list[float]] = {}
    for title, begin, took in taken:
        # One that goes on when the last call is over has not said so.
        now = [
            event for event, since, until in spans if begin < until and begin + took / 1000 > since
        ]
        if begin < spans[-1][2]:
            when = f"while policies are {now[0]}" if now else "at rest"
            samples.setdefault((title, when), []).append(took)
    print(f"\n{policy}, {_NODES} nodes of 8 devices; ms over HTTP, one call at a time")
    print(f"{'':48}{'n':>6}{'p50':>8}{'p99':>8}{'max':>8}")
    for (title, when), some in sorted(samples.items()):
        row = summary(some, 0, 1)
        values = "".join(f"{row[key]:8.2f}" for key in ("p50", "p99", "max"))
        print(f"{title:22}{when:26}{len(some):6}{values}")
    print(counters)


def made_anew(health: int) -> str:
    """How often policies were made, and how long the last time took."""
    with urllib.request.urlopen(f"http://127.0.0.1:{health}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    metric_names = (
        "gpushare_refits_total",
        "gpushare_refit_duration_seconds ",
        "gpushare_trials_total",
    )
    return " ".join(line for line in text.splitlines() if line.startswith(metric_names))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policy", nargs="?", default="auto")
    parser.add_argument("seconds", nargs="?", type=float, default=_SECONDS)
    given = parser.parse_args()
    bench(given.policy, given.seconds)
