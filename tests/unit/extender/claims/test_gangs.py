"""Gangs of pods with claims: all that are needed at once get devices, or none does."""

from gpushare.core.model import PodRef
from gpushare.extender.claims.cases import COMPLETED_WITHIN
from gpushare.extender.claims.writer import UNRESERVED
from gpushare.extender.follow.group_members import Member
from gpushare.wire.dra.claims import ClaimRequest, Part
from gpushare.wire.dra.objects import ClaimsPod
from tests.unit.extender.claims.store import ClaimStore, waiting_pod
from tests.unit.extender.claims.test_allocator import Process
from tests.unit.wire.dra.objects import GIB

KEY = "coscheduling default/g"


def member(name: str, *claims: str, size: int, priority: int = 0) -> ClaimsPod:
    """Return a pod of the gang g, with claims."""
    pod = waiting_pod(name, *claims)
    assert pod.metadata
    assert pod.spec
    pod.spec.priority = priority
    pod.metadata.labels = {
        "scheduling.x-k8s.io/pod-group": "g",
        "pod-group.scheduling.sigs.k8s.io/min-available": str(size),
    }
    return pod


def made(store: ClaimStore, *sizes: int, size: int = 0) -> list[ClaimsPod]:
    """Create a claim of so many GiB for each member, and return the members."""
    for at, gib in enumerate(sizes):
        store.create(f"c{at}", gib)
    return [member(f"p{at}", f"c{at}", size=size or len(sizes)) for at in range(len(sizes))]


def why(process: Process, pod: ClaimsPod) -> str:
    """Return what is told of why the pod waits."""
    assert pod.metadata
    return process.view.why(pod.metadata.uid or "")


def test_nothing_is_given_out_before_all_members_are_there() -> None:
    store = ClaimStore()
    pods = made(store, 10, 10, 10)
    process = Process(store)
    process.waits(*pods[:2])
    process.round()
    assert store.given() == {}
    assert why(process, pods[0]) == "its group needs 3 pods at once: 2 are there"
    process.waits(*pods)
    process.round()
    assert store.given() == {"n1/gpu-1": 20, "n1/gpu-0": 10}


def test_of_a_gang_that_does_not_fit_whole_nobody_is_given_anything() -> None:
    store = ClaimStore()
    pods = made(store, 50, 50, 20)
    process = Process(store)
    process.waits(*pods)
    process.round()
    assert store.given() == {}
    assert process.allocator.settled()
    assert why(process, pods[2]) == "its group needs devices for 3 pods at once: 2 fit now"
    store.create("small", 60)
    process.show()
    process.waits(*pods, waiting_pod("alone", "small"))
    process.round()
    assert store.given() == {"n1/gpu-0": 60}


def test_members_without_a_claim_and_those_that_are_bound_are_counted() -> None:
    store = ClaimStore()
    pods = made(store, 10, 10, size=4)
    process = Process(store)
    process.waits(*pods)
    gate = process.resources.gate
    for uid in ("uid-p0", "uid-p1", "launcher"):
        gate.shown(KEY, Member(PodRef("team", uid, uid), uid == "launcher"))
    process.round()
    assert store.given() == {}
    assert why(process, pods[0]) == "its group needs 4 pods at once: 3 are there"
    gate.shown(KEY, Member(PodRef("team", "bound", "bound"), True))
    process.round()
    assert store.given() == {"n1/gpu-1": 20}


def test_no_more_members_than_are_needed_have_to_fit_and_the_smallest_are_taken() -> None:
    store = ClaimStore()
    pods = made(store, 80, 80, 24, size=2)
    process = Process(store)
    process.waits(*pods)
    process.round()
    assert store.given() == {"n1/gpu-1": 24, "n1/gpu-0": 80}


def test_a_member_whose_claim_is_not_there_yet_keeps_the_others_waiting() -> None:
    store = ClaimStore()
    pods = [*made(store, 10, size=2), member("late", "later", size=2)]
    process = Process(store)
    process.waits(*pods)
    process.round()
    assert store.given() == {}
    assert why(process, pods[0]) == "its group needs 2 pods at once: 1 have their claims"


def test_the_room_of_a_member_whose_write_was_refused_goes_to_nobody_else() -> None:
    faults = ["", "refused"]
    store = ClaimStore(lambda path: faults.pop(0) if path.endswith("/status") and faults else "")
    pods = made(store, 80, 24)
    store.create("other", 24)
    process = Process(store)
    other = waiting_pod("a", "other")
    # Of two that wait equally long the name decides: the gang comes first as a part of it is given.
    assert other.metadata
    other.metadata.creation_timestamp = "2026-01-02T00:00:00Z"
    process.waits(*pods, other)
    process.show()
    process.round()
    assert store.given() == {"n1/gpu-0": 80}
    other.metadata.creation_timestamp = "2025-01-01T00:00:00Z"
    process.waits(*pods, other)
    process.show()
    process.round()
    assert store.given() == {"n1/gpu-0": 80, "n1/gpu-1": 24}
    assert store.read("other").status is None


def test_a_gang_that_cannot_be_completed_keeps_others_out_for_a_while_alone() -> None:
    store = ClaimStore(lambda path: "refused" if path.endswith("c1/status") else "")
    pods = made(store, 80, 24)
    store.create("other", 24)
    process = Process(store)
    process.waits(*pods, waiting_pod("z", "other"))
    process.show()
    process.round()
    assert store.given() == {"n1/gpu-0": 80}
    process.show()
    process.round()
    assert store.given() == {"n1/gpu-0": 80}
    process.now += COMPLETED_WITHIN
    process.round()
    assert store.given() == {"n1/gpu-0": 80, "n1/gpu-1": 24}
    assert reserved(store, "other") == ["uid-z"]
    assert reserved(store, "c0") == []


def test_an_allocation_of_a_member_without_an_answer_counts_as_given() -> None:
    faults = ["", "lost"]
    store = ClaimStore(lambda path: faults.pop(0) if path.endswith("/status") and faults else "")
    pods = made(store, 24, 24, 24)
    process = Process(store)
    process.waits(*pods)
    for _ in range(3):
        process.round()
        process.show()
    assert store.given() == {"n1/gpu-1": 24, "n1/gpu-0": 48}
    assert process.allocator.settled()


def test_who_comes_next_goes_on_with_what_was_given_in_part() -> None:
    faults = ["", "refused"]
    store = ClaimStore(lambda path: faults.pop(0) if path.endswith("/status") and faults else "")
    pods = made(store, 80, 24)
    process = Process(store)
    process.waits(*pods)
    process.round()
    assert store.given() == {"n1/gpu-0": 80}
    process = Process(store)
    process.waits(*pods)
    process.round()
    assert store.given() == {"n1/gpu-0": 80, "n1/gpu-1": 24}


def test_those_of_higher_priority_come_first() -> None:
    store = ClaimStore()
    for name in ("low", "high"):
        store.create(name, 80)
    process = Process(store)
    high = waiting_pod("z", "high")
    assert high.spec
    high.spec.priority = 10
    process.waits(waiting_pod("a", "low"), high)
    process.round()
    status = store.read("high").status
    assert status
    assert status.allocation


def stuck(store: ClaimStore) -> tuple[Process, list[ClaimsPod]]:
    """Return a gang of two of which one has devices, and the other one's place is lost."""
    faults = ["", "refused"]
    store.fault = lambda path: faults.pop(0) if path.endswith("/status") and faults else ""
    pods = made(store, 80, 24)
    process = Process(store)
    process.waits(*pods)
    process.round()
    process.show()
    store.create("other", 24)
    process.show()
    # By hand: nobody else would be given it meanwhile.
    other = process.books.named("default", "other")
    assert other
    assert process.books.take(other, ClaimRequest((Part("gpu", 24 * GIB),)), {"n1"}.__contains__)
    return process, pods


def reserved(store: ClaimStore, name: str) -> list[str]:
    """Return the uids of the pods for which a claim is reserved."""
    status = store.read(name).status
    return [each.uid or "" for each in (status and status.reserved_for) or ()]


def test_what_a_gang_has_in_part_is_given_back_in_two_writes_once_its_time_is_over() -> None:
    store = ClaimStore()
    process, _ = stuck(store)
    process.round()
    process.show()
    assert reserved(store, "c0") == ["uid-p0"]
    process.now += COMPLETED_WITHIN
    process.round()
    process.show()
    assert store.given() == {"n1/gpu-0": 80}
    assert reserved(store, "c0") == []
    process.now += 1.0
    process.round()
    process.now += UNRESERVED
    process.round()
    process.show()
    assert store.given() == {}


def test_who_reserves_between_the_two_writes_keeps_the_devices() -> None:
    store = ClaimStore()
    process, _ = stuck(store)
    process.now += COMPLETED_WITHIN
    process.round()
    process.show()
    process.now += COMPLETED_WITHIN
    process.round()
    process.show()
    assert reserved(store, "c0") == []
    claim = store.claims["c0"]
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": "p0", "uid": "uid-p0"}]
    process.waits()
    store.touch("c0")
    for _ in range(4):
        process.round()
    assert store.given() == {"n1/gpu-0": 80}


def test_devices_that_nobody_has_reserved_for_long_are_taken_back() -> None:
    store = ClaimStore()
    store.create("a", 24)
    process = Process(store)
    process.waits(waiting_pod("p", "a"))
    process.round()
    process.show()
    process.waits()
    store.claims["a"]["status"]["reservedFor"] = []
    store.touch("a")
    process.show()
    for _ in range(2):
        process.now -= 15.0
        process.round()
        assert store.given() == {"n1/gpu-1": 24}
    process.round()
    process.show()
    assert store.given() == {}


def test_members_may_share_a_claim() -> None:
    store = ClaimStore()
    store.create("shared", 24)
    store.create("own", 80)
    pods = [member("a", "shared", size=3), member("b", "shared", size=3)]
    pods.append(member("c", "own", "shared", size=3))
    process = Process(store)
    process.waits(*pods)
    process.round()
    assert store.given() == {"n1/gpu-1": 24, "n1/gpu-0": 80}
