"""The cost of shares. Prometheus itself is not here: a stand-in answers the queries of `gpushare
report` for sums of increases, by two looks at the metrics of the extender.
"""

import json
import re
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from kubernetes import client as k8s

from gpushare_localcluster.demo.programs import expect, gpushare, node, pod, say, wait_for

QUERY = re.compile(r"sum by \((.*)\) \(increase\((\w+)\{.*\}\[\d+s\]\)\)")
SAMPLE = re.compile(r"(\w+)\{(.*)\} ([-+.\de]+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')
WORKLOADS = "gpushare_workload_gpu_seconds_total"
Samples = Mapping[tuple[str, str], float]
"""Values by name and labels."""


def scenario(client: k8s.ApiClient) -> None:
    """Pods pay for their shares of cards, and the rest is idle: gpushare report."""
    core = k8s.CoreV1Api(client)
    core.create_node(node("gpu-a", cards=2, model="A10"))
    metrics = Metrics(core)
    first = metrics.look()
    say("one pod has a quarter of a card, another one half a card, and 1.25 cards are idle:")
    for name, units in (("quarter", 4), ("half", 8)):
        core.create_namespaced_pod("default", pod(name, units))
    pods = {("Pod/quarter",), ("Pod/half",)}
    wait_for(lambda: growth(first, metrics.look(), WORKLOADS, ["workload"]).keys() >= pods)
    before = metrics.last
    wait_for(
        lambda: growth(before, metrics.look(), WORKLOADS, ["workload"]).get(("Pod/half",), 0) > 0.5,
        "their GPU-seconds are counted",
    )
    say("at 3600 for an hour of a card a second costs 1:")
    with prometheus(before, metrics.last) as url:
        words = ("report", "--by", "workload", "--prices", "A10=3600", "--prometheus", url)
        lines = gpushare(*words).splitlines()
    costs = {line.split()[1]: float(line.split()[-1]) for line in lines[1:]}
    half = costs["Pod/half"]
    expect(abs(costs["Pod/quarter"] - half / 2) < 0.02, "a quarter costs half as much as a half")
    expect(abs(costs["A10"] - half * 2.5) < 0.05, "the rest of the cards is idle")


class Metrics:
    """The metrics of the extender, found as Prometheus finds them in a cluster."""

    def __init__(self, core: k8s.CoreV1Api) -> None:
        (subset,) = core.read_namespaced_endpoints("gpushare-extender", "kube-system").subsets
        self._url = f"http://{subset.addresses[0].ip}:{subset.ports[0].port}/metrics"
        self.last: Samples = {}
        """As of the last look."""

    def look(self) -> Samples:
        """Return the metrics of now."""
        with urllib.request.urlopen(self._url) as answer:  # noqa: S310 -- of the extender
            samples = SAMPLE.findall(answer.read().decode())
        self.last = {(name, labels): float(value) for name, labels, value in samples}
        return self.last


def growth(
    before: Samples, after: Samples, counter: str, by: list[str]
) -> dict[tuple[str, ...], float]:
    """Return how much a counter has grown, by the values of these labels, where it has."""
    sums = defaultdict[tuple[str, ...], float](float)
    for (name, text), value in after.items():
        grown = value - before.get((name, text), 0.0)
        if name == counter and grown:
            labels = dict(LABEL.findall(text))
            sums[tuple(labels[key] for key in by)] += grown
    return sums


@contextmanager
def prometheus(before: Samples, after: Samples) -> Iterator[str]:
    """Yield the URL of a server that knows two looks; its other answers are empty."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            match = QUERY.fullmatch(parse_qs(body)["query"][0])
            by = match[1].split(", ") if match else []
            sums = growth(before, after, match[2], by) if match else {}
            result = [
                {"metric": dict(zip(by, labels, strict=True)), "value": [0, str(value)]}
                for labels, value in sums.items()
            ]
            data = {"resultType": "vector", "result": result}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"status": "success", "data": data}).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
