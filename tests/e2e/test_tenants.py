"""Forbidden actions of tenants, on a real kube-apiserver with config/extender/placements.

RBAC permits everything here: only the policies refuse.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from gpushare.wire.annotations import ALIYUN
from tests.contract.apiserver.client import MERGE, STRATEGIC, Api, ApiReply, Json
from tests.e2e.conftest import MakePlane, MakeWorld
from tests.e2e.extender import RealExtender
from tests.e2e.objects import COUNT, MEM, PODS, Objects, fresh
from tests.e2e.plane import Plane
from tests.e2e.processes import until
from tests.e2e.world import World, apply

UUIDS, CORES = "gpushare.io/device-uuids", ALIYUN.cores
PLACED = (ALIYUN.idx, ALIYUN.dev, ALIYUN.pod, ALIYUN.allocation, ALIYUN.core_allocation, UUIDS)
MARKS = (ALIYUN.assigned, ALIYUN.assume_time)
PLUGIN = "system:serviceaccount:kube-system:gpushare-device-plugin"
ACCOUNT = "system:serviceaccount:kube-system:gpushare-extender"
MIRROR = {"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h"}


@pytest.fixture(scope="module")
def strict_plane(make_plane: MakePlane) -> Plane:
    """A control plane of this module's, where the policies are in force."""
    plane = make_plane()
    rule = {
        "metadata": {"name": "everybody"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [
            {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Group",
                "name": "system:authenticated",
            }
        ],
    }
    plane.api().create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", rule)
    enforce(plane)
    return plane


def enforce(plane: Plane) -> None:
    """Apply the policies, and wait until each one refuses."""
    apply(plane, "extender/placements")
    objects = plane.objects()
    sees(objects, lambda: refused(create(objects, annotations={ALIYUN.idx: "0"}, dry=True)))
    binding = {"metadata": {"annotations": {ALIYUN.idx: "0"}}, "target": {"name": "nosuch"}}
    sees(objects, lambda: refused(bind(objects.api, "nosuch", binding)))
    mirror = create(as_node(plane, "n"), node="n", annotations=MIRROR).body
    sees(objects, lambda: refused(objects.api.delete(objects.path(mirror), {"dryRun": ["All"]})))
    values = objects.pod(1)
    change = {"metadata": {"annotations": {ALIYUN.idx: "0"}}}
    sees(objects, lambda: refused(dry_patch(objects, values, change)))
    clear(plane)


def sees(objects: Objects, condition: Callable[[], bool]) -> None:
    """Wait until the API server goes by a policy that has just been made."""
    until(condition, lambda: f"the policies are in force: {objects.pods()}")


@pytest.fixture
def strict(strict_plane: Plane) -> Iterator[Objects]:
    """The objects as administrator; all are deleted after the test."""
    objects = strict_plane.objects()
    yield objects
    clear(strict_plane)


def clear(plane: Plane) -> None:
    """Delete everything, mirrors too."""
    as_node(plane, "any").clear()


def as_(plane: Plane, user: str, group: str = "", **extra: str) -> Api:
    """A client that the API server takes for another user."""
    api = plane.api()
    api.headers |= {"Impersonate-User": user}
    if group:
        api.headers |= {"Impersonate-Group": group}
    api.headers |= {f"Impersonate-Extra-{key}": value for key, value in extra.items()}
    return api


def as_node(plane: Plane, node: str) -> Objects:
    return Objects(as_(plane, f"system:node:{node}", "system:nodes"))


def as_plugin(plane: Plane, node: str) -> Api:
    """A device plug-in, with a kubelet's token for a pod of the node."""
    key = "authentication.kubernetes.io%2Fnode-name"
    return as_(plane, PLUGIN, **{key: node})


def create(
    objects: Objects,
    *,
    units: int = 4,
    cores: int = 0,
    node: str = "",
    annotations: dict[str, str] | None = None,
    dry: bool = False,
) -> ApiReply:
    """The answer to a new pod as somebody would have it."""
    limits = {name: str(amount) for name, amount in ((MEM, units), (CORES, cores)) if amount}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    body = {
        "metadata": {"name": fresh("pod"), "annotations": annotations or {}},
        "spec": {"containers": [container], **({"nodeName": node} if node else {})},
    }
    query = {"dryRun": "All"} if dry else {}
    return objects.api.call("POST", PODS, body, **query)  # type: ignore[arg-type]  # query values only


def bind(api: Api, name: str, binding: Json, old: bool = False) -> ApiReply:
    path = "/api/v1/namespaces/default/bindings" if old else f"{PODS}/{name}/binding"
    body = {**binding, "metadata": {"name": name, **binding["metadata"]}}
    return api.call("POST", path, body)


def dry_patch(objects: Objects, pod: Json, change: Json) -> ApiReply:
    return objects.api.call("PATCH", objects.path(pod), change, content_type=MERGE, dryRun="All")


def refused(reply: ApiReply, *parts: str) -> bool:
    """Whether a policy refused the request; the message must contain these parts."""
    by_us = reply.status == 403 and "ValidatingAdmissionPolicy 'gpushare-" in reply.body["message"]
    return by_us and all(part in reply.body["message"] for part in parts)


def annotated(**annotations: str | None) -> Json:
    return {"metadata": {"annotations": annotations}}


@pytest.fixture
def extender(strict_plane: Plane, tmp_path: Path) -> Iterator[RealExtender]:
    """Our extender on the plane; no scheduler, the test asks it to bind."""
    world = World(strict_plane, tmp_path / "world", flags=("--leadership", "off"))
    world.extender.start()
    yield world.extender
    world.stop()


# -- the three attacks ----------------------------------------------------------------------------


def test_an_edit_after_bind_is_refused_so_a_restart_finds_the_device_full(
    strict: Objects, strict_plane: Plane, extender: RealExtender
) -> None:
    node = strict.node(devices=2, units=16)
    extender.knows(node)
    first, second = strict.pod(16), strict.pod(16)
    assert extender.bind(first, node) == ""
    (values,) = strict.devices_of(first)
    elsewhere = str(1 - values)
    change = annotated(**{ALIYUN.idx: elsewhere, ALIYUN.allocation: None})
    assert refused(strict.api.patch(strict.path(first), change), "which devices the pod has")
    extender.kill()
    extender.start()
    extender.knows(node)
    assert extender.bind(second, node) == ""
    assert {*strict.devices_of(first), *strict.devices_of(second)} == {0, 1}
    strict.sound()


def test_two_preset_pods_do_not_come_onto_one_device(strict: Objects) -> None:
    node = strict.node(devices=1, units=16)
    preset = {ALIYUN.idx: "0", ALIYUN.pod: "16", ALIYUN.assume_time: "1"}
    for _ in range(2):
        reply = create(strict, units=16, node=node, annotations=preset)
        assert refused(reply, "leave out the annotation ALIYUN_COM_GPU_MEM_IDX")
    assert strict.pods() == []


def test_preset_pods_of_one_user_do_not_empty_all_nodes(
    strict: Objects, extender: RealExtender
) -> None:
    nodes = [strict.node(devices=2, units=16) for _ in range(3)]
    for node in nodes:
        # Without annotations it would be charged to every device of the node.
        assert refused(create(strict, units=16, node=node), "leave out spec.nodeName")
    for node in nodes:
        extender.knows(node)
    assert extender.bind(strict.pod(16), nodes[0]) == ""
    strict.sound()


# -- each case ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PLACED, *MARKS])
def test_a_new_pod_brings_no_annotation_of_ours(strict: Objects, name: str) -> None:
    for units in (4, 0):
        reply = create(strict, units=units, annotations={name: "0"})
        assert refused(reply, f"leave out the annotation {name}")


def test_pods_of_all_other_kinds_are_created(strict: Objects) -> None:
    node = strict.node()
    user = {COUNT: "2", "gpushare.io/policy": "spread", "note": "x"}
    replies = [
        create(strict, annotations=user),
        create(strict, units=0, node=node),
        create(strict, units=0, annotations={"note": "x"}),
    ]
    assert [reply.status for reply in replies] == [201, 201, 201]


@pytest.mark.parametrize("name", [*PLACED, *MARKS])
@pytest.mark.parametrize("subresource", ["", "/status"])
def test_no_annotation_of_ours_is_changed_added_or_taken_away(
    strict: Objects, strict_plane: Plane, name: str, subresource: str
) -> None:
    pod = bound(strict, strict_plane)
    for user in (strict.api, as_(strict_plane, ACCOUNT), as_node(strict_plane, "n1").api):
        for value in ("7", None):
            reply = user.patch(strict.path(pod) + subresource, annotated(**{name: value}))
            assert refused(reply, f"leave the annotation {name} as it is"), reply.body
    pending = strict.pod(4)
    reply = strict.api.patch(strict.path(pending) + subresource, annotated(**{name: "0"}))
    assert refused(reply, name)


def test_other_subresources_leave_the_annotations_alone(
    strict: Objects, strict_plane: Plane
) -> None:
    pod = bound(strict, strict_plane, containers=[_container("1")])
    before = strict.get(pod)["metadata"]["annotations"]
    debugger = {"name": "look", "image": "x", "terminationMessagePolicy": "File"}
    for path, spec in (
        ("/ephemeralcontainers", {"ephemeralContainers": [debugger]}),
        ("/resize", {"containers": [_container("2")]}),
    ):
        change = annotated(**{ALIYUN.idx: "7"}) | {"spec": spec}
        reply = strict.api.patch(strict.path(pod) + path, change, STRATEGIC)
        assert reply.status == 200, reply.body
        assert strict.get(pod)["metadata"]["annotations"] == before


def test_what_is_not_ours_may_be_changed(strict: Objects, strict_plane: Plane) -> None:
    pod = bound(strict, strict_plane)
    assert strict.api.patch(strict.path(pod), annotated(note="y")).status == 200
    status = {"status": {"phase": "Running"}}
    assert strict.api.patch(f"{strict.path(pod)}/status", status).status == 200


def test_the_device_plug_in_marks_pods_of_its_own_node(
    strict: Objects, strict_plane: Plane
) -> None:
    pod = bound(strict, strict_plane)
    marks = annotated(**dict.fromkeys(MARKS, "1"))
    path = strict.path(pod)
    assert refused(as_plugin(strict_plane, "n2").patch(path, marks), "of its own node")
    assert as_plugin(strict_plane, "n1").patch(path, marks).status == 200
    assert (
        as_(strict_plane, PLUGIN).patch(path, annotated(**dict.fromkeys(MARKS, "2"))).status == 200
    )
    for name in PLACED:
        reply = as_plugin(strict_plane, "n1").patch(path, annotated(**{name: "1"}))
        assert refused(reply, name)


@pytest.mark.parametrize("name", [*PLACED, *MARKS])
@pytest.mark.parametrize("old", [False, True])
def test_a_binding_with_a_placement_is_the_extenders_alone(
    strict: Objects, strict_plane: Plane, name: str, old: bool
) -> None:
    strict.node(name="n1")
    pod = strict.pod(4)
    called = pod["metadata"]["name"]
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    binding = {"metadata": {"annotations": {name: "0"}}, "target": target}
    for api in (strict.api, as_(strict_plane, "system:kube-scheduler")):
        assert refused(bind(api, called, binding, old), "extender of gpushare alone")
    for user in (ACCOUNT, "gpushare-extender"):
        assert bind(as_(strict_plane, user), called, binding, old).status == 201
        strict.delete(pod)
        strict.pod(4, name=called)
    assert bind(strict.api, called, {"metadata": {}, "target": target}, old).status == 201


def test_a_mirror_is_made_and_deleted_by_its_node_alone(
    strict: Objects, strict_plane: Plane
) -> None:
    node = as_node(strict_plane, "n1")
    strict.node(name="n1")
    preset = {**MIRROR, ALIYUN.idx: "0"}
    assert refused(create(strict, node="n1", annotations=preset))
    mirror = create(node, node="n1", annotations=preset)
    assert mirror.status == 201
    path = strict.path(mirror.body)
    assert refused(strict.api.delete(path), "take the pod's file away from its node")
    assert refused(strict.api.delete(PODS), "take the pod's file away from its node")
    for controller in ("pod-garbage-collector", "namespace-controller"):
        api = as_(strict_plane, f"system:serviceaccount:kube-system:{controller}")
        assert api.delete(path, {"dryRun": ["All"]}).status == 200
    assert node.api.delete(path).status == 200


def test_a_mirror_that_comes_back_has_another_uid(strict: Objects, strict_plane: Plane) -> None:
    """The uid of the request is ignored, so the books never mistake the pod for the old one."""
    node = as_node(strict_plane, "n1")
    strict.node(name="n1")
    uids = []
    for _ in range(2):
        body = {
            "metadata": {"name": "static-n1", "uid": "1-2-3", "annotations": MIRROR},
            "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "x"}]},
        }
        created = node.api.create(PODS, body).body
        uids.append(created["metadata"]["uid"])
        node.delete(created)
    assert len({*uids, "1-2-3"}) == 3


def _container(cpu: str) -> Json:
    resources = {"limits": {MEM: "4"}, "requests": {MEM: "4", "cpu": cpu}}
    return {"name": "main", "image": "x", "resources": resources}


def bound(objects: Objects, plane: Plane, **spec: object) -> Json:
    """A pod that the extender's account has bound to n1, with every annotation of ours."""
    objects.node(name="n1")
    pod = objects.pod(4, **spec)  # type: ignore[arg-type]  # passed on
    binding = {
        "metadata": {"annotations": dict.fromkeys((*PLACED, *MARKS), "0")},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    reply = bind(as_(plane, ACCOUNT), pod["metadata"]["name"], binding)
    assert reply.status == 201, reply.body
    return objects.get(pod)


# -- without the policies -------------------------------------------------------------------------


def test_without_them_edits_are_taken_but_the_books_keep_what_they_saw(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.extender.start()
    objects = world.objects
    node = objects.node(devices=2, units=16)
    world.extender.knows(node)
    pod = objects.pod(16)
    assert world.extender.bind(pod, node) == ""
    (values,) = objects.devices_of(pod)
    change = annotated(**{ALIYUN.idx: str(1 - values), ALIYUN.allocation: None})
    # A subresource too takes annotations.
    assert world.api.patch(f"{objects.path(pod)}/status", change).status == 200
    assert objects.devices_of(pod) == {1 - values: 16}
    text = f'gpushare_alarms_total{{kind="placement_edited",resource="{MEM}"}} 1'
    until(lambda: text in world.extender.metrics(), world.extender.metrics)
    second = objects.pod(16)
    assert world.extender.bind(second, node) == ""
    assert objects.devices_of(second) == {1 - values: 16}
    assert "Insufficient" in world.extender.bind(objects.pod(1), node)


def test_without_them_preset_pods_hold_what_they_name_or_every_device(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.extender.start()
    objects = world.objects
    preset, astray = objects.node(devices=2, units=16), objects.node(devices=2, units=16)
    for _ in range(2):
        annotations = {ALIYUN.idx: "0", ALIYUN.pod: "1"}
        assert create(objects, units=16, node=preset, annotations=annotations).status == 201
    assert create(objects, units=16, node=astray).status == 201
    world.agrees()
    assert world.extender.bind(objects.pod(16), astray) != ""
    pod = objects.pod(16)
    assert world.extender.bind(pod, preset) == ""
    assert objects.devices_of(pod) == {1: 16}
    assert world.extender.bind(objects.pod(1), preset) != ""


# -- quota ----------------------------------------------------------------------------------------


def test_a_quota_bounds_memory_and_compute_of_a_namespace(strict: Objects) -> None:
    """The controller manager writes a quota's status; there is none here, so the test does."""
    path = "/api/v1/namespaces/default/resourcequotas"
    guide = (Path(__file__).parents[2] / "docs" / "tenants.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n([^`]*kind: ResourceQuota[^`]*)```", guide)
    quota = yaml.safe_load(block)
    quota["metadata"]["namespace"] = "default"
    amounts = quota["spec"]["hard"]
    assert amounts == {
        f"requests.{MEM}": "64",
        f"requests.{CORES}": "400",
        "requests.aliyun.com/gpu-mem.percentage": "0",
    }
    strict.api.create(path, quota)
    try:
        used = dict.fromkeys(amounts, "0")
        status = {"status": {"hard": amounts, "used": used}}
        reply = strict.api.patch(f"{path}/gpus/status", status)
        assert reply.status == 200, reply.body
        until(lambda: create(strict, units=65, dry=True).status == 403, "the quota is in force")
        compute = [create(strict, units=1, cores=100).status for _ in range(5)]
        assert compute == [201, 201, 201, 201, 403]
        assert [create(strict, units=30).status for _ in range(3)] == [201, 201, 403]
        assert create(strict, units=0).status == 201
        message = create(strict, units=1).body["message"]
        assert "exceeded quota: gpus, requested: requests.aliyun.com/gpu-mem=1" in message
    finally:
        strict.api.delete(f"{path}/gpus")
