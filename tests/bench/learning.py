"""What making policies anew costs the requests meanwhile, and what a new kind of request costs.

Two extenders of the same cluster (5,000 nodes of 8 devices, half full), one at a time, in turn: one
makes its policies anew without a pause, the other never does. Compare within one run only. Run as
`python -m tests.bench.learning [POLICY]`; about three minutes.
"""

import contextlib
import json
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.mixed_clients import Blocking, summary
from tests.bench.speed import _KUBECONFIG, free_port, pod, process, verb, wait_for, wait_ready
from tests.bench.speed_api_server import node_name

_NODES = 5000
_RUNS = 3
_SECONDS = 15.0
_KINDS = 33
"""By run, which has to end before 150 s: the API server of this bench never says a word."""

_SERVE = """
import sys
from gpushare.core.workload import Arrivals, PodClass
from gpushare.extender import learning

# A workload of some 70 classes, as the openb trace has; the weights hardly matter here.
shares = [PodClass(4000 + 500 * (u % 7), u, 1, (), 2**34) for u in range(1, 16) for _ in range(40)]
whole = [PodClass(8000 * n + c, 16, n, (), n * 2**35) for n in (1, 2, 4, 8)
         for c in range(0, 8000, 1000) for _ in range(40 // n)]
plain = [PodClass(cpu=c, memory=2**32) for c in range(1000, 32000, 1000) for _ in range(10)]
window = (shares + whole + plain) * 2

class Restless(learning.Learning):
    def __init__(self, *args):
        super().__init__(*args)
        for course in self._courses.values():
            course.learned.arrivals = Arrivals(window)

learning.SPACING, learning._EARLY = 1e9, 0
if sys.argv[1] == "refitting":
    learning._LOOK_EVERY = 0.02
    learning._Course.is_due = lambda course, now: True
learning.Learning = Restless
from gpushare.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@contextlib.contextmanager
def api_server() -> Iterator[Path]:
    """A kubeconfig for the cluster."""
    options = {"nodes": _NODES, "devices": 8, "units": 16, "delay_ms": 0}
    options |= {"pods": 10_000, "gpu_pods": 10_000}
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kubeconfig"
        path.write_text(_KUBECONFIG.format(port=port))
        api = ("-m", "tests.bench.speed_api_server", str(port), json.dumps(options))
        with process(*api):
            wait_for(port)
            yield path


@contextlib.contextmanager
def extender(kind: str, policy: str, kubeconfig: Path) -> Iterator[tuple[int, int]]:
    """Its ports: for the verbs, and for probes."""
    port, health = free_port(), free_port()
    listen = ("--listen", f"127.0.0.1:{port}", "--health-listen", f"127.0.0.1:{health}")
    serve = ("serve", "--leadership", "off", "--policy", policy, "--log-level", "warning")
    with process("-c", _SERVE, kind, *serve, *listen, "--kubeconfig", str(kubeconfig)):
        wait_ready(health)
        yield port, health


def asked(client: Blocking, message: bytes) -> float:
    """Milliseconds."""
    took = client.ask(message)
    if took is None:
        raise SystemExit("no answer")
    return took


def ask_all(port: int) -> dict[str, list[float]]:
    """Milliseconds by call."""
    names = [node_name(number) for number in range(_NODES)]
    client = Blocking(port, 30)
    known = [{"Pod": pod("known", 1 + index), "NodeNames": names} for index in range(4)]
    samples: dict[str, list[float]] = defaultdict(list)

    def ask(title: str, name: str, body: dict[str, Any]) -> None:
        samples[title].append(asked(client, verb(name, body)))

    for body in known:
        ask("first of its kind", "prioritize", body)
    time.sleep(5)  # the quiet one makes its policies once, as soon as it can
    begin, turn = time.monotonic(), 0
    while time.monotonic() < begin + _SECONDS:
        turn += 1
        for name in ("filter", "prioritize"):
            ask(name, name, known[turn % len(known)])
    for turn in range(_KINDS):
        fresh = pod("new", 2)
        fresh["spec"]["containers"][0]["resources"]["requests"]["cpu"] = f"{1000 + turn}m"
        ask("prioritize, new kind", "prioritize", {"Pod": fresh, "NodeNames": names})
    return samples


def bench(policy: str) -> None:
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    figures: dict[str, list[str]] = defaultdict(list)
    with api_server() as kubeconfig:
        for _ in range(_RUNS):
            for kind in ("quiet", "refitting"):
                with extender(kind, policy, kubeconfig) as (port, health):
                    for name, taken in ask_all(port).items():
                        samples[name, kind] += taken
                    figures[kind].append(made_anew(health))
    print(f"\n{policy}, {_NODES} nodes of 8 devices; ms over HTTP, one call at a time")
    print(f"{'':24}{'':12}{'n':>6}{'p50':>8}{'p99':>8}{'max':>8}")
    for (name, kind), taken in sorted(samples.items()):
        row = summary(taken, 0, 1)
        values = "".join(f"{row[key]:8.2f}" for key in ("p50", "p99", "max"))
        print(f"{name:24}{kind:12}{len(taken):6}{values}")
    for kind, texts in figures.items():
        print(*(f"{kind:12}{text}" for text in texts), sep="\n")


def made_anew(health: int) -> str:
    """How often policies were made, and how long the last time took."""
    with urllib.request.urlopen(f"http://127.0.0.1:{health}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    wanted = ("gpushare_refits_total", "gpushare_refit_duration_seconds ")
    return " ".join(line for line in text.splitlines() if line.startswith(wanted))


if __name__ == "__main__":
    bench(sys.argv[1] if len(sys.argv) > 1 else "device-bestfit")
