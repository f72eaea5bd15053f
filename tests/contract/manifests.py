"""The manifests under config/extender as kubectl renders them, and short ways to find things there.

Knows kustomize folders and plain files; what must hold of them is in test_manifests.py.
"""

import functools
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no annotations
import yaml

from gpushare.settings import Settings, read_settings
from gpushare.wire.scheduler.config import SchedulerConfig, decode_scheduler_config

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
EXTENDER = ROOT / "config" / "extender"
FOLDERS = (
    *("base", "second-scheduler", "admission", "placements", "existing-scheduler"),
    *("claims", "second-scheduler-claims", "moves"),
)
STATIC_PODS = EXTENDER / "existing-scheduler" / "static-pods"


def check_schema(document: Json) -> None:
    """Fail unless the API of Kubernetes 1.37 takes it; a key that does not exist fails too."""
    kubernetes_validate.validate(document, "1.37", strict=True)


@functools.cache
def rendered(folder: str) -> tuple[Json, ...]:
    """The documents that `kubectl apply -k` would send."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(EXTENDER / folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # On stderr stands what is deprecated.
    assert done.stderr == ""
    return tuple(yaml.safe_load_all(done.stdout))


def one(folder: str, kind: str, name: str) -> Json:
    """The one document of that kind whose name begins so (generated names end in a hash)."""
    (found,) = (
        document
        for document in rendered(folder)
        if document["kind"] == kind and document["metadata"]["name"].startswith(name)
    )
    return found


def static_pod(name: str) -> Json:
    return dict(yaml.safe_load((STATIC_PODS / f"{name}.yaml").read_text()))


def second_pod() -> Json:
    """The pod template of the second scheduler."""
    return dict(one("second-scheduler", "Deployment", "gpushare-scheduler")["spec"]["template"])


def container(pod: Json, name: str) -> Json:
    (found,) = (each for each in pod["spec"]["containers"] if each["name"] == name)
    return dict(found)


def served(pod: Json) -> Settings:
    """The settings that the flags of the pod's extender mean."""
    verb, *flags = container(pod, "gpushare")["args"]
    assert verb == "serve"
    return read_settings(flags, {}, lambda path: {})


def scheduler_file(path: Path) -> SchedulerConfig:
    """A file that kube-scheduler reads, as the extender reads it."""
    return decode_scheduler_config(yaml.safe_load(path.read_text()))


def rights(folder: str, account: Mapping[str, str]) -> Iterator[tuple[str, str, str, str, str]]:
    """(namespace or "", API group, resource, verb, name or "") that roles of the folder give."""
    for binding in rendered(folder):
        if account in binding.get("subjects", ()):
            role = binding["roleRef"]
            where = binding["metadata"].get("namespace", "")
            for document in rendered(folder):
                if (document["kind"], document["metadata"]["name"]) == (role["kind"], role["name"]):
                    for rule in document["rules"]:
                        yield from _flat(where, rule)


def _flat(where: str, rule: Json) -> Iterator[tuple[str, str, str, str, str]]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames", [""]):
                    yield (where, group, resource, verb, name)
