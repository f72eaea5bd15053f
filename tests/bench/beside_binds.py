"""How long filter takes at 5,000 names while 100 pods a second are bound.

The real process before a stand-in for the API server, which shows each Binding on its watch. One
client filters one pod after the other, each with the names in another order, as kube-scheduler
does; another, in a process of its own, binds pods in every second round. So the rows meet the same
machine; figures are for comparing within one run. Run as `python -m tests.bench.beside_binds
[--rate 100]`; a minute and a half.
"""

import argparse
import http.client
import json
import multiprocessing
import random
import time
from multiprocessing.connection import Connection
from typing import Any

from tests.bench.clients import Blocking, summary
from tests.bench.pod_cpu import appended
from tests.bench.speed import extender, verb
from tests.bench.speed_api_server import node_name, waiting_pod

_NODES = 5000
_ORDERS = 40
_JSON = {"Content-Type": "application/json"}
_PAUSE_S = 0.02
"""Between two filters, as kube-scheduler does other things, too."""


def _bind(port: int, rate: int, seconds: float, orders: Connection) -> None:
    """Bind so many pods a second each time the number of the first one comes; send the samples."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=5)

    def ask(name: str, body: dict[str, Any]) -> Any:
        client.request("POST", f"/gpushare-scheduler/{name}", json.dumps(body), _JSON)
        return json.loads(client.getresponse().read())

    while (first := orders.recv()) is not None:
        start = time.monotonic()
        taken: list[float] = []
        for number in range(first, first + int(rate * seconds)):
            time.sleep(max(start + (number - first) / rate - time.monotonic(), 0))
            pod, node = waiting_pod(number), node_name(number % _NODES)
            # By itself a bind would have to read the pod from the API server.
            ask("filter", {"Pod": pod, "Nodes": None, "NodeNames": [node]})
            arguments = {"PodName": pod["metadata"]["name"], "PodNamespace": "default"}
            began = time.perf_counter()
            answer = ask("bind", arguments | {"PodUID": pod["metadata"]["uid"], "Node": node})
            taken.append((time.perf_counter() - began) * 1000)
            if answer["Error"]:
                raise SystemExit(f"bind: {answer['Error']}")
        orders.send(taken)


def _filter(client: Blocking, messages: list[bytes], seconds: float) -> list[float]:
    taken: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        took = client.ask(messages[len(taken) % len(messages)])
        if took is None:
            raise SystemExit("filter: no answer")
        taken.append(took)
        time.sleep(_PAUSE_S)
    return taken


def main() -> None:
    """Print filter's latencies with and without concurrent binds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rate", type=int, default=100, help="binds a second")
    parser.add_argument("--seconds", type=float, default=8, help="of each round")
    parser.add_argument("--rounds", type=int, default=4, help="with binds, and as many without")
    options = parser.parse_args()
    dice = random.Random(1)
    names = [node_name(number) for number in range(_NODES)]
    pods = int(options.rate * options.seconds)
    messages = [
        verb("filter", {"Pod": waiting_pod(-1), "Nodes": None, "NodeNames": appended(names, dice)})
        for _ in range(_ORDERS)
    ]
    alone: list[float] = []
    seconds_beside: list[float] = []
    binds: list[float] = []
    spawn = multiprocessing.get_context("spawn")
    sizes = {"nodes": _NODES, "pods": 10_000, "gpu_pods": 10_000, "waiting": pods * options.rounds}
    with extender(**sizes) as (port, _, _child):
        our_end, theirs = spawn.Pipe()
        bind_arguments = (port, options.rate, options.seconds, theirs)
        binder = spawn.Process(target=_bind, args=bind_arguments, daemon=True)
        binder.start()
        theirs.close()  # if the child ends, the next read from the pipe ends, too
        client = Blocking(port, 5)
        _filter(client, messages, 2)
        for turn in range(options.rounds):
            alone += _filter(client, messages, options.seconds)
            our_end.send(turn * pods)
            seconds_beside += _filter(client, messages, options.seconds)
            binds += our_end.recv()
        our_end.send(None)
        binder.join()
    print(f"{_NODES} names, another order each time; ms over HTTP")
    print(f"{'':36}{'n':>7}{'p50':>8}{'p99':>8}{'max':>8}")
    rate = f"beside {options.rate} binds a second"
    for title, samples in (
        ("filter, alone", alone),
        (f"filter, {rate}", seconds_beside),
        ("bind", binds),
    ):
        row = summary(samples, 0, 1)
        figures = f"{row['n']:7.0f}{row['p50']:8.2f}{row['p99']:8.2f}{row['max']:8.2f}"
        print(f"{title:36}{figures}")


if __name__ == "__main__":
    main()
