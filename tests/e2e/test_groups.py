"""Groups of pods on a real kube-scheduler: bound whole or not at all.

Without any plug-in, as JobSet, LeaderWorkerSet and Job make them; with the coscheduling plug-in
(`make coscheduling`); and while the extender is killed or loses its Lease.
"""

import os
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.contract.apiserver.client import MERGE, Api, Json
from tests.e2e.binaries import RELEASE, needed, tool
from tests.e2e.claims import CLASSES, SLICES
from tests.e2e.conftest import MakePlane
from tests.e2e.groups import (
    JOB_SETS,
    LEADER_WORKER_SETS,
    POD_GROUPS,
    Make,
    TornGroups,
    define,
    job,
    job_owner,
    job_set,
    leader_worker_set,
    member,
    name_of,
    pod_group,
    with_claims,
)
from tests.e2e.objects import NODES, fresh
from tests.e2e.plane import SCHEDULER
from tests.e2e.processes import PATIENCE, until
from tests.e2e.world import World, give_lease_away

_PORTED_TO = "1.37"
"""The release of Kubernetes that the coscheduling plug-in of the tests is built with."""
_TORN_AFTER = 5000
"""Milliseconds while several Bindings may be under way on a busy machine."""
_ROUNDS = int(os.environ.get("GANGS", "2"))
"""Rounds of several groups; the long proof has more: GANGS=14 make e2e PYTEST="-k test_groups"."""
_LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/gpushare-extender"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_OPEN = "tests/open"
"""A label of nodes."""
_QUIET = 2.0
"""Seconds while no further pod of a waiting group may be bound."""

_FIRST_WITH_CLAIMS = 34
_DRIVER = "cards.example.com"
_LAST = "      - name: aliyun.com/gpu-mem.percentage\n        ignoredByScheduler: true\n"
_BINDS_EVERY_POD = {
    "urlPrefix: ": "urlPrefix: &ours ",
    "    bindVerb: bind\n": "",
    _LAST: f"{_LAST}  - urlPrefix: *ours\n    bindVerb: bind\n    httpTimeout: 60s\n",
}
"""The second entry has no managedResources."""
_COSCHEDULING = """profiles:
  - schedulerName: default-scheduler
    plugins:
      queueSort:
        enabled: [{name: Coscheduling}]
        disabled: [{name: "*"}]
      multiPoint:
        enabled: [{name: Coscheduling}]
    pluginConfig:
      - name: Coscheduling
        args: {permitWaitingTimeSeconds: 5, podGroupBackoffSeconds: 0}
"""


@pytest.fixture(scope="module")
def group_world(make_plane: MakePlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A plain kube-scheduler and our extender, where the kinds are that size groups."""
    plane = make_plane()
    for kind in (JOB_SETS, LEADER_WORKER_SETS, POD_GROUPS):
        define(plane.api(), *kind)
    world = World(plane, tmp_path_factory.mktemp("groups"), flags=("--leadership", "lease"))
    give_lease_away(world.api)
    try:
        world.start()
        yield world
    finally:
        world.stop()


@pytest.fixture(scope="module")
def coscheduling_world(
    make_plane: MakePlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """kube-scheduler with the coscheduling plug-in, and our extender."""
    if not RELEASE.startswith(_PORTED_TO):
        pytest.skip(f"the coscheduling plug-in is built for {_PORTED_TO}")
    program = tool("coscheduling")
    plane = make_plane()
    define(plane.api(), *POD_GROUPS)
    _let_read_pod_groups(plane.api())
    world = World(
        plane,
        tmp_path_factory.mktemp("coscheduling"),
        program=program,
        change={"profiles:\n  - schedulerName: default-scheduler\n": _COSCHEDULING},
        flags=("--leadership", "off"),
    )
    try:
        world.start()
        yield world
    finally:
        world.stop()


@pytest.fixture(scope="module")
def claims_world(
    make_plane: MakePlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A plain kube-scheduler that has our extender bind every pod, and a driver of four cards."""
    plane = make_plane()
    world = World(
        plane,
        tmp_path_factory.mktemp("claims"),
        change=_BINDS_EVERY_POD,
        flags=("--leadership", "off"),
    )
    node = world.objects.node(devices=0)
    devices = [{"name": f"card-{number}"} for number in range(4)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    slices = {"driver": _DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    world.api.create(SLICES, {"metadata": {"name": "cards"}, "spec": slices})
    selector = {"cel": {"expression": f"device.driver == '{_DRIVER}'"}}
    world.api.create(CLASSES, {"metadata": {"name": _DRIVER}, "spec": {"selectors": [selector]}})
    controllers = plane.start_controllers(
        needed("kube-controller-manager"), "resourceclaim-controller"
    )
    try:
        world.start()
        yield world
    finally:
        controllers.kill()
        world.stop()


def _let_read_pod_groups(api: Api) -> None:
    """Give kube-scheduler the rights of the plug-in."""
    rules = [{"apiGroups": [POD_GROUPS[0]], "resources": ["podgroups"], "verbs": ["*"]}]
    api.create(f"{_RBAC}/clusterroles", {"metadata": {"name": "coscheduling"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "coscheduling"}
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": SCHEDULER}
    body = {"metadata": {"name": "coscheduling"}, "roleRef": role, "subjects": [user]}
    api.create(f"{_RBAC}/clusterrolebindings", body)


def test_groups_of_controllers_are_bound_whole_by_a_plain_kube_scheduler(
    group_world: World,
) -> None:
    """Each round: three groups of three pods, and four places."""
    kinds: Sequence[Make] = (job_set, leader_worker_set, job)
    with TornGroups(group_world.api) as watch:
        for _ in range(_ROUNDS):
            _compete(group_world, watch, kinds, size=3)
    print(f"{len(kinds) * _ROUNDS} groups; bound in part for at most {_most(watch)} ms")
    assert _torn(watch) == {}


def test_groups_with_claims_are_bound_whole_where_we_bind_every_pod(claims_world: World) -> None:
    """Each round: two groups of three pods with a claim each, and four cards.

    The second group comes once the first one is whole: kube-scheduler 1.37 gives the cards of a pod
    that is refused at bind to nobody else, so two groups with two cards each would wait for ever.
    """
    with TornGroups(claims_world.api) as watch:
        for _ in range(_ROUNDS):
            groups = [with_claims(claims_world.objects, _DRIVER, 3)]
            watch.expect(groups[0])
            until(lambda: 3 in watch.bound().values(), claims_world.told)
            groups.append(with_claims(claims_world.objects, _DRIVER, 3))
            watch.expect(groups[1])
            while groups:
                _one_is_bound_whole(claims_world, watch, groups)
    print(f"{2 * _ROUNDS} groups with claims; bound in part for at most {_most(watch)} ms")
    assert _torn(watch) == {}


def test_groups_of_the_coscheduling_plug_in_are_bound_whole(coscheduling_world: World) -> None:
    """Each round: a group of five pods, one of four and one of three, and four places."""
    with TornGroups(coscheduling_world.api) as watch:
        for _ in range(_ROUNDS):
            _round_with_one_too_large(coscheduling_world, watch)
    print(f"{3 * _ROUNDS} groups; bound in part for at most {_most(watch)} ms")
    assert _torn(watch) == {}


def test_a_group_that_waits_when_the_extender_is_killed_is_not_torn(group_world: World) -> None:
    node = group_world.objects.node(devices=4, units=16)
    with TornGroups(group_world.api) as watch:
        for _ in range(_ROUNDS):
            pods = _a_group_that_waits_at_bind(group_world, watch)
            group_world.extender.kill()
            group_world.extender.start()
            _is_bound_whole_after_all(group_world, watch, pods, node)
    print(f"killed {_ROUNDS} times; bound in part for at most {_most(watch)} ms")
    _empty(group_world)
    assert _torn(watch) == {}


def test_a_group_that_waits_when_the_leader_changes_is_not_torn(group_world: World) -> None:
    node = group_world.objects.node(devices=4, units=16)
    with TornGroups(group_world.api) as watch:
        for _ in range(_ROUNDS):
            pods = _a_group_that_waits_at_bind(group_world, watch)
            _write_lease(group_world, holder="another", seconds=60)
            until(lambda: not group_world.extender.ready(), group_world.told)
            _write_lease(group_world, holder="", seconds=1)
            group_world.extender.wait_ready()
            _is_bound_whole_after_all(group_world, watch, pods, node)
    print(f"another led {_ROUNDS} times; bound in part for at most {_most(watch)} ms")
    _empty(group_world)
    assert _torn(watch) == {}


def _compete(world: World, watch: TornGroups, kinds: Sequence[Make], size: int) -> None:
    """Let groups compete for four places, until each was bound whole once."""
    for _ in range(2):
        world.objects.node(devices=2, units=16)
    groups = [make(world.objects, 10, size) for make in kinds]
    for pods in groups:
        watch.expect(pods)
    while groups:
        _one_is_bound_whole(world, watch, groups)
    _empty(world)


def _round_with_one_too_large(world: World, watch: TornGroups) -> None:
    for _ in range(2):
        world.objects.node(devices=2, units=16)
    too_large, *groups = (pod_group(world.objects, 10, size) for size in (5, 4, 3))
    for pods in (too_large, *groups):
        watch.expect(pods)
    while groups:
        _one_is_bound_whole(world, watch, groups)
    time.sleep(_QUIET)
    assert watch.bound() == {}
    watch.forget(too_large)
    _empty(world)


def _one_is_bound_whole(world: World, watch: TornGroups, groups: list[list[Json]]) -> None:
    """Return once one of the groups is bound whole and no pod of another is; delete that one."""

    def whole() -> list[list[Json]]:
        counts = watch.bound()
        return [pods for pods in groups if counts[name_of(pods)] == len(pods)]

    # A group that has a part of the cards waits at bind until its 55 seconds are over.
    until(lambda: bool(whole()), world.told, 3 * PATIENCE)
    time.sleep(_QUIET)
    (first,) = whole()
    assert watch.bound() == {name_of(first): len(first)}, world.told()
    watch.forget(first)
    world.objects.delete(*first)
    groups.remove(first)


def _empty(world: World) -> None:
    """Check the books, and delete all pods and nodes."""
    world.objects.delete(*world.objects.pods())
    world.agrees()
    world.objects.clear()
    world.agrees()


def _a_group_that_waits_at_bind(world: World, watch: TornGroups) -> list[Json]:
    """Return a group of three, once two wait at bind: kube-scheduler has no node for the third."""
    name, owner = fresh("job"), job_owner()
    pods = [member(world.objects, 10, name, 3, owner) for _ in range(2)]
    pods.append(member(world.objects, 10, name, 3, owner, nodeSelector={_OPEN: "yes"}))
    watch.expect(pods)
    until(lambda: "\ngpushare_gate_pods 2.0\n" in world.extender.metrics(), world.told)
    return pods


def _is_bound_whole_after_all(world: World, watch: TornGroups, pods: list[Json], node: str) -> None:
    """Check that nothing is bound; then have a node for the third pod, and delete the group."""
    time.sleep(_QUIET)
    assert watch.bound() == {}, world.told()
    world.objects.patch(f"{NODES}/{node}", {"metadata": {"labels": {_OPEN: "yes"}}})
    until(lambda: watch.bound()[name_of(pods)] == len(pods), world.told)
    world.agrees()
    world.objects.sound()
    watch.forget(pods)
    world.objects.delete(*pods)
    world.objects.patch(f"{NODES}/{node}", {"metadata": {"labels": {_OPEN: None}}})
    world.agrees()


def _write_lease(world: World, *, holder: str, seconds: int) -> None:
    """Have another process lead, or none."""
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds}
    assert world.api.patch(_LEASE, {"spec": spec}, MERGE).status == 200


def _most(watch: TornGroups) -> int:
    return max(watch.longest.values(), default=0)


def _torn(watch: TornGroups) -> dict[str, int]:
    return {name: lasted for name, lasted in watch.longest.items() if lasted > _TORN_AFTER}
