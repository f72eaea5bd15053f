"""The manifests under config/extender as rendered by kubectl, with helpers for lookups.

Knows kustomize folders and plain files; test_manifests.py has the checks.
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
    *("claims", "second-scheduler-claims", "kueue", "moves", "mistakes"),
)
STATIC_PODS = EXTENDER / "existing-scheduler" / "static-pods"


def check_schema(document: Json) -> None:
    """Fail unless the API of Kubernetes 1.37 accepts the document; an unknown key fails too."""
    kubernetes_validate.validate(document, "1.37", strict=True)


@functools.cache
def rendered(folder: str) -> tuple[Json, ...]:
    """The documents that `kubectl apply -k` would send."""
    finished = subprocess.run(
        ["kubectl", "kustomize", str(EXTENDER / folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    # stderr has the deprecations.
    assert finished.stderr == ""
    return tuple(yaml.safe_load_all(finished.stdout))


def one(folder: str, kind: str, name: str) -> Json:
    """The one document of the kind with this prefix of the name (generated names end in a hash)."""
    (result,) = (
        document
        for document in rendered(folder)
        if document["kind"] == kind and document["metadata"]["name"].startswith(name)
    )
    return result


def static_pod(name: str) -> Json:
    return dict(yaml.safe_load((STATIC_PODS / f"{name}.yaml").read_text()))


def second_pod() -> Json:
    """The pod template of the second scheduler."""
    return dict(one("second-scheduler", "Deployment", "gpushare-scheduler")["spec"]["template"])


def container(pod: Json, name: str) -> Json:
    (result,) = (item for item in pod["spec"]["containers"] if item["name"] == name)
    return dict(result)


def served(pod: Json) -> Settings:
    """The settings that the flags of the pod's extender mean."""
    verb, *flags = container(pod, "gpushare")["args"]
    assert verb == "serve"
    return read_settings(flags, {}, lambda path: {})


def scheduler_file(path: Path) -> SchedulerConfig:
    """A file of kube-scheduler, decoded as by the extender."""
    return decode_scheduler_config(yaml.safe_load(path.read_text()))


def rights(folder: str, account: Mapping[str, str]) -> Iterator[tuple[str, str, str, str, str]]:
    """(namespace or "", API group, resource, verb, name or "") that roles of the folder give."""
    for binding in rendered(folder):
        if account in binding.get("subjects", ()):
            role = binding["roleRef"]
            path = binding["metadata"].get("namespace", "")
            for document in rendered(folder):
                if (document["kind"], document["metadata"]["name"]) == (role["kind"], role["name"]):
                    for rule in document["rules"]:
                        yield from _flat(path, rule)


def _flat(path: str, rule: Json) -> Iterator[tuple[str, str, str, str, str]]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames", [""]):
                    yield (path, group, resource, verb, name)
