"""The checks of claims, with the objects of config/extender/claims and mistakes in them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.doctor.checks.claims import CLAIMS_RIGHTS, check_claims
from gpushare.doctor.facts import (
    ApiServer,
    Facts,
    ListedClaims,
    ListedDriver,
    SchedulerFile,
    Unread,
)
from gpushare.doctor.finding import Finding
from gpushare.doctor.objects import (
    LEFT_OVER,
    read_claims,
    read_drivers,
    read_left_over,
    read_node,
    read_pods,
    read_selectors,
)
from gpushare.wire.annotations import ALIYUN
from tests.unit.doctor.facts import NOW, RIGHTS, extender, healthy, node_json

ROOT = Path(__file__).parents[3]
DRIVER = "gpu.nvidia.com"
SERVED = f'gpushare_claims{{driver="{DRIVER}"}}'
Json = dict[str, Any]


def class_json(expression: str, name: str = "gpushare.io") -> Json:
    selectors = [{"cel": {"expression": expression}}]
    return {"metadata": {"name": name}, "spec": {"selectors": selectors}}


def slice_json(*uuids: str, driver: str = DRIVER, node: str = "n2", **device: Any) -> Json:
    devices = [
        {"name": f"gpu-{at}", "attributes": {"uuid": {"string": uuid}} if uuid else {}, **device}
        for at, uuid in enumerate(uuids)
    ]
    return {"spec": {"driver": driver, "nodeName": node, "devices": devices}}


def claim_json(name: str, *, class_name: str = "gpushare.io", driver: str = "") -> Json:
    results = [{"driver": driver, "pool": "n2", "device": "gpu-0"}] if driver else []
    request = {"name": "gpu", "exactly": {"deviceClassName": class_name}}
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"devices": {"requests": [request]}},
        "status": {"allocation": {"devices": {"results": results}}} if driver else {},
    }


def pod_json(name: str, scheduler: str = "default-scheduler", claim: str = "used") -> Json:
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {
            "schedulerName": scheduler,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
        },
    }


class Cluster:
    """The objects of a cluster with claims in order, and changes that break them."""

    def __init__(self) -> None:
        self.classes = [class_json("true", "another"), class_json("device.driver == 'a'")]
        self.slices = [slice_json("GPU-1", allowMultipleAllocations=True)]
        self.claims = [claim_json("used", driver=DRIVER), claim_json("pending")]
        self.pods = [pod_json("runs"), pod_json("waits", claim="pending")]
        self.policies: dict[str, list[str]] = {}
        self.facts = healthy(
            extender=extender(samples={SERVED: 1.0}),
            rights=RIGHTS | dict.fromkeys(CLAIMS_RIGHTS, True),
            api=ApiServer("v1.37.0", 37),
        )

    def seen(self) -> Facts:
        claims = ListedClaims(
            selectors=read_selectors(self.classes),
            drivers=read_drivers(self.slices),
            claims=read_claims(self.claims),
            namespaces=frozenset({"team"}),
            left_over=tuple(
                name
                for kind, names in self.policies.items()
                for name in read_left_over(kind, [{"metadata": {"name": one}} for one in names])
            ),
        )
        pods = read_pods(self.pods, ALIYUN, NOW)
        return replace(self.facts, claims=claims, pods=pods)

    def findings(self) -> Mapping[str, Finding]:
        return {finding.check: finding for finding in check_claims(self.seen())}


def test_a_cluster_whose_claims_are_well_has_no_finding() -> None:
    answer = Cluster().findings()
    assert {finding.level for finding in answer.values()} == {"ok"}, answer
    assert "1 device of gpu.nvidia.com on 1 node" in answer["claims-devices"].message


def test_each_check_is_explained() -> None:
    text = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    items = set(re.findall(r"^\| `(claims-[a-z-]+)` \|", text, re.MULTILINE))
    assert items == {*Cluster().findings(), "claims-left-over"}


def test_where_claims_are_not_used_nothing_is_said() -> None:
    assert list(check_claims(healthy())) == []
    unread = Unread("claims cannot be read: 403", level="warn")
    assert list(check_claims(healthy(claims=unread))) == []
    foreign_claims = ListedClaims(drivers=read_drivers([slice_json("GPU-1")]))
    assert list(check_claims(healthy(claims=foreign_claims))) == []


def test_claims_that_cannot_be_read_are_told_where_an_extender_ranks_for_them() -> None:
    unread = Unread("claims cannot be read: 403", level="warn")
    (finding,) = check_claims(healthy(extender=extender(samples={SERVED: 0.0}), claims=unread))
    assert (finding.check, finding.level) == ("claims-class", "warn")


def test_claims_of_other_classes_need_no_class_of_ours() -> None:
    cluster = Cluster()
    del cluster.classes[1]
    cluster.claims = [claim_json("used", class_name="gpu.nvidia.com", driver=DRIVER)]
    assert {finding.level for finding in cluster.findings().values()} == {"ok"}
    cluster.claims += [
        {
            "metadata": {"name": "choice", "namespace": "team"},
            "spec": {
                "devices": {"requests": [{"firstAvailable": [{"deviceClassName": "gpushare.io"}]}]}
            },
        }
    ]
    assert cluster.findings()["claims-class"].level == "fail"


def _false_class(cluster: Cluster) -> None:
    cluster.classes[1] = class_json("false")


def _no_class(cluster: Cluster) -> None:
    del cluster.classes[1]


def _no_slices(cluster: Cluster) -> None:
    cluster.slices = [slice_json("GPU-1", driver="gpu.example.com")]


def _empty_slices(cluster: Cluster) -> None:
    cluster.slices = [slice_json()]


def _old(cluster: Cluster) -> None:
    cluster.facts = replace(cluster.facts, api=ApiServer("v1.35.2", 35))


def _one_card_twice(cluster: Cluster) -> None:
    _both_worlds(cluster, "GPU-1")


def _one_node_twice(cluster: Cluster) -> None:
    _both_worlds(cluster, "GPU-2")


def _both_worlds(cluster: Cluster, uuid: str) -> None:
    text = f'{{"v": 1, "unit": "GiB", "devices": [{{"mem": 32, "uuid": "{uuid}"}}]}}'
    node = read_node(node_json(name="n2", count="1", inventory=text), ALIYUN, "GiB")
    cluster.facts = replace(cluster.facts, nodes=(node,))


def _no_right(cluster: Cluster) -> None:
    cluster.facts = replace(cluster.facts, rights=RIGHTS, own_account=False)


def _own_no_right(cluster: Cluster) -> None:
    cluster.facts = replace(cluster.facts, rights=RIGHTS)


def _fence(cluster: Cluster) -> None:
    cluster.policies = {"validatingadmissionpolicies": ["gpushare-claims", "of-somebody"]}


def _rewrites(cluster: Cluster) -> None:
    cluster.policies = {"mutatingadmissionpolicies": ["gpushare-claims-pods"]}


def _finalizers(cluster: Cluster) -> None:
    cluster.policies = {"mutatingadmissionpolicies": ["gpushare-claims-protect"]}


def _two_schedulers(cluster: Cluster) -> None:
    cluster.pods[1]["spec"]["schedulerName"] = "gpushare-scheduler"


def _another_scheduler(cluster: Cluster) -> None:
    for pod in cluster.pods:
        pod["spec"]["schedulerName"] = "volcano"


@pytest.mark.parametrize(
    ("harm", "check", "level", "text"),
    [
        (_false_class, "claims-class", "fail", 'has the selector "false"'),
        (_no_class, "claims-class", "fail", "there is no DeviceClass gpushare.io"),
        (_no_slices, "claims-devices", "fail", "there are slices of gpu.example.com"),
        (_empty_slices, "claims-devices", "fail", "no ResourceSlice has a device"),
        (_old, "claims-version", "warn", "this is Kubernetes 1.35"),
        (_one_card_twice, "claims-nodes", "fail", "GPU-1 on n2: a device plug-in and the driver"),
        (_one_node_twice, "claims-nodes", "warn", "n2: devices of a device plug-in"),
        (_no_right, "claims-rights", "warn", "may not list deviceclasses.resource.k8s.io"),
        (_own_no_right, "claims-rights", "fail", "the extender's account may not"),
        (_fence, "claims-left-over", "fail", "keeps pods with claims pending"),
        (_rewrites, "claims-left-over", "fail", "keeps pods with claims pending"),
        (_finalizers, "claims-left-over", "warn", "nothing uses it"),
        (
            _two_schedulers,
            "claims-schedulers",
            "warn",
            "gpu.nvidia.com name default-scheduler (1), gpushare-scheduler (1): kube-schedulers",
        ),
        (_another_scheduler, "claims-schedulers", "warn", "2 pods with claims in labelled"),
    ],
)
def test_what_is_wrong_is_said_by_one_check_alone(
    harm: Callable[[Cluster], None], check: str, level: str, text: str
) -> None:
    cluster = Cluster()
    harm(cluster)
    answer = cluster.findings()
    ill = {name: finding.level for name, finding in answer.items() if finding.level != "ok"}
    assert ill == {check: level}
    assert text in answer[check].message
    assert answer[check].todo


def test_the_command_that_removes_what_is_left_over_names_all_of_it() -> None:
    cluster = Cluster()
    for name in sorted(LEFT_OVER):
        kind, _, one = name.partition("/")
        cluster.policies.setdefault(kind, []).append(one)
    todo = cluster.findings()["claims-left-over"].todo
    assert todo.split()[:2] == ["kubectl", "delete"]
    assert {*todo.split()[2:]} == LEFT_OVER


def test_objects_that_are_left_over_are_told_without_the_class() -> None:
    facts = ListedClaims(left_over=("validatingadmissionpolicybindings/gpushare-claims",))
    (finding,) = check_claims(healthy(claims=facts))
    assert (finding.check, finding.level) == ("claims-left-over", "fail")


def test_profiles_of_one_file_are_one_scheduler() -> None:
    cluster = Cluster()
    _two_schedulers(cluster)
    file = cluster.facts.scheduler
    assert isinstance(file, SchedulerFile)
    assert file.config.scheduler_names == ("default-scheduler",)
    assert cluster.findings()["claims-schedulers"].level == "warn"
    config = replace(
        file.config,
        profiles=tuple(
            replace(file.config.profiles[0], scheduler_name=name)
            for name in ("default-scheduler", "gpushare-scheduler")
        ),
    )
    cluster.facts = replace(cluster.facts, scheduler=replace(file, config=config))
    assert cluster.findings()["claims-schedulers"].level == "ok"


def test_claims_of_other_drivers_and_claims_that_are_to_be_made_count_for_no_scheduler() -> None:
    cluster = Cluster()
    cluster.claims.append(claim_json("nic", class_name="nic", driver="nic.example.com"))
    second = pod_json("with-nic", "volcano", "nic")
    second["metadata"]["namespace"] = "elsewhere"
    changes = pod_json("made", "volcano", "")
    changes["metadata"]["namespace"] = "elsewhere"
    changes["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    cluster.pods += [second, changes]
    assert cluster.findings()["claims-schedulers"].level == "ok"
    changes["status"] = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "made-1"}]}
    changes["metadata"]["namespace"] = "team"
    cluster.claims.append(claim_json("made-1"))
    assert cluster.findings()["claims-schedulers"].level == "warn"


def test_without_an_extender_the_driver_is_not_known() -> None:
    cluster = Cluster()
    cluster.facts = replace(cluster.facts, extender=None)
    levels = {name: finding.level for name, finding in cluster.findings().items()}
    assert levels.pop("claims-devices") == "skip"
    assert {*levels.values()} == {"ok"}


def test_kinds_that_may_not_be_listed_are_told() -> None:
    facts = ListedClaims(selectors=("true",), forbidden=("namespaces",))
    answer = {finding.check: finding for finding in check_claims(healthy(claims=facts))}
    assert answer["claims-left-over"].level == "skip"
    assert "may not list namespaces" in answer["claims-left-over"].message
    assert list(check_claims(healthy(claims=ListedClaims(forbidden=("namespaces",))))) == []


def test_what_was_not_read_is_skipped() -> None:
    cluster = Cluster()
    unread = Unread("not read", level="skip")
    cluster.facts = replace(cluster.facts, nodes=unread, rights=unread)
    facts = replace(cluster.seen(), pods=unread)
    levels = {finding.check: finding.level for finding in check_claims(facts)}
    skipped = {check for check, level in levels.items() if level == "skip"}
    assert skipped == {"claims-nodes", "claims-schedulers", "claims-rights"}


def test_devices_without_a_uuid_and_slices_of_many_nodes_are_counted() -> None:
    many = {"spec": {"driver": DRIVER, "allNodes": True, "devices": [{"name": "a"}]}}
    facts = read_drivers([slice_json("", "GPU-1"), many])
    assert facts == {DRIVER: ListedDriver({"n2": frozenset({"GPU-1"})}, 3, 0)}
