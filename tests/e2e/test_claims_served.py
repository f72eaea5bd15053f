"""`gpushare serve --claims` on a real control plane: the real process allocates.

Needs a kube-scheduler of 1.36 or later. CLAIMS=500 in the environment has so many claims of random
sizes, where CI has 40, and ten ends of the process, of 16 s each: five minutes.
"""

import json
import os
import random
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpushare.kube.client import connect
from gpushare.kube.listwatch import ListWatch
from gpushare.kube.reflector import Reflector
from gpushare.wire.codec import Decoded, WatchEvent
from gpushare.wire.dra.claims import given_devices
from gpushare.wire.dra.objects import RESOURCE_CLAIMS, ResourceClaim
from tests.contract.apiserver.client import Json
from tests.e2e.binaries import RELEASE, needed
from tests.e2e.claims import API, CLAIMS, CLASS, DRIVER, OurWorld
from tests.e2e.conftest import MakePlane
from tests.e2e.extender import GPUSHARE, Extender
from tests.e2e.objects import fresh
from tests.e2e.pair import printed
from tests.e2e.plane import ADMIN
from tests.e2e.processes import until
from tests.e2e.world import account_token, give_lease_away
from tests.integration.process import free_port

GIB, MOST = 2**30, 10**6
HOST = "kubernetes.io/hostname"
_FIRST = 36
MANY = int(os.environ.get("CLAIMS", "40"))
_ENDS = 5 if MANY == 40 else 10
"""How often the process is killed."""

pytestmark = pytest.mark.skipif(
    int(RELEASE.split(".")[1]) < _FIRST, reason=f"claims are allocated from outside from 1.{_FIRST}"
)


class Served(OurWorld):
    """A world of claims with our process."""

    def __init__(self, make_plane: MakePlane, folder: Path) -> None:
        super().__init__(make_plane(), folder)
        port = free_port()
        file = folder / "scheduler.yaml"
        file.write_text(printed(RELEASE, "--url", f"http://127.0.0.1:{port}/gpushare-scheduler"))
        self.extender = Extender(
            folder,
            port,
            self.plane.kubeconfig("extender", account_token(self.api)),
            *("--scheduler-config", str(file), "--claims", DRIVER),
        )
        give_lease_away(self.api)
        self.extender.start()

    def command(self, *words: str) -> Json:
        """What a command of ours answers."""
        done = subprocess.run(
            [*GPUSHARE, *words, "--kubeconfig", str(self.plane.kubeconfig(ADMIN))],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"KUBECTL": str(needed("kubectl"))},
        )
        assert done.stdout, done.stderr
        found: Json = json.loads(done.stdout)
        return found

    def uuids(self, claim: str) -> set[str]:
        """The cards of an allocated claim."""
        status = self.read(claim).status
        assert status
        assert status.allocation
        cards = self.cards()
        return {cards[each.key].uuid for each in given_devices(status.allocation)}


class Watched:
    """What a watch saw of claims: after each event, what each card has given out, in GiB.

    It counts by itself, by what the slices say, and in the order of the API server.
    """

    def __init__(self, world: Served) -> None:
        self._cards = {key: (card.uuid, card.node) for key, card in world.cards().items()}
        self._given: dict[str, dict[str, int]] = {}
        self.most: dict[str, int] = defaultdict(int)
        self.nodes: dict[str, list[str]] = defaultdict(list)
        client = connect(str(world.plane.kubeconfig(ADMIN)), None, pool_size=2, user_agent="test")
        self._reflector = Reflector(
            client, ListWatch(f"{API}/resourceclaims", RESOURCE_CLAIMS), self
        )

    def __enter__(self) -> "Watched":
        self._reflector.start()
        until(lambda: self._reflector.status.synced, "claims are not listed")
        return self

    def __exit__(self, *_: object) -> None:
        self._reflector.stop()

    def replace(self, pages: Sequence[Decoded[ResourceClaim]], started: float) -> None:
        self._given = {}
        for page in pages:
            for claim in page.items:
                self._see(claim)

    def apply(self, event: WatchEvent[ResourceClaim]) -> None:
        assert event.object
        if event.kind == "DELETED":
            self._given.pop(_name(event.object), None)
        else:
            self._see(event.object)

    def given(self) -> list[dict[str, int]]:
        """What each claim has."""
        return list(self._given.values())

    def used(self) -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        for given in self.given():
            for uuid, gib in given.items():
                found[uuid] += gib
        return found

    def _see(self, claim: ResourceClaim) -> None:
        name, given = _name(claim), {}
        allocation = claim.status and claim.status.allocation
        for each in given_devices(allocation) if allocation else ():
            uuid, node = self._cards[each.key]
            given[uuid] = (each.memory or MOST * GIB) // GIB
            if self.nodes[name][-1:] != [node]:
                self.nodes[name].append(node)
        self._given[name] = given
        for uuid, gib in self.used().items():
            self.most[uuid] = max(self.most[uuid], gib)


def _name(claim: ResourceClaim) -> str:
    assert claim.metadata
    assert claim.metadata.name
    return claim.metadata.name


@pytest.fixture
def served(served_world: Served) -> Iterator[Served]:
    yield served_world
    if not served_world.extender.ready():
        served_world.extender.kill()
        served_world.extender.start()
    served_world.clear()


def test_three_claims_are_bound_where_first_fit_leaves_one_waiting(served: Served) -> None:
    node = served.node(80, 24)
    names, pods = [], []
    for gib in (10, 10, 80):
        names.append(served.claim(gib))
        pods.append(served.pod(names[-1]))
        served.bound(pods[-1:])
    assert [served.uuids(name) for name in names] == [
        {f"GPU-{node}-1"},
        {f"GPU-{node}-1"},
        {f"GPU-{node}-0"},
    ]


def test_what_was_allocated_before_it_died_is_counted_by_the_next(served: Served) -> None:
    served.node(80)
    first = served.pod(served.claim(50))
    served.bound([first])
    served.extender.kill()
    late = served.claim(50)
    waiting = served.pod(late)
    served.extender.start()
    fits = served.pod(served.claim(30))
    served.bound([fits])
    served.waits(late, allocated=False)
    served.objects.delete(first)
    served.bound([waiting])


def test_a_gang_has_devices_for_all_its_pods_or_for_none(served: Served) -> None:
    served.node(80, 24)
    gang = {
        "scheduling.x-k8s.io/pod-group": fresh("gang"),
        "pod-group.scheduling.sigs.k8s.io/min-available": "3",
    }
    names = [served.claim(24), served.claim(40), served.claim(40)]
    pods = [served.pod(name, labels=gang) for name in names[:2]]

    def why() -> str:
        name, url = pods[0]["metadata"]["name"], served.extender.health_url
        found = served.command("explain", name, "--extender", url, "-o", "json")
        return str(found["waits"])

    until(lambda: why() == "its group needs 3 pods at once: 2 are there", why)
    # What comes later and fits is given devices, so the gang was tried, and has none.
    alone = served.claim(24)
    other = served.pod(alone)
    served.bound([other])
    for name in names:
        served.waits(name, allocated=False)
    pods.append(served.pod(names[2], labels=gang))
    until(lambda: why() == "its group needs devices for 3 pods at once: 2 fit now", why)
    for name in names:
        served.waits(name, allocated=False)
    served.objects.delete(other)
    served.bound(pods)


def test_a_pod_of_higher_priority_evicts_nobody_and_comes_first(served: Served) -> None:
    served.objects.priority("claims-high", 1000)
    served.node(80)
    holder = served.pod(served.claim(80))
    served.bound([holder])
    low = served.claim(80)
    served.pod(low)
    high = served.pod(served.claim(80), priorityClassName="claims-high")
    served.objects.refusal(high, "cannot allocate all claims")
    # kube-scheduler's preemption has been tried by then, and knows of nobody whose end would help.
    assert not served.objects.get(holder)["metadata"].get("deletionTimestamp")
    assert not served.objects.get(high)["status"].get("nominatedNodeName")
    served.objects.delete(holder)
    served.bound([high])
    served.waits(low, allocated=False)


def test_who_waits_is_told_why_and_commands_say_who_holds_the_card(served: Served) -> None:
    node = served.node(80)
    holds, late = served.claim(50), served.claim(40)
    first = served.pod(holds)
    served.bound([first])
    waiting = served.pod(late)
    selector = f"involvedObject.uid={waiting['metadata']['uid']},reason=GPUShareNoFit"
    said: list[str] = []

    def told() -> bool:
        events = served.api.get("/api/v1/namespaces/default/events", fieldSelector=selector)
        said[:] = [str(event["message"]) for event in events.body["items"]]
        return bool(said)

    until(told, lambda: served.extender.log)
    assert f"take the pod with its claim default/{late}: " in said[0]
    assert f"on {node} once claim default/{holds} (50 GiB) is freed" in said[0]

    claims = served.command("inspect", node, "-o", "json")["claims"]
    (shown,) = claims["nodes"]
    assert (shown["name"], [each["allocated"] for each in shown["devices"]]) == (node, [50])
    assert [(each["name"], each["pods"]) for each in claims["claims"]] == [
        (holds, [first["metadata"]["name"]])
    ]
    name = waiting["metadata"]["name"]
    url = served.extender.health_url
    explained = served.command("explain", name, "--extender", url, "-o", "json")
    assert explained["claims"][0]["state"] == "waiting"
    findings = served.command("doctor", "--extender", url, "-o", "json")["findings"]
    levels = {each["check"]: each["level"] for each in findings if "claims" in each["check"]}
    assert len(levels) == 7
    assert set(levels.values()) == {"ok"}, findings


def test_what_kube_scheduler_takes_back_is_allocated_elsewhere(served: Served) -> None:
    tight, wide = served.node(24), served.node(80)
    for node in (tight, wide):
        served.objects.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {HOST: node}}})
    other = served.objects.pod(0, nodeName=tight)
    served.objects.patch(served.objects.path(other), {"metadata": {"labels": {"app": "other"}}})
    # What other pods forbid is kube-scheduler's alone.
    apart = {"labelSelector": {"matchLabels": {"app": "other"}}, "topologyKey": HOST}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    name = served.claim(10)
    has = [{"name": "gpu", "resourceClaimName": name}]
    with Watched(served) as watched:
        pod = served.objects.pod(0, resourceClaims=has, affinity=affinity)
        served.bound([pod])
    assert served.objects.node_of(pod) == wide
    assert served.uuids(name) == {f"GPU-{wide}-0"}
    assert watched.nodes[name] == [tight, wide]


# The API server passes it on to the letter; a strict reader can read nothing of a list with it.
HALF_A_PAIR = b'{"a":"\\ud800"}'


def test_what_one_tenant_writes_into_a_claim_keeps_no_other_waiting(served: Served) -> None:
    served.node(80, 24)
    odd = fresh("claim")
    opaque = {"driver": DRIVER, "parameters": "PARAMETERS"}
    asked = {"deviceClassName": CLASS, "capacity": {"requests": {"memory": "10Gi"}}}
    devices = {"requests": [{"name": "gpu", "exactly": asked}], "config": [{"opaque": opaque}]}
    body = json.dumps({"metadata": {"name": odd}, "spec": {"devices": devices}}).encode()
    raw = body.replace(b'"PARAMETERS"', HALF_A_PAIR)
    reply = served.api.call("POST", CLAIMS, raw=raw, content_type="application/json")
    assert reply.status == 201, reply.body
    waiting = served.pod(odd)
    served.extender.kill()  # all is listed anew
    served.extender.start()
    two = [served.claim(gib) for gib in (24, 80)]
    has = [{"name": each, "resourceClaimName": each} for each in two]
    served.bound([served.objects.pod(0, resourceClaims=has)])
    assert not served.objects.node_of(waiting)
    until(lambda: "cannot be read" in served.extender.log, lambda: served.extender.log)


def test_without_its_fence_nothing_is_given_out(served: Served) -> None:
    served.node(80)
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    binding = served.api.get(f"{path}/gpushare-claims").body
    served.api.delete(f"{path}/gpushare-claims")
    served.extender.kill()
    served.extender.start()
    waiting = served.pod(name := served.claim(10))
    until(lambda: "no binding makes" in served.extender.log, lambda: served.extender.log)
    served.waits(name, allocated=False)
    meta = {"name": "gpushare-claims", "labels": binding["metadata"]["labels"]}
    served.api.create(path, {"metadata": meta, "spec": binding["spec"]})
    served.bound([waiting])


def test_a_node_of_both_worlds_takes_nothing_new(served: Served) -> None:
    node = served.node(80)
    amounts = {"aliyun.com/gpu-mem": "80", "aliyun.com/gpu-count": "1"}
    status = {"status": {"capacity": amounts, "allocatable": amounts}}
    served.objects.patch(f"/api/v1/nodes/{node}/status", status)
    name = served.claim(10)
    waiting = served.pod(name)
    until(lambda: "no node has room" in served.extender.log, lambda: served.extender.log)
    served.waits(name, allocated=False)
    free = served.node(24)
    served.bound([waiting])
    assert served.objects.node_of(waiting) == free
    assert served.uuids(name) == {f"GPU-{free}-0"}


@pytest.mark.timeout(600 + MANY)
def test_no_card_has_more_than_it_has_whenever_the_process_dies(served: Served) -> None:
    chance = random.Random(38)
    cards = ((80, 24), (80, 40), (24, 16)) * (MANY // 40)
    nodes = [(served.node(*gibs), gibs) for gibs in cards]
    sizes = {f"GPU-{node}-{at}": gib for node, gibs in nodes for at, gib in enumerate(gibs)}
    pods: dict[str, Json] = {}
    asked: dict[str, int] = {}
    allocated: list[int] = []
    with Watched(served) as watched:
        for _ in range(_ENDS):
            for _ in range(MANY // _ENDS):
                name = served.claim(gib := chance.choice((2, 5, 9, 14, 22, 40, 66)))
                asked[name], pods[name] = gib, served.pod(name)
                if chance.random() < 0.3:
                    served.objects.delete(pods.pop(chance.choice(sorted(pods))))
            time.sleep(chance.random() * 0.3)
            served.extender.kill()
            allocated.append(sum(map(bool, watched.given())))
            served.extender.start()

        def settled() -> bool:
            used = watched.used()
            free = max(gib - used.get(uuid, 0) for uuid, gib in sizes.items())
            waiting = [asked[name] for name, pod in pods.items() if not served.objects.node_of(pod)]
            return free < min(waiting, default=MOST)

        until(settled, lambda: f"{watched.used()} {served.extender.log[-4000:]}", 60 + MANY / 5)
    bound = sum(bool(served.objects.node_of(pod)) for pod in pods.values())
    print(f"{MANY} claims, {len(allocated)} ends: {allocated}; {len(pods)} pods, {bound} bound")
    assert all(allocated), "it died before it had allocated anything"
    assert watched.most.keys() == sizes.keys()
    assert all(watched.most[uuid] <= gib for uuid, gib in sizes.items())


def test_a_shared_claim_is_charged_once(served: Served) -> None:
    served.node(80)
    name = served.claim(40)
    pods = [served.pod(name) for _ in range(2)]
    served.bound(pods)
    other = served.pod(served.claim(40))
    served.bound([other])
    late = served.claim(1)
    served.pod(late)
    served.waits(late, allocated=False)
