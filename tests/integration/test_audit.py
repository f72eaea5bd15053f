"""The audit against a served API: quiet while the cluster moves, and right about real mistakes."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.core.model import ObservedPod, PodRef, Request
from gpushare.core.policy import load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.core.states.entry import Phase
from gpushare.extender.follow.auditor import Auditor
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.kube.client import connect
from gpushare.wire.annotations import ALIYUN
from tests.integration.cluster import Cluster, Json
from tests.integration.conftest import StartExtender
from tests.integration.wired import Wired
from tests.support.waiting import poll


class Audited:
    """A wired extender, its auditor, and the auditor's findings."""

    def __init__(self, wired: Wired, cluster: Cluster, folder: Path) -> None:
        self.wired, self.cluster = wired, cluster
        self.found: list[tuple[str, bool]] = []
        self.client = connect(cluster.kubeconfig(folder), pool_size=2, user_agent="audit")
        rankings = {name: Ranking(load_policy(name)) for name in policy_names()}
        resources = ManagedResources(
            (ManagedResource(ALIYUN, wired.ledger, rankings, "device-bestfit"),)
        )
        self.auditor = Auditor(
            self.client,
            resources,
            "GiB",
            not_ready=wired.readiness.not_ready,
            watch_version=wired.readiness.last_resource_version,
            report=lambda finding, healed: self.found.append((finding.what, healed)),
            pause=0.0,
        )

    def audit_twice(self) -> None:
        """Two audits; between them the watches come to the version of the first list."""
        self.auditor.audit()
        mark = self.cluster.pod(1)["metadata"]["resourceVersion"]
        self.cluster.annotate_node(self.cluster.node(total=0), "x", "y")

        def caught_up() -> bool:
            result = [
                self.wired.readiness.last_resource_version(name) for name in ("nodes", "pods")
            ]
            return all(version and int(version) >= int(mark) for version in result)

        poll(caught_up, "the watches have caught up")
        self.auditor.audit()


@pytest.fixture
def audited(wired: Wired, cluster: Cluster, tmp_path: Path) -> Iterator[Audited]:
    audited = Audited(wired, cluster, tmp_path)
    yield audited
    audited.client.close()


def place(audited: Audited, units: int, node: str) -> Json:
    pod = audited.cluster.pod(units)
    assert audited.wired.bind(pod, node) == ""
    return pod


def test_while_pods_come_and_go_the_audit_finds_nothing(audited: Audited) -> None:
    node = audited.cluster.node(devices=4, total=64)
    audited.wired.knows(node)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            pods = [place(audited, 3, node) for _ in range(4)]
            for pod in pods:
                audited.cluster.delete_pod(pod)
            # The watch may show the deletions late; the next pods need room.
            poll(lambda: sum(audited.wired.used(node)) <= 48, "most pods are gone from the books")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(30):
            audited.auditor.audit()
    finally:
        stop.set()
        thread.join(20)
    audited.audit_twice()
    assert audited.found == []
    assert audited.auditor.state()["audits_total"] == 32


def test_a_pod_that_the_books_lost_is_charged_again(audited: Audited) -> None:
    node = audited.cluster.node()
    audited.wired.knows(node)
    pod = place(audited, 5, node)
    uid = pod["metadata"]["uid"]

    def shown() -> bool:
        entry = audited.wired.ledger.entry(uid)
        return entry is not None and entry.phase is Phase.BOUND

    poll(shown, "the watch has shown the pod bound, and will not again")
    audited.wired.ledger.pod_gone(uid)
    assert sum(audited.wired.used(node)) == 0
    audited.audit_twice()
    assert audited.found == [("not charged", True)]
    audited.wired.agrees(audited.cluster)


def test_a_charge_of_a_pod_that_is_gone_is_told_and_kept(audited: Audited) -> None:
    node = audited.cluster.node()
    audited.wired.knows(node)
    ghost = PodRef("default", "ghost", "uid-ghost")
    audited.wired.ledger.pod_changed(ObservedPod(ghost, Request(7, 1), node, ((0, 7),)))
    audited.audit_twice()
    assert audited.found == [("charged although it is gone", False)]
    assert audited.wired.used(node) == [7, 0]
    audited.wired.pods.request_relist()
    audited.wired.agrees(audited.cluster)


def test_a_node_that_the_books_think_too_large_is_narrowed(audited: Audited) -> None:
    node = audited.cluster.node(total=32)
    audited.wired.knows(node)
    spec = audited.wired.ledger.entries_and_specs()[1][node]
    wrong = type(spec)(spec.name, (99, 99), spec.healthy, spec.models, spec.uuids)
    audited.wired.ledger.node_changed(wrong)
    audited.audit_twice()
    assert audited.found == [("other devices than the node has", True)]
    assert audited.wired.ledger.entries_and_specs()[1][node].capacity == (16, 16)


def test_a_real_process_tells_of_its_audits_in_its_probes_and_metrics(
    start_extender: StartExtender,
) -> None:
    extender = start_extender()
    extender.wait_ready()
    assert b"[+]audit ok" in extender.probe("/livez?verbose").body
    metrics = extender.probe("/metrics").body
    assert b"gpushare_audit_findings 0.0" in metrics
