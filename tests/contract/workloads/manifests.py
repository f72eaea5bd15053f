"""Manifests of workloads, as a newcomer writes them."""

import json

from tests.contract.apiserver.client import Json


def workload(kind: str, name: str = "web", *, image: str = "app:1", **spec: object) -> str:
    """A workload of one container as text for `kubectl apply -f -`."""
    labels = {"app": name}
    limits = {"aliyun.com/gpu-mem": "1"}
    container = {"name": "main", "image": image, "resources": {"limits": limits}}
    template: Json = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    body: Json = {"template": template, **spec}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
    else:
        body["selector"] = {"matchLabels": labels}
    if kind == "StatefulSet":
        body["serviceName"] = name
    return json.dumps(
        {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": body}
    )


def changed(manifest: str, change: Json) -> str:
    """The manifest with a change deep in it: objects are merged, anything else is replaced."""
    return json.dumps(_merged(json.loads(manifest), change))


def _merged(old: object, new: object) -> object:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
    return new
