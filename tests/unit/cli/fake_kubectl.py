"""A kubectl for tests: a small program that answers paths of the API with files.

A log has the words of each start. Knows nothing of the code under test.
"""

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MEM = "aliyun.com/gpu-mem"

_DRA = "/apis/resource.k8s.io/v1"

# Hundreds of tests start the program several times, so it starts no other program.
_SCRIPT = """\
#!/bin/sh
echo "KUBECONFIG=$KUBECONFIG $*" >> "{folder}/log"
rest="$*"
case "$rest " in
  *" --output= "*) rest="$rest "; rest="${{rest%%" --output= "*}} ${{rest#*" --output= "}}"
    rest="${{rest% }}";;
esac
file="{folder}/"
while [ "$rest" ]; do
  after="${{rest#?}}"
  case "$rest" in [A-Za-z0-9]*) file="$file${{rest%"$after"}}";; *) file="${{file}}_";; esac
  rest="$after"
done
if [ -p "$file" ]; then exec cat "$file"; fi
if [ -f "$file.sh" ]; then . "$file.sh"; fi
if [ -f "$file" ]; then exec cat "$file"; fi
. "{folder}/otherwise.sh"
"""


class FakeKubectl:
    """A program with recorded answers; an empty --output is ignored."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.path = folder / "kubectl"
        self.path.write_text(_SCRIPT.format(folder=folder))
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)
        self.otherwise("echo 'error: the test expects no such call' >&2; exit 9")

    def otherwise(self, script: str) -> None:
        """Run this for words without an answer."""
        (self.folder / "otherwise.sh").write_text(script + "\n")

    def before(self, script: str) -> None:
        """Run this before the answer to words without one of their own."""
        self.otherwise(script + "\n" + (self.folder / "otherwise.sh").read_text())

    def answers(self, words: str, text: str) -> None:
        """Print this for these words, flags included."""
        self.file(words).write_text(text)

    def does(self, words: str, script: str) -> None:
        """Run this in the program's shell for these words."""
        self.file(words).with_suffix(".sh").write_text(script + "\n")

    def pipe(self, words: str) -> Path:
        """Return a named pipe; the program prints the text of the pipe for these words."""
        os.mkfifo(self.file(words))
        return self.file(words)

    def file(self, words: str) -> Path:
        """Where the answer for these words is."""
        return self.folder / re.sub("[^A-Za-z0-9]", "_", words)

    @property
    def log(self) -> list[str]:
        """One line a call."""
        return (self.folder / "log").read_text().splitlines()

    @property
    def environ(self) -> dict[str, str]:
        """Return an environment with this kubectl."""
        return {"PATH": os.environ["PATH"], "KUBECTL": str(self.path)}

    def cluster(
        self,
        nodes: list[Any],
        pods: list[Any],
        maps: Sequence[Any] = (),
        *,
        page: int = 5000,
        slices: Sequence[Any] = (),
        claims: Sequence[Any] | None = None,
    ) -> None:
        """Answer for a cluster of these objects, whatever the selectors.

        claims: None for a cluster without the device class of claims.
        """
        items_by_kind = {"Node": nodes, "Pod": pods, "ConfigMap": [*maps]}
        items_by_kind |= {"ResourceSlice": [*slices], "ResourceClaim": [*(claims or ())]}
        classes = ["another", *([] if claims is None else ["gpushare.io"])]
        items_by_kind["DeviceClass"] = [{"metadata": {"name": name}} for name in classes]
        for kind, items in items_by_kind.items():
            document = {
                "kind": f"{kind}List",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": "7"},
                "items": items,
            }
            plural = f"{kind.lower()}{'es' if kind.endswith('s') else 's'}"
            (self.folder / plural).write_text(json.dumps(document))
        self.otherwise(
            'case "$3" in\n'
            f'/api/v1/nodes*limit={page}*) cat "{self.folder}/nodes" ;;\n'
            f'/api/v1/pods*limit={page}*) cat "{self.folder}/pods" ;;\n'
            "/api/v1/namespaces/kube-system/configmaps*)"
            f' cat "{self.folder}/configmaps" ;;\n'
            f'{_DRA}/deviceclasses*) cat "{self.folder}/deviceclasses" ;;\n'
            f"{_DRA}/devicetaintrules*)"
            ' echo "Error from server (NotFound): no such resource" >&2; exit 1 ;;\n'
            f"{_DRA}/namespaces/*/resourceclaimtemplates/*)"
            ' echo "Error from server (NotFound): no such template" >&2; exit 1 ;;\n'
            f'{_DRA}/resourceslices*) cat "{self.folder}/resourceslices" ;;\n'
            f'{_DRA}/resourceclaims*) cat "{self.folder}/resourceclaims" ;;\n'
            "*) echo 'error: the test expects no such call' >&2; exit 9 ;; esac"
        )


def node(name: str, total: int = 32, count: int = 2, inventory: object = None) -> dict[str, Any]:
    """Return a node from the API server."""
    text = inventory if isinstance(inventory, str) else json.dumps(inventory)
    if isinstance(inventory, dict):
        total = sum(device["mem"] for device in inventory["devices"])
    amounts = {MEM: str(total), "aliyun.com/gpu-count": str(count)} if total else {}
    allocatable = amounts | {"cpu": "8", "memory": "32Gi", "pods": "110"}
    return {
        "metadata": {
            "name": name,
            "annotations": {"gpushare.io/devices": text} if inventory is not None else {},
        },
        "status": {
            "capacity": amounts,
            "allocatable": allocatable,
            "addresses": [{"type": "InternalIP", "address": "10.9.0.1"}],
        },
    }


def inventory(*mem: int, unit: str = "GiB", **more: object) -> dict[str, Any]:
    """Return the inventory of a node with these devices, each with `more` and a uuid."""
    devices = [{"mem": units, "uuid": f"GPU-{index}", **more} for index, units in enumerate(mem, 1)]
    return {"v": 1, "unit": unit, "devices": devices}


def pod(
    name: str,
    node: str,
    units: object = 4,
    *,
    idx: str | None = "0",
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
    cores: int = 0,
    share: int = 0,
) -> dict[str, Any]:
    """Return a running pod from the API server."""
    limits = {MEM: units} | ({"aliyun.com/gpu-core.percentage": cores} if cores else {})
    limits |= {"aliyun.com/gpu-mem.percentage": share} if share else {}
    notes = {"ALIYUN_COM_GPU_MEM_IDX": idx} if idx is not None else {}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "annotations": {**notes, **(annotations or {})},
        },
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": limits}}]},
        "status": {"phase": "Running"},
    }


def pending(
    name: str,
    units: object = 4,
    *,
    reason: str = "",
    namespace: str = "default",
    cores: int = 0,
    share: int = 0,
) -> dict[str, Any]:
    """Return a pending pod from the API server."""
    changes = pod(name, "", units, idx=None, namespace=namespace, cores=cores, share=share)
    condition = {"type": "PodScheduled", "status": "False", "message": reason}
    changes["status"] = {"phase": "Pending", "conditions": [condition] if reason else []}
    return changes


def closing(node: str, gpus: str) -> dict[str, Any]:
    """The ConfigMap that closes devices of a node."""
    return {"metadata": {"name": f"unhealthy-gpu-{node}"}, "data": {"gpus": gpus}}
