"""The speed of the extender: filter, prioritize, binds on one node, and filling the books.

The real process over real HTTP, beside a bare Flask application that echoes the same bytes in the
same kind of worker, in turn, so that both meet the same machine. Figures are for comparing within
one run. Run as `python -m tests.bench.speed`; about two minutes.
"""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.clients import Blocking, request, summary
from tests.bench.speed_api_server import node_name

_PREFIX = "/gpushare-scheduler"
_NAMES = 5000
_ROUNDS = 400
_BINDS = 3000
_AT_ONCE = 64

_ECHO = """
import flask, sys
from gunicorn.app.base import BaseApplication
app = flask.Flask("echo")
@app.post("/echo")
def echo():
    return flask.Response(flask.request.get_data(cache=False), mimetype="application/json")
class Echo(BaseApplication):
    def load_config(self):
        for name, value in {
            "bind": "127.0.0.1:" + sys.argv[1], "workers": 1, "threads": 64, "keepalive": 120,
            "worker_class": sys.argv[2], "control_socket_disable": True, "loglevel": "warning",
        }.items():
            self.cfg.set(name, value)
    def load(self):
        return app
Echo().run()
"""

_KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
users: [{{name: u, user: {{}}}}]
current-context: c
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def process(*words: str, folder: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process; folder: where the modules are that it runs."""
    command = [sys.executable, *words]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=folder) as child:
        try:
            yield child
        finally:
            child.terminate()


def wait_for(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise SystemExit(f"nothing listens on {port}")


def wait_ready(port: int) -> float:
    """Seconds until /readyz says ok."""
    start = time.monotonic()
    while time.monotonic() < start + 120:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).close()
            return time.monotonic() - start
        time.sleep(0.02)
    raise SystemExit("the extender does not become ready")


@contextlib.contextmanager
def extender(
    *flags: str, code: Path | None = None, **api: int
) -> Iterator[tuple[int, float, subprocess.Popen[bytes]]]:
    """(port, seconds from start to ready, process) of an extender before an API server as asked.

    flags: more of `gpushare serve`. code: a checkout that is run instead of this one.
    """
    usual = {"nodes": 1, "devices": 8, "units": 16, "pods": 0, "gpu_pods": 0, "waiting": 0}
    options = usual | {"delay_ms": 0} | api
    api_port, port, health = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        kubeconfig.write_text(_KUBECONFIG.format(port=api_port))
        server = ("-m", "tests.bench.speed_api_server", str(api_port), json.dumps(options))
        serve = ("-m", "gpushare.cli.main", "serve", "--leadership", "off")
        listen = ("--listen", f"127.0.0.1:{port}", "--health-listen", f"127.0.0.1:{health}")
        with process(*server):
            wait_for(api_port)
            # No kubelet runs the pods that equal ones wait for.
            unpaired = ("--pairing", "off")
            quiet = ("--kubeconfig", str(kubeconfig), "--log-level", "warning")
            with process(*serve, *unpaired, *listen, *quiet, *flags, folder=code) as child:
                yield port, wait_ready(health), child


def pod(uid: str, units: int) -> dict[str, Any]:
    limits = {"aliyun.com/gpu-mem": str(units)}
    container = {"name": "main", "resources": {"limits": limits, "requests": limits}}
    metadata = {"name": f"pod-{uid}", "namespace": "default", "uid": uid}
    return {"metadata": metadata, "spec": {"containers": [container]}}


def verb(name: str, body: dict[str, Any]) -> bytes:
    # As Go writes it: a list of names with blanks would not be known again.
    return request(f"{_PREFIX}/{name}", json.dumps(body, separators=(",", ":")).encode())


def rounds(asks: dict[str, tuple[int, list[bytes]]]) -> dict[str, dict[str, float]]:
    """Latencies in ms of each kind of call, asked in turn."""
    clients = {name: Blocking(port, 5) for name, (port, _) in asks.items()}
    samples: dict[str, list[float]] = {name: [] for name in asks}
    for turn in range(_ROUNDS):
        for name, (_, messages) in asks.items():
            took = clients[name].ask(messages[turn % len(messages)])
            if took is None:
                raise SystemExit(f"{name}: no answer")
            samples[name].append(took)
    return {name: summary(times, 0, 1) for name, times in samples.items()}


def bench_verbs() -> None:
    names = [node_name(number) for number in range(_NAMES)]
    echo_port = free_port()
    worker = "gpushare.extender.door.worker.BufferedThreadWorker"
    with (
        extender(nodes=_NAMES, pods=10_000, gpu_pods=10_000) as (port, _, _child),
        process("-c", _ECHO, str(echo_port), worker),
    ):
        wait_for(echo_port)
        same = {"Pod": pod("u", 4), "Nodes": None, "NodeNames": names}
        full = {"Pod": pod("v", 16), "Nodes": None, "NodeNames": names}
        kinds = [{"Pod": pod("w", 1 + units), "NodeNames": names} for units in range(16)]
        result = rounds(
            {
                "Flask echo": (echo_port, [request("/echo", json.dumps(same).encode())]),
                "filter, all fit": (port, [verb("filter", same)]),
                "filter, some full": (port, [verb("filter", full)]),
                "prioritize": (port, [verb("prioritize", same)]),
                "prioritize, 16 kinds": (port, [verb("prioritize", kind) for kind in kinds]),
            }
        )
    base = result["Flask echo"]
    print(f"\n{_NAMES} names, 8 devices a node; ms over HTTP, one call at a time")
    print(f"{'':24}{'p50':>8}{'p99':>8}{'p50/echo':>10}{'p99/echo':>10}")
    for name, row in result.items():
        ratios = row["p50"] / base["p50"], row["p99"] / base["p99"]
        print(f"{name:24}{row['p50']:8.2f}{row['p99']:8.2f}{ratios[0]:10.2f}{ratios[1]:10.2f}")


async def bind_all(port: int, nodes: list[str]) -> tuple[list[float], int, float]:
    """(ms of each bind, refused, seconds in all): each pod is filtered, then all are bound."""
    seconds: list[float] = []
    refusals = 0
    todo = list(range(_BINDS))

    async def ask(
        stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], message: bytes
    ) -> bytes:
        reader, writer = stream
        writer.write(message)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        return await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))

    async def worker(bind: bool) -> None:
        nonlocal refusals
        stream = await asyncio.open_connection("127.0.0.1", port)
        while todo:
            number = todo.pop()
            uid, node = f"uid-{number}", nodes[number % len(nodes)]
            if bind:
                args = {"PodName": f"pod-{uid}", "PodNamespace": "default", "PodUID": uid}
                message = verb("bind", args | {"Node": node})
            else:
                message = verb("filter", {"Pod": pod(uid, 1), "NodeNames": [node]})
            start = time.perf_counter()
            answer = json.loads(await ask(stream, message))
            if bind:
                seconds.append((time.perf_counter() - start) * 1000)
                refusals += bool(answer["Error"])
        stream[1].close()

    await asyncio.gather(*(worker(bind=False) for _ in range(8)))
    todo = list(range(_BINDS))
    start = time.perf_counter()
    await asyncio.gather(*(worker(bind=True) for _ in range(_AT_ONCE)))
    return seconds, refusals, time.perf_counter() - start


def bench_binds() -> None:
    print(f"\n{_BINDS} binds, {_AT_ONCE} at once, an API server that takes 20 ms")
    print(f"{'':24}{'binds/s':>8}{'p50':>8}{'p99':>8}{'refused':>9}")
    for title, count in (("one node", 1), ("100 nodes", 100)):
        with extender(nodes=count, units=1000, delay_ms=20) as (port, _, _child):
            nodes = [node_name(number) for number in range(count)]
            times, refusals, seconds = asyncio.run(bind_all(port, nodes))
        row = summary(times, refusals, seconds)
        rate = (len(times) - refusals) / seconds
        print(f"{title:24}{rate:8.0f}{row['p50']:8.1f}{row['p99']:8.1f}{refusals:9d}")


def resident(child: subprocess.Popen[bytes]) -> float:
    """Peak MiB of the process and the worker."""
    pids = [str(child.pid)]
    tasks = Path(f"/proc/{child.pid}/task/{child.pid}/children")
    pids += tasks.read_text().split()
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/status").read_text().split("\n")]
    return max(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def bench_fill() -> None:
    print("\nfilling the books at start, 5,000 nodes")
    print(f"{'':34}{'ready after s':>14}{'worker MiB':>12}")
    for pods, gpu_pods in ((0, 0), (10_000, 10_000), (100_000, 10_000)):
        with extender(nodes=5000, pods=pods, gpu_pods=gpu_pods) as (_, seconds, child):
            title = f"{pods} pods, {gpu_pods} of them with GPU"
            print(f"{title:34}{seconds:14.1f}{resident(child):12.0f}", flush=True)


if __name__ == "__main__":
    bench_verbs()
    bench_binds()
    bench_fill()
