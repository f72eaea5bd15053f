"""Objects that people can write fit the manifests' memory: hundreds of objects of the largest size
that the API server takes, and thousands of pods with as much to keep as possible.

`LARGE_OBJECTS=1000` tries as many of the largest.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from gpushare.wire.annotations import ALIYUN
from gpushare.wire.demands import MOST_DEMANDS, TEXT
from gpushare.wire.quantity import to_bytes

ROOT = Path(__file__).parents[2]
LARGEST = 1_300_000
"""Bytes: etcd takes requests of 1.5 MiB."""
LISTED = 400
"""So many objects fit the extender's memory."""
OBJECTS = int(os.environ.get("LARGE_OBJECTS", "200"))
"""The number of listed objects; fewer fit their share of memory."""
DENSE = 7
"""The number of listed pods with much to keep, for each of the largest objects."""
CONFIGURED = 0.75
"""The number of claims with all parameters kept."""
RATIO = 3.0
"""So many times the CPU that `json` takes for short texts may a megabyte of long ones take."""
RATIO_OF_SHORT = 20.0
"""The same of short texts, with much to keep; 9 was measured."""
MIB = 1024
Json = dict[str, Any]


def limit_of(manifest: str) -> int:
    """The largest memory limit, in KiB, of a container in a manifest that is shipped: ours."""
    documents = yaml.safe_load_all((ROOT / "config" / manifest).read_text(encoding="utf-8"))
    result = [
        to_bytes(container["resources"]["limits"]["memory"])
        for document in documents
        if document["kind"] in ("Deployment", "DaemonSet")
        for container in document["spec"]["template"]["spec"]["containers"]
        if "memory" in container.get("resources", {}).get("limits", {})
    ]
    return max(result) // 1024


def pod(**metadata: Any) -> Json:
    request = {"limits": {ALIYUN.resource: "1"}, "requests": {ALIYUN.resource: "1"}}
    return {
        "metadata": {"name": "NAME", "namespace": "tenant", "uid": "NAME"} | metadata,
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": request}]},
        "status": {"phase": "Running"},
    }


def fat_args() -> Json:
    result = pod()
    result["spec"]["containers"][0]["args"] = ["x" * LARGEST]
    return result


def many_containers() -> Json:
    result = pod()
    small = {"requests": {"cpu": "1m", "memory": "1Mi"}}
    more = [{"name": f"c{at}", "image": "x" * 200, "resources": small} for at in range(4000)]
    result["spec"]["containers"] += more
    return result


def strings(count: int, size: int) -> dict[str, str]:
    return {f"example.com/{at:06}": "NAME".ljust(size, "v") for at in range(count)}


def dense() -> Json:
    """A waiting pod of many short texts of its own: these take more than in the pod's JSON."""
    result = pod()
    del result["spec"]["nodeName"]
    lists = ("use-models", "not-models", "use-uuids", "not-uuids")
    result["metadata"]["annotations"] = {
        f"gpushare.io/{name}": ",".join(f"NAME{at}" for at in range(64)) for name in lists
    }
    tolerations = MOST_DEMANDS // (2 * TEXT + len("o000000") + 3)
    result["spec"]["tolerations"] = [{"key": f"NAME{at}"} for at in range(tolerations)]
    request = result["spec"]["containers"][0]["resources"]
    request["limits"] = request["limits"] | {f"NAME{'x' * 50}/{at}": "1" for at in range(63)}
    return result


def claim(**metadata: Any) -> Json:
    request = {"deviceClassName": "gpushare.io", "count": 1, "allocationMode": "ExactCount"}
    request |= {"capacity": {"requests": {"memory": "1Gi"}}}
    meta = {"name": "NAME", "namespace": "tenant", "uid": "NAME", "resourceVersion": "7"}
    requests = [{"name": "gpu", "exactly": request}]
    return {"metadata": meta | metadata, "spec": {"devices": {"requests": requests}}}


def configured() -> Json:
    """As many parameters for drivers as there may be, of 10 KiB each, in small parts."""
    claim_result = claim()
    parameters: Json = {f"NAME{at}": [] for at in range(10_240 // 20)}
    opaque = {"driver": "gpu.example.com", "parameters": parameters}
    claim_result["spec"]["devices"]["config"] = [{"opaque": opaque}] * 32
    return claim_result


def held_by_many() -> Json:
    claim_result = claim()
    claim_result["status"] = {
        "reservedFor": [
            {"resource": "pods", "name": f"NAME{at}", "uid": f"NAME{at:030}"} for at in range(256)
        ]
    }
    return claim_result


def selected() -> Json:
    """A claim with requests that have as many selectors of short texts as the API allows."""
    claim_result = claim()
    (request,) = claim_result["spec"]["devices"]["requests"]
    selectors = [
        {"cel": {"expression": f"device.attributes['NAME'].a{at:02} == 'NAME'"}} for at in range(32)
    ]
    request["exactly"]["selectors"] = selectors
    requests = [{**request, "name": f"gpu{at}"} for at in range(32)]
    claim_result["spec"]["devices"]["requests"] = requests
    return claim_result


def allocated() -> Json:
    """A claim with as many devices as one can have, with amounts of many capacities of each."""
    claim_result = claim()
    consumed = {f"NAME{at}": "1" for at in range(32)}
    results = [
        {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "NAME", "device": f"NAME{at}"}
        | {"shareID": f"NAME{at}", "consumedCapacity": consumed}
        for at in range(32)
    ]
    claim_result["status"] = {"allocation": {"devices": {"results": results}}}
    return claim_result


def attributed(node: str = "NAME") -> Json:
    """A slice with as many attributes of its devices as the API allows."""
    device = {"attributes": {f"NAME{at}": {"string": "x" * 60} for at in range(32)}}
    devices = [{"name": f"gpu-{at}"} | device for at in range(128)]
    pool = {"name": "NAME", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": "NAME", "uid": "NAME"}, "spec": spec}


def of_one_node() -> Json:
    """A slice of one node that has as many slices as are listed."""
    return attributed("n1")


SHORT_TEXTS = (dense, configured, allocated, attributed, of_one_node)
"""Many short texts take longer than few long ones."""
LABELS = strings(LARGEST // 80, 60)
KINDS: list[tuple[str, str, str, Callable[[], Json]]] = [
    ("pods", "args", "Pod", fat_args),
    ("pods", "labels", "Pod", lambda: pod(labels=LABELS)),
    ("pods", "annotations", "Pod", lambda: pod(annotations=strings(25, 10_000))),
    ("pods", "assume time", "Pod", lambda: pod(annotations={ALIYUN.assume_time: "9" * 250_000})),
    ("pods", "containers", "Pod", many_containers),
    ("pods", "short texts", "Pod", dense),
    ("nodes", "labels", "Node", lambda: {"metadata": {"name": "NAME", "labels": LABELS}}),
    (
        "configmaps",
        "data",
        "ConfigMap",
        lambda: {"metadata": {"name": "unhealthy-gpu-NAME"}, "data": {"x": "y" * 1_000_000}},
    ),
    (
        "budgets",
        "selector",
        "PodDisruptionBudget",
        lambda: {
            "metadata": {"name": "NAME", "namespace": "tenant"},
            "spec": {"selector": {"matchLabels": LABELS}},
        },
    ),
    ("claims", "annotations", "ResourceClaim", lambda: claim(annotations=strings(25, 10_000))),
    ("claims", "labels", "ResourceClaim", lambda: claim(labels=LABELS)),
    ("claims", "parameters", "ResourceClaim", configured),
    ("claims", "holders", "ResourceClaim", held_by_many),
    ("claims", "selectors", "ResourceClaim", selected),
    ("claims", "devices", "ResourceClaim", allocated),
    ("slices", "attributes", "ResourceSlice", attributed),
    ("slices", "one node", "ResourceSlice", of_one_node),
    ("plugin", "args", "Pod", fat_args),
    ("plugin", "labels", "Pod", lambda: pod(labels=LABELS)),
]


def named(text: bytes, number: int) -> bytes:
    """The object with a name of its own in every place; all objects are equally long."""
    return text.replace(b"NAME", b"o%06d" % number)


@contextmanager
def serving(kind: str, one: Json, objects: int) -> Iterator[str]:
    """A server with lists of that many objects like this one, in pages of the requested size."""
    text = json.dumps(one).encode()

    length = len(named(text, 0))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
            if "watch" in query:
                self.close_connection = True
                return
            first = int(query.get("continue", "0"))
            after = min(first + int(query["limit"]), objects)
            token = str(after) if after < objects else ""
            meta = {"resourceVersion": "7", "continue": token}
            head = json.dumps({"kind": f"{kind}List", "metadata": meta})[:-1] + ',"items":['
            count = after - first
            size = len(head) + count * length + max(count - 1, 0) + len("]}")
            with suppress(OSError):  # the client hangs up when the list is too large
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(size))
                self.end_headers()
                self.wfile.write(head.encode())
                for at in range(first, after):
                    self.wfile.write(b"," * (at > first) + named(text, at))
                self.wfile.write(b"]}")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.long
@pytest.mark.parametrize(("what", "where", "kind", "make"), KINDS)
def test_objects_of_the_largest_size_fit_the_limit_of_the_manifest(
    what: str, where: str, kind: str, make: Callable[[], Json], tmp_path: Path
) -> None:
    plugin = what == "plugin"
    limit = limit_of(
        "device-plugin/daemonset.yaml" if plugin else "extender/second-scheduler/deployment.yaml"
    )
    # A node runs 110 pods by default.
    objects, share = (110, 1.0) if plugin else (OBJECTS, min(OBJECTS / LISTED, 1.0))
    if make is dense:
        objects *= DENSE
    if make is configured:
        objects = int(objects * CONFIGURED)
    kubeconfig = tmp_path / "kubeconfig"
    with serving(kind, make(), objects) as url:
        cluster = {"name": "c", "cluster": {"server": url}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {"clusters": [cluster], "contexts": [context], "current-context": "c"}
        users = {"apiVersion": "v1", "kind": "Config", "users": [{"name": "u", "user": {}}]}
        kubeconfig.write_text(json.dumps(config | users), encoding="utf-8")
        command = [sys.executable, "-m", "tests.integration.large_objects", str(kubeconfig), what]
        # As in the image.
        environment = os.environ | {"MALLOC_ARENA_MAX": "1"}
        completed = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    assert completed.returncode == 0, completed.stderr[-2000:]
    used = json.loads(completed.stdout)
    size = objects * len(json.dumps(make())) / 1e6
    result = {name: used[name] // MIB for name in ("VmHWM", "VmRSS", "before")}
    ratio = used["cpu"] / size / used["calibrated"]
    print(where, result, f"{used['cpu'] / size:.4f} s of CPU for each MB, x{ratio:.1f}")
    assert ratio < (RATIO_OF_SHORT if make in SHORT_TEXTS else RATIO), "the CPU of reading"
    before = used["before"]
    assert used["VmHWM"] - before < share * (limit * 3 // 4 - before), "while the list is read"
    assert used["VmRSS"] - before < share * limit / 4, "what is kept of it"
    if what == "pods":
        assert used["entries"] == (OBJECTS if make is not dense else 0), "each on a node is charged"
