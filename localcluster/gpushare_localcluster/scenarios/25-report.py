"""The cost of shares. Prometheus itself is not here: a stand-in answers the queries of `gpushare
report` by two looks at the metrics of the extender.
"""

import json
import re
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from kubernetes import client as k8s

from gpushare_localcluster.demo.programs import expect, gpushare, node, pod, say, wait_for

QUERY = re.compile(r"(\w+) by \((.*?)\) \((?:(\w+)\()?(\w+)\{(.*?)\}(?:\[\d+s\]\))?\)")
SAMPLE = re.compile(r"(\w+)\{(.*)\} ([-+.\de]+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')
OF_WORKLOADS = "sum by (workload) (increase(gpushare_workload_gpu_seconds_total{}[0s]))"
GIVEN, USED = (
    f"gpushare_device_plugin_container_memory_{word}_bytes" for word in ("given", "used")
)
GIB = 2**30
Samples = dict[tuple[str, str], float]
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
    wait_for(lambda: evaluated(OF_WORKLOADS, first, metrics.look()).keys() >= pods)
    before = metrics.last
    wait_for(
        lambda: evaluated(OF_WORKLOADS, before, metrics.look()).get(("Pod/half",), 0) > 0.5,
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
    say("there is no GPU. Had quarter used 4 GiB at most and half 3, they could ask for:")
    plug_in = measured("quarter", 4, 4) | measured("half", 8, 3)
    with prometheus(before, metrics.last | plug_in) as url:
        lines = gpushare("report", "--rightsize", "--prometheus", url).splitlines()
    enough = {line.split()[1]: line.split()[-2] for line in lines}
    sizes = enough["Pod/quarter"], enough["Pod/half"]
    expect(sizes == ("5120", "4096"), "the most with 20 % more, in whole GiB")


def measured(name: str, given: int, used: int) -> Samples:
    """Return what a device plug-in would have measured of a pod, in GiB."""
    labels = f'namespace="default",pod="{name}",container="main",uuid="card"'
    return {(GIVEN, labels): given * GIB, (USED, labels): used * GIB}


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


def evaluated(query: str, before: Samples, after: Samples) -> dict[tuple[str, ...], float]:
    """Return the values of a query, by the values of its labels; {} for a query of another form.

    An increase is that between the looks; other values are those of the second look.
    """
    match = QUERY.fullmatch(query)
    if match is None:
        return {}
    values = defaultdict[tuple[str, ...], list[float]](list)
    for (name, text), value in after.items():
        labels = dict(LABEL.findall(text))
        grown = value - before.get((name, text), 0.0) if match[3] == "increase" else value
        if name == match[4] and grown and labels.items() >= {*LABEL.findall(match[5])}:
            values[tuple(labels[key] for key in match[2].split(", "))].append(grown)
    return {labels: (sum if match[1] == "sum" else max)(of) for labels, of in values.items()}


@contextmanager
def prometheus(before: Samples, after: Samples) -> Iterator[str]:
    """Yield the URL of a server that knows two looks; its other answers are empty."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            (query,) = parse_qs(body)["query"]
            names = query.partition("(")[2].partition(")")[0].split(", ")
            result = [
                {"metric": dict(zip(names, labels, strict=True)), "value": [0, str(value)]}
                for labels, value in evaluated(query, before, after).items()
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
