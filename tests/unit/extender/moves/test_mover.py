"""Pods are moved for one that waits: stories with a cluster that does its work step by step.

Filter, the holds, the books and the plan are the real ones. The API server, the controllers, the
scheduler and the kubelets are played, and an oracle looks at each eviction and at each end.
"""

import itertools
import random
import threading
from typing import Any

import pytest

from gpushare.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable
from gpushare.explain.moves import WAIT, Stop
from gpushare.extender.moves.mover import AGAIN, EVERY
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import WatchEvent
from tests.unit.extender.kit import NO_RIGHT, read_node
from tests.unit.extender.moves.world import AFTER, EPOCH, SIZE, Json, World, node_of_two, stamp


@pytest.mark.parametrize("moves", [1, 2])
def test_pods_are_moved_one_by_one_and_the_one_that_waits_is_bound(moves: int) -> None:
    world = World(moves)
    world.slow = 3
    world.until_idle(int(AFTER) - 2)
    assert world.evictions == []
    world.until_idle(100)
    assert len(world.evictions) == moves
    assert world.is_bound()
    assert world.holds() == []
    assert world.stops() == []
    assert world.mover.state()["moves_total"] == moves
    assert world.mover.state()["moves_left"] == 10 - moves
    assert world.heard("GPUShareMoved") == moves
    assert world.heard("GPUShareMakesRoom") == 1


def hopeless(world: World, count: int, namespace: str) -> None:
    """Older pods that fit on no device, however many pods are moved."""
    for number in range(count):
        pod = world.made(f"{namespace}-{number:02}", SIZE + 1, 1, "")
        pod["metadata"] |= {"namespace": namespace, "creationTimestamp": stamp(EPOCH)}
        result = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        pod["status"]["conditions"] = [result]
        world.put(pod)


def test_older_pods_of_another_namespace_do_not_keep_moves_from_a_pod() -> None:
    world = World(1)
    hopeless(world, 30, "greedy")
    world.until_idle(int(AFTER) + 60)
    assert world.is_bound()


def test_pods_that_no_moves_help_give_their_turn_to_others_of_their_namespace() -> None:
    world = World(1)
    hopeless(world, 30, "team")
    world.until_idle(3 * int(AFTER) + 60)
    assert world.is_bound()


def slow_searches(world: World) -> None:
    """Let each search take a second of CPU."""
    seconds = itertools.count()
    world.mover.cpu_clock = lambda: float(next(seconds))


def test_a_round_ends_after_a_long_search_and_the_next_one_begins_with_another_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(1, allowed=0)
    hopeless(world, 30, "greedy")
    world.until_idle(int(AFTER) - 1)
    read = list[str]()

    def request(method: str, path: str, **options: Any) -> bytes:
        if method == "GET" and "/pods/" in path:
            read.append(path.rpartition("/")[2])
        return World.request(world, method, path, **options)

    monkeypatch.setattr(world, "request", request)
    slow_searches(world)
    for number in range(14):
        world.now += EVERY
        world.mover.round()
        assert len(read) == number + 1
    # The pauses of a pod are of six rounds.
    assert [number for number, name in enumerate(read) if name == "late"] == [1, 7, 13]
    assert len({*read}) == 12


def test_the_rest_after_a_search_is_a_multiple_of_its_time_and_none_in_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(1)
    pauses = list[float]()

    class Woken(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            world.now += pauses[-1]
            if world.evictions:
                world.mover.loop.stop()
            return True

    slow_searches(world)
    monkeypatch.setattr(world.mover.loop, "_woken", Woken())
    world.mover.loop.run()
    assert pauses[1:3] == [50.0] * 2
    assert pauses[-1] == AGAIN


def test_nothing_is_moved_without_consent_and_without_budget_of_the_pods() -> None:
    world = World()
    for pod in world.pods.values():
        pod["metadata"]["labels"] = {}
    world.until_idle(200)
    spent = World(allowed=0)
    spent.until_idle(200)
    assert world.evictions == spent.evictions == []


def test_the_time_with_closed_gates_does_not_count() -> None:
    world = World(1)
    world.late["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    world.put(world.late)
    world.until_idle(2 * int(AFTER))
    del world.late["spec"]["schedulingGates"]
    world.put(world.late)
    world.until_idle(int(AFTER) - 2)
    assert world.evictions == []
    world.until_idle(100)
    assert world.is_bound()


def test_lists_that_are_too_large_are_read_in_smaller_pages() -> None:
    world = World(1)
    world.largest_page = 60
    world.until_idle()
    assert world.is_bound()


def test_what_opens_is_kept_from_a_pod_that_comes_in_between() -> None:
    world = World()
    for _ in range(int(AFTER) + 60):
        if world.evictions and "thief" not in str(world.pods):
            world.waits("thief", 10)
        world.tick()
    world.until_idle(30)
    assert world.is_bound()
    assert not [
        pod
        for pod in world.pods.values()
        if pod["metadata"]["name"] == "thief" and world.node_of(pod)
    ]


def test_the_new_place_of_the_pod_that_moves_is_kept_from_others() -> None:
    world = World(1)
    world.runs("more", 8, "b", 1)
    world.slow = 5
    world.until(lambda: bool(world.evictions))
    thief = world.waits("thief", 8)  # the pod fits where the other pod is to move, and nowhere else
    world.until_idle(60)
    assert world.is_bound()
    assert not world.node_of(thief)
    (heir,) = (pod for pod in world.pods.values() if pod["metadata"]["name"].startswith("set-"))
    assert world.node_of(heir) == "b"


LOST, CUT = (ApiUnavailable("cut", 0), True), (ApiUnavailable("cut", 0), False)
PROXY = ApiUnavailable("a proxy's answer", 403)
SPENT, CHANGED = (ApiError("budget", 429), False), (ApiConflict("changed", 409), False)


@pytest.mark.parametrize(
    "faults",
    [
        [LOST],
        [CUT],
        [(PROXY, True)],
        [(PROXY, False)],
        [CUT, LOST],
        [SPENT],
        [CUT, SPENT],
        [CHANGED],
        [CUT, CHANGED],
        [(ApiNotFound("", 404), False)],
    ],
)
def test_an_eviction_that_fails_for_a_while_is_made_once_in_the_end(faults: list[Any]) -> None:
    world = World()
    world.faults, world.slow = [*faults], 5
    world.until_idle(300)
    assert len(world.evictions) == 2
    assert world.is_bound()
    assert world.holds() == []


def test_a_right_that_is_missing_ends_it() -> None:
    world = World()
    world.faults = [(NO_RIGHT, False)] * 9
    world.until_idle(300)
    assert world.evictions == []
    assert len(world.faults) == 8
    assert world.stops() == [Stop.REFUSED.value]
    assert world.mover.state()["moves_left"] == 10


def test_a_right_that_goes_while_an_eviction_is_unclear_leaves_the_eviction_written_down() -> None:
    world = World()
    world.faults = [CUT] + [(NO_RIGHT, False)] * 9
    world.until(lambda: bool(world.stops()))
    assert world.stops() == [Stop.UNKNOWN.value]
    assert world.under_way()


def test_the_plan_is_done_where_the_pod_gets_the_room_before_all_was_moved() -> None:
    world = World()
    world.slow = 5
    world.until(lambda: bool(world.holds()))
    for pod in list(world.pods.values()):
        if pod["metadata"]["name"].startswith("mover-"):
            world.gone(pod["metadata"]["uid"])
    world.until_idle(60)
    assert world.node_of(world.late) == "a"
    assert world.stops() == []
    assert world.holds() == []


def test_a_budget_that_never_allows_it_ends_it() -> None:
    world = World()
    world.faults = [SPENT] * 99
    world.until_idle(int(AFTER + WAIT) + 60)
    assert world.evictions == []
    assert world.stops() == [Stop.REFUSED.value]
    assert world.holds() == []


def test_one_that_lands_elsewhere_ends_it() -> None:
    world = World()
    world.detour = "a"
    world.until_idle(300)
    assert len(world.evictions) == 1
    assert world.stops() == [Stop.LANDED.value]
    assert world.holds() == []


@pytest.mark.parametrize("after", [0, 1])
def test_it_ends_where_the_pod_that_waits_goes(after: int) -> None:
    world = World()
    world.until(lambda: bool(world.holds()) and len(world.evictions) >= after)
    world.gone(world.late["metadata"]["uid"])
    world.until_idle(60)
    assert len(world.evictions) <= after + 1
    assert set(world.stops()) == {Stop.POD_GONE.value}
    assert world.holds() == []


def test_the_budget_of_an_hour_is_kept_across_leaders() -> None:
    world = World(budget=1)
    world.until_idle(200)
    assert world.evictions == []  # two moves are needed, and one is never made for nothing
    single = World(1, budget=1)
    single.until_idle(200)
    assert len(single.evictions) == 1
    # Another leader: a third node, where one move would make room for another pod.
    single.nodes.append("c")
    single.start()
    single.runs("mover-9", 6, "c", 0, owner="set-9")
    single.runs("stays-9", 15, "c", 1)
    second = single.waits("late-9", SIZE)
    single.until_idle(300)
    assert len(single.evictions) == 1
    assert single.mover.state()["moves_left"] == 0
    single.tick(3600)
    single.until_idle(30)
    assert len(single.evictions) == 2
    assert single.node_of(second) == "c"


def test_a_node_that_goes_ends_it() -> None:
    world = World()
    world.slow = 5
    world.until(lambda: bool(world.evictions))
    world.nodes.remove("b")
    watch_event = WatchEvent("DELETED", object=read_node(node_of_two("b")))
    world.replicas[0].nodes.apply(watch_event)
    for pod in [pod for pod in world.pods.values() if world.node_of(pod) == "b"]:
        world.gone(pod["metadata"]["uid"])
    world.until_idle(int(WAIT) + 30)
    assert len(world.evictions) == 1
    assert set(world.stops()) <= {Stop.NOT_RUNNING.value, Stop.LANDED.value}
    assert world.stops()
    assert world.holds() == []


@pytest.mark.parametrize(("slow", "makes_anew"), [(100, True), (0, False)])
def test_two_leaders_do_not_evict_at_once(slow: int, makes_anew: bool) -> None:
    world = World()
    world.slow, world.makes_anew = slow, makes_anew
    world.until(lambda: bool(world.evictions))
    world.join()  # another one leads, too, while the first one's eviction is under way
    world.until_idle(90)
    assert len(world.evictions) == 1


def _of_other_owner(world: World) -> None:
    """The roll-out of a Deployment: its new ReplicaSet makes the pods from now on."""
    for pod in world.pods.values():
        for owner in pod["metadata"].get("ownerReferences", []):
            owner |= {"name": f"{owner['name']}-next", "uid": f"{owner['uid']}-next"}


def test_a_rollout_in_the_midst_of_a_plan_ends_it() -> None:
    world = World()
    world.slow = 5
    world.until(lambda: bool(world.evictions))
    _of_other_owner(world)
    world.until(lambda: bool(world.stops()), int(WAIT) + 30)
    assert world.stops() == [Stop.NOT_RUNNING.value]
    assert len(world.evictions) == 1
    assert world.holds() == []


def _told(seed: int, budget: int) -> World:
    """The world after a story. With a budget of 0 the same happens to it, and nothing is moved.

    In every second one there are two extenders, which both lead at times.
    """
    rng = random.Random(seed)
    world = World(budget=budget)
    if seed % 2:
        world.join()
    kinds: list[tuple[ApiError, bool] | None] = [None, None, LOST, CUT, SPENT, CHANGED]
    world.faults = [rng.choice(kinds) for _ in range(6)]
    world.slow = rng.choice([0, 2, 20])
    world.until_idle(int(AFTER) - 2)
    for _ in range(300):
        match rng.randrange(400):
            case 0:
                world.start()
            case 1 | 2 | 3:
                replica = world.replicas[rng.randrange(len(world.replicas))]
                replica.why_not = "" if replica.why_not else "another process leads"
            case 4 | 5:
                world.allowed = 9 - world.allowed
            case 6:
                world.waits(f"more-{world.now:.0f}", rng.choice([1, 2]))
            case 7 if (late := world.late["metadata"]["uid"]) in world.pods:
                world.gone(late)
            case 8:
                # Somebody else moves a pod by hand.
                movable = [p for p in world.pods.values() if "ownerReferences" in p["metadata"]]
                going = [p for p in world.pods.values() if "deletionTimestamp" in p["metadata"]]
                if movable and not going and world.node_of(movable[0]):
                    movable[0]["metadata"]["deletionTimestamp"] = stamp(EPOCH + world.now)
                    movable[0]["ends"] = world.now
                    world.put(movable[0])
            case _:
                pass
        world.tick()
    world.faults, world.allowed = [], 9
    for replica in world.replicas:
        replica.why_not = ""
        replica.mover.stop()
    assert world.holds() == []
    print(f"seed {seed}: {len(world.evictions)} evictions, stops {world.stops()}")
    world.until_idle(25)
    return world


@pytest.mark.parametrize("seed", range(40))
def test_a_story(seed: int) -> None:
    world = _told(seed, (2, 3, 10)[seed % 3])
    assert world.mover.round()
    free = [SIZE - world.used()[node, device] for node in world.nodes for device in range(2)]
    waiting_result = world.waiting()
    assert not [pod for pod in waiting_result if _units(pod) <= max(free) and not _devices(pod) > 1]
    still = _told(seed, 0)
    assert still.evictions == []
    # Not of pods: where one of 32 units gets its place, several of 1 unit may wait instead.
    assert sum(map(_units, waiting_result)) <= sum(map(_units, still.waiting()))


def _units(pod: Json) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"][ALIYUN.resource])


def _devices(pod: Json) -> int:
    return int(pod["metadata"]["labels"][ALIYUN.count])
