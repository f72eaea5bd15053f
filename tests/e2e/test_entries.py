"""Other lines in kube-scheduler's entry for the extender than those that we print."""

from tests.e2e.conftest import MakeWorld

WHOLE_NODES = {"nodeCacheCapable: true": "nodeCacheCapable: false"}
IGNORABLE = {"ignorable: false": "ignorable: true"}


def test_whole_nodes_travel_both_ways(make_world: MakeWorld) -> None:
    world = make_world(change=WHOLE_NODES)
    objects = world.objects
    world.start()
    small = objects.node(devices=1, units=8)
    large = objects.node(devices=2, units=16)
    # The first two fit one node only; the others are ours to choose, by scores of whole nodes.
    assert objects.lands(objects.pod(16), world.told) == (large, {0: 16})
    assert objects.lands(objects.pod(12), world.told) == (large, {1: 12})
    assert objects.lands(objects.pod(3), world.told) == (large, {1: 3})
    assert objects.lands(objects.pod(7), world.told) == (small, {0: 7})
    # 1 is left on either: the sums are no reason for kube-scheduler to spare us the question.
    objects.node(devices=2, units=1)
    objects.refusal(
        objects.pod(2),
        "0/3 nodes are available",
        "1 GPU Memory request is larger than any healthy device",
        "2 Insufficient aliyun.com/gpu-mem",
    )
    world.agrees()
    objects.sound()


def test_preemption_with_whole_pods_takes_the_pod_whose_device_is_needed(
    make_world: MakeWorld,
) -> None:
    world = make_world(change=WHOLE_NODES)
    objects = world.objects
    world.start()
    objects.priority("whole-urgent", 1000)
    objects.priority("whole-modest", 10)
    node = objects.node(devices=2, units=16)
    needed = objects.pod(10)
    objects.lands(needed, world.told)
    survivors = objects.pod(10, priorityClassName="whole-modest")
    objects.lands(survivors, world.told)
    urgent = objects.pod(14, priorityClassName="whole-urgent")
    assert objects.lands(urgent, world.told)[0] == node
    assert [pod["metadata"]["uid"] for pod in objects.pods()].count(
        survivors["metadata"]["uid"]
    ) == 1
    world.agrees()
    objects.sound()


def test_a_gpu_pod_waits_for_an_extender_that_is_away(make_world: MakeWorld) -> None:
    world = make_world()
    objects = world.objects
    world.start()
    node = objects.node(devices=1, units=16)
    world.extender.knows(node)
    world.extender.kill()
    pending_pod = objects.pod(8)
    objects.refusal(pending_pod, "connection refused")
    plain = objects.pod(0)
    assert objects.lands(plain, world.told) == (node, {})
    assert not objects.node_of(pending_pod)
    world.extender.start()
    assert objects.lands(pending_pod, world.told) == (node, {0: 8})


def test_a_pod_that_was_bound_while_an_ignorable_extender_was_away_is_charged_to_every_device(
    make_world: MakeWorld,
) -> None:
    world = make_world(change=IGNORABLE)
    objects = world.objects
    world.start()
    node = objects.node(devices=2, units=16)
    assert objects.lands(objects.pod(4), world.told) == (node, {0: 4})
    world.extender.kill()
    # kube-scheduler binds it by itself.
    astray = objects.pod(10)
    assert objects.lands(astray, world.told) == (node, {})
    world.extender.start()
    (shown_text,) = world.extender.inspect(node)["nodes"]
    assert [pod["name"] for pod in shown_text["unplaced"]] == [astray["metadata"]["name"]]
    # Nobody knows which device it is on: 2 are left on the one, 6 on the other.
    assert objects.lands(objects.pod(6), world.told) == (node, {1: 6})
    objects.refusal(objects.pod(3), "1 Insufficient GPU Memory in one device")
    world.agrees()
