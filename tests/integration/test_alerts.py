"""Alerts and dashboard ask for metrics that real processes export, with labels that they have."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gpushare.wire.annotations import ALIYUN
from tests.integration.cluster import MEM, Cluster
from tests.integration.conftest import StartExtender
from tests.integration.plugin_world import PluginNode
from tests.support.waiting import poll

ROOT = Path(__file__).parents[2]
_MONITORING = ROOT / "config" / "helm" / "gpushare" / "monitoring"
_METRIC = re.compile(r"gpushare[_:]\w+")
_OF_PROMETHEUS = {"instance", "pod", "le"}
"""Labels that a scrape adds, and that of a histogram's buckets."""
_OF_USE = {"namespace", "pod", "container", "uuid"}
"""Labels of what containers use, which the cards of this test do not tell."""


def rules() -> list[dict[str, Any]]:
    """The alerts and recording rules of all groups."""
    groups = yaml.safe_load((_MONITORING / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> dict[str, str]:
    """By alert, recorded series or panel, its expressions."""
    result = {rule.get("alert") or rule["record"]: rule["expr"] for rule in rules()}
    dashboard = json.loads((_MONITORING / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            result[f"{panel['id']} {panel['title']} {target['refId']}"] = target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            result[variable["name"]] = variable["query"]["query"]
    return result


def labels_of(text: str) -> dict[str, set[str]]:
    """By sample name of a scrape, its labels; a family without samples yet has none."""
    samples: dict[str, set[str]] = defaultdict(set)
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            samples[line.split()[2]] |= set()
        elif not line.startswith("#"):
            name, _, remainder = line.partition("{")
            samples[name.split(" ")[0]] |= set(re.findall(r'(\w+)="', remainder))
    return samples


def asked(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The metrics in an expression, with the labels that select them."""
    for item in re.finditer(r"(gpushare[_:][\w:]+)(\{[^}]*\})?", expression):
        yield item[1], set(re.findall(r"(\w+) *(?:=|!)", item[2] or ""))


def grouped(expression: str) -> set[str]:
    """The labels that an expression groups or matches by."""
    lists = re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
    return {label.strip() for item in lists for label in item.split(",")}


def test_what_alerts_and_dashboard_ask_for_is_exported(
    cluster: Cluster, start_extender: StartExtender
) -> None:
    extender = start_extender("--metrics-detail", "pods")
    node = PluginNode(cluster).start()
    try:
        name = cluster.node(devices=1, total=4)
        extender.wait_ready()
        extender.knows(name)
        limits = {MEM: "2", ALIYUN.cores: "30"}
        container = {"name": "c", "image": "x", "resources": {"limits": limits}}
        pod = cluster.pod(spec={"containers": [container]})
        assert extender.fit(pod, [name]) == [name]
        extender.filter(cluster.pod(9), [name])
        extender.prioritize(pod, [name])
        assert extender.bind(pod, name) == ""
        bound_pod = node.pod(2)
        node.knows(bound_pod)
        node.kubelet.add(bound_pod)
        # A text is handed out again for a while.
        last = "gpushare_workload_gpu_seconds_total"
        poll(lambda: last in extender.probe("/metrics").body.decode(), "it is not told")
        exported = labels_of(extender.probe("/metrics").body.decode())
        exported |= labels_of(node.get("/metrics")[1])
    finally:
        node.stop()
    exported |= {rule["record"]: set() for rule in rules() if "record" in rule}
    exported["gpushare:gpu_hour_price"] = {"model"}  # the operator's own rule: docs/cost.md
    every_label = set().union(*exported.values()) | _OF_PROMETHEUS | _OF_USE
    for entry, expression in expressions().items():
        assert _METRIC.search(expression), entry
        assert grouped(expression) <= every_label, entry
        for metric, labels in asked(expression):
            assert metric in exported, f"{entry}: nobody exports {metric}"
            assert not exported[metric] or labels <= exported[metric], f"{entry}: {metric}"


def test_each_metric_says_what_it_is(start_extender: StartExtender) -> None:
    extender = start_extender()
    extender.wait_ready()
    text = extender.probe("/metrics").body.decode()
    helps = dict(re.findall(r"^# HELP gpushare_(\S+) (.*)$", text, re.MULTILINE))
    assert len(helps) > 40
    bare = [name for name, entry in helps.items() if entry == name.replace("_", " ")]
    assert not bare
