"""The document that the page reads."""

import json
import time
from typing import Any

from gpushare.core.model import PodRef, Reason, Request
from gpushare.core.selectors import Demands
from gpushare.extender.follow.group_members import Member
from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.extender.tell.page import document
from gpushare.extender.tell.page.document import Documents
from gpushare.extender.verbs.bind.gate import Arrival
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import WatchEvent
from gpushare.wire.groups import Group
from gpushare.wire.pods import Claimant
from tests.support.waiting import poll
from tests.unit.core.clusters import node, state_of, with_share
from tests.unit.extender.kit import pod_json, read_pod
from tests.unit.extender.shadow.traffic import Traffic
from tests.unit.extender.tell.page.world import HOSTILE, World, pod

MEM = "aliyun.com/gpu-mem"


def read(world: World) -> dict[str, Any]:
    parsed_document: dict[str, Any] = json.loads(world.documents.body())
    return parsed_document


def part(world: World) -> dict[str, Any]:
    (result,) = read(world)["resources"]
    return result  # type: ignore[no-any-return]  # JSON


def test_nodes_devices_and_pods_are_those_of_the_books() -> None:
    world = World()
    world.ledger.node_changed(node("b", 16, 16, unhealthy=[1]))
    world.ledger.node_changed(node("a", 80))
    world.ledger.pod_changed(pod("one", 6, "b", 0, space="x"))
    world.ledger.pod_changed(pod("two", 6, "b", 1, space="x"))
    world.ledger.pod_changed(pod("lost", 3, "b"))
    part_result = part(world)
    assert [item["name"] for item in part_result["nodes"]] == ["a", "b"]
    b = part_result["nodes"][1]
    assert (b["total"], b["allocated"], b["unplaced"], b["free"]) == (32, 15, 3, 7)
    first, second = b["devices"]
    assert (first["allocated"], first["free"], first["healthy"]) == (6, 7, True)
    assert (second["allocated"], second["free"], second["healthy"]) == (6, 0, False)
    assert [(item["name"], item["devices"]) for item in b["pods"]] == [
        ("lost", []),
        ("one", [{"index": 0, "allocated": 6}]),
        ("two", [{"index": 1, "allocated": 6}]),
    ]


def test_stranded_is_what_the_commonest_request_cannot_use() -> None:
    world = World()
    world.ledger.node_changed(node("a", 16))
    for name in ("one", "two"):
        world.ledger.pod_changed(pod(name, 6, "a", 0))
    part_result = part(world)
    assert part_result["typical"] == 6
    assert part_result["nodes"][0]["devices"][0]["stranded"] == 4


def test_compute_is_told_where_a_pod_has_some_and_strands_memory_where_it_is_all_given() -> None:
    world = World()
    world.ledger.node_changed(node("a", 16, 16, 16, unhealthy=[2]))
    world.ledger.node_changed(node("b", 16))
    world.ledger.pod_changed(pod("plain", 14, "a", 0))
    before = world.documents.body()
    assert b"ores" not in before
    world.ledger.pod_changed(pod("some", 1, "a", 0, cores=30))
    world.ledger.pod_changed(pod("alone", 4, "a", 1, cores=100))
    world.ledger.pod_changed(pod("closed", 4, "a", 2, cores=100))
    world.ledger.pod_changed(pod("late", 4, cores=50))
    part_result = part(world)
    a, b = part_result["nodes"]
    keys = ("free", "stranded", "strandedByCores", "cores")
    assert [[device[key] for key in keys] for device in a["devices"]] == [
        [1, 1, 0, 30],
        [0, 0, 12, 100],
        [0, 0, 0, 100],
    ]
    assert (a["free"], a["strandedByCores"]) == (1, 12)
    assert b["devices"][0]["cores"] == 0
    assert [(item["name"], item["cores"]) for item in a["pods"]] == [
        ("alone", 100),
        ("closed", 100),
        ("plain", 0),
        ("some", 30),
    ]
    assert [item["cores"] for item in part_result["pending"]] == [50]


def test_what_an_unplaced_pod_has_of_compute_is_in_use_on_each_device() -> None:
    world = World()
    world.ledger.node_changed(node("a", 16, 16))
    world.ledger.pod_changed(pod("lost", 4, "a", cores=60))
    world.ledger.pod_changed(pod("some", 4, "a", 1, cores=40))
    devices = part(world)["nodes"][0]["devices"]
    assert [(item["free"], item["cores"]) for item in devices] == [(12, 60), (0, 100)]


def test_a_device_with_the_most_pods_has_nothing_free() -> None:
    world = World()
    world.ledger.node_changed(node("a", 16, 16, max_sharers=2))
    world.ledger.pod_changed(pod("lost", 4, "a"))
    world.ledger.pod_changed(pod("some", 4, "a", 1))
    assert [item["free"] for item in part(world)["nodes"][0]["devices"]] == [12, 0]
    for name in ("second", "third"):
        world.ledger.pod_changed(pod(name, 4, "a", 0))
    world.ledger.pod_changed(pod("late", 4))
    (waiting,) = part(world)["pending"]
    assert "free devices have the most pods that their node allows; it would" in waiting["why"]


def test_a_pod_with_a_percentage_of_memory_has_the_units_of_its_card() -> None:
    world = World()
    world.ledger.node_changed(node("a", 16, 40))
    share = Request(1, 1, percents=with_share(0, 60))
    world.ledger.pod_changed(pod("p", 1, "a", 1)._replace(request=share))
    (shown,) = part(world)["nodes"]
    assert [(item["allocated"], item["free"]) for item in shown["devices"]] == [(0, 16), (24, 16)]
    assert (shown["pods"][0]["allocated"], shown["pods"][0]["share"]) == (24, 60)
    world.ledger.pod_changed(pod("lost", 1, "a")._replace(request=share))
    (shown,) = part(world)["nodes"]
    assert (shown["unplaced"], shown["pods"][0]["allocated"]) == (24, 24)


def test_what_pods_may_use_beyond_their_requests_stands_beside() -> None:
    world = World()
    world.ledger.node_changed(node("a", 16, 16))
    world.ledger.pod_changed(pod("p", 4, "a", 0))
    assert all("limits" not in item for item in part(world)["nodes"][0]["devices"])
    more = Request(8, 1, memory_limit=14)
    world.ledger.pod_changed(pod("more", 8, "a", 0)._replace(request=more))
    devices = part(world)["nodes"][0]["devices"]
    assert [(item["allocated"], item["limits"]) for item in devices] == [(12, 18), (0, 0)]


def test_a_closed_node_says_why_and_one_that_shares_nothing_is_left_out() -> None:
    world = World()
    world.close(node("a"), Reason.BROKEN_INVENTORY)
    world.ledger.node_changed(node("cpu"))
    (only,) = part(world)["nodes"]
    assert (only["name"], only["closed"]) == ("a", Reason.BROKEN_INVENTORY.value)


def test_a_pod_that_waits_has_its_name_and_the_sentence() -> None:
    world = World()
    world.ledger.node_changed(node("a", 16))
    world.ledger.pod_changed(pod("late", 17, space="x"))
    world.ledger.pod_changed(pod("unasked", 4))
    unasked, late = part(world)["pending"]
    assert (late["namespace"], late["name"], late["requested"]) == ("x", "late", 17)
    assert late["why"].startswith("it can never fit")
    assert (late["asked"], unasked["asked"]) == (True, False)


def test_the_page_says_as_explain_does_why_nobody_has_asked() -> None:
    world = World()
    spec = node("a", 16)
    world.ledger.node_changed(spec)
    world.resources.node_states.put(state_of(spec, cordoned=True))
    changes: dict[str, dict[str, Any]] = {
        "unasked": {},
        "unasked-own": {"gated": True},
        "unasked-gated": {"gated": True, "demands": Demands(gated=True)},
        "unasked-other": {"gated": True, "served": False},
        "asked": {"gated": True},
    }
    for name, change in changes.items():
        world.ledger.pod_changed(pod(name, 4)._replace(**change))
    result = {item["name"]: item for item in part(world)["pending"]}
    assert {name: entry["scheduler"] for name, entry in result.items()} == {
        "unasked": "no scheduler has asked gpushare about it",
        "unasked-own": "kube-scheduler's own filters leave it no node",
        "unasked-gated": "its scheduling gates hold it back",
        "unasked-other": "kube-scheduler's file has no profile of its schedulerName",
        "asked": None,
    }
    assert "it would fit on a once it is uncordoned" in result["asked"]["why"]
    world.resources.node_states.put(state_of(spec))
    end = time.monotonic() + 10
    while part(world)["pending"][0]["why"] != "it fits now on a":  # it is its turn soon
        assert time.monotonic() < end


def test_a_request_that_makes_no_sense_is_listed_with_what_is_wrong() -> None:
    world = World()
    world.ledger.node_changed(node("a", 16))
    request = Request(4, 1, policy="nosuch")
    world.ledger.pod_changed(pod("odd", 4)._replace(request=request))
    uneven = pod_json("uneven", 7, annotations={ALIYUN.count: "2"})
    PodEventHandler(world.resources, mistaken_pods=world.mistaken_pods).apply(
        WatchEvent("ADDED", read_pod(uneven))
    )
    result = {item["name"]: item["why"] for item in part(world)["pending"]}
    assert "no policy is called 'nosuch'" in result["odd"]
    assert "7 cannot be split evenly over 2 devices" in result["uneven"]
    world.mistaken_pods.gone("uid-uneven")
    assert [item["name"] for item in part(world)["pending"]] == ["odd"]


def test_the_policy_and_what_its_trial_measured() -> None:
    world = World()
    assert part(world)["policy"]["candidates"] == []
    world.trial()
    policy = part(world)["policy"]
    assert (policy["second"], policy["lead"], policy["error"]) == ("shadow-price", 2.1, 0.4)
    assert policy["candidates"][0] == {"name": "binpack", "allocated": 81.2, "refused": 9.1}


def test_what_a_shadow_policy_has_found_is_there_and_makes_it_anew() -> None:
    world = World()
    assert part(world)["shadow"] is None
    traffic = Traffic([node("a", 8, 8), node("b", 8, 8)], "binpack", "spread")
    documents = Documents(
        traffic.resources,
        "GiB",
        world.hour,
        not_ready=str,
        called=bool,
        mistaken_pods=world.mistaken_pods,
        shadow=traffic.shadow,
    )
    assert documents.body() is documents.body()
    for uid in ("one", "two"):
        traffic.come(uid, Request(3, 1))
    traffic.now += 10.0
    traffic.shadow.work()
    parsed_document = json.loads(documents.body())["resources"][0]["shadow"]
    assert parsed_document == {
        "policy": "spread",
        "off": None,
        "choices": {"same": 1, "node": 1, "device": 0},
        "pods": {"both": 2, "real": 0, "shadow": 0},
        "inexact": 0,
        "rebases": 0,
        "dropped": 0,
        "real": {"pods": 2, "allocated": 6, "stranded": 2},
        "books": {"pods": 2, "allocated": 6, "stranded": 0},
    }


def test_who_does_not_answer_says_so_and_shows_its_books() -> None:
    world = World()
    world.ledger.node_changed(node("a", 16))
    world.not_ready = "another process leads"
    result = read(world)
    assert result["notReady"] == "another process leads"
    assert result["resources"][0]["nodes"]


def test_it_is_made_anew_only_when_something_has_changed() -> None:
    world = World()
    world.fill(3)
    first = world.documents.body()
    assert world.documents.body() is first
    for change in (
        lambda: world.ledger.pod_changed(pod("placed", 8, "gpu-1", 0)),
        lambda: world.ledger.node_changed(node("new", 16)),
        lambda: world.hour.allocated(MEM, "uid", 8),
        world.trial,
    ):
        change()
        assert world.documents.body() != first
        first = world.documents.body()
    assert world.documents.body() is first
    world.ledger.pod_changed(pod("late", 17))
    assert b'"late"' in world.documents.body()


def test_only_nodes_that_have_changed_are_written_anew(monkeypatch: Any) -> None:
    world = World()
    world.fill(20)
    world.documents.body()
    created: list[str] = []
    write = document.node_document

    def count(spec: Any, *rest: Any, **further: Any) -> Any:
        created.append(spec.name)
        return write(spec, *rest, **further)

    monkeypatch.setattr(document, "node_document", count)
    world.ledger.pod_changed(pod("more", 5, "gpu-7", 0))
    assert any(item["name"] == "more" for item in part(world)["nodes"][17]["pods"])
    assert created == ["gpu-7"]


def test_what_is_held_is_there_until_it_ends_by_time() -> None:
    world = World()
    world.ledger.node_changed(node("a", 16))
    world.ledger.pod_changed(pod("late", 6))
    assert part(world)["held"] == []
    ref = PodRef("default", "late", "uid-default-late")
    world.managed.holds.offered(Claimant(ref, Request(6, 1)), "a", time.monotonic() - 4.8)
    (place,) = part(world)["held"]
    assert (place["pod"]["name"], place["node"], place["units"]) == ("late", "a", 6)
    assert place["until"].endswith("Z")
    poll(lambda: part(world)["held"] == [])


def test_room_that_is_held_for_others_is_not_told_to_be_free() -> None:
    world, now = World(), time.monotonic()
    world.ledger.node_changed(node("a", 16))
    large, late = (PodRef("default", name, f"uid-default-{name}") for name in ("large", "late"))
    for ref in (large, late):
        world.ledger.pod_changed(pod(ref.name, 12))
    whys = {item["name"]: item["why"] for item in part(world)["pending"]}
    assert whys == {"large": "it fits now on a", "late": "it fits now on a"}
    claim = Claimant(large, Request(12, 1))
    world.managed.holds.begin_reservation(claim, "a", ((0, 12),), now + 600, now)
    soon = "it may fit soon: the books have just changed, or places are held for other pods"
    expected = {
        "large": "it fits now on a",
        "late": f"free now: at most 4 GiB on a device 0; {soon}",
    }
    poll(
        lambda: {item["name"]: item["why"] for item in part(world)["pending"]} == expected,
        lambda: str(part(world)["pending"]),
    )


def test_room_that_is_reserved_for_a_younger_pod_is_free_for_an_older_one() -> None:
    world, now = World(), time.monotonic()
    world.ledger.node_changed(node("a", 16))
    created = {"older": 100.0, "young": 200.0, "late": 300.0}
    for name, since in created.items():
        world.ledger.pod_changed(pod(name, 12)._replace(created=since))
    young = PodRef("default", "young", "uid-default-young")
    claim = Claimant(young, Request(12, 1), created=created["young"])
    world.managed.holds.begin_reservation(claim, "a", ((0, 12),), now + 600, now)
    whys = {item["name"]: item["why"] for item in part(world)["pending"]}
    assert whys["older"] == whys["young"] == "it fits now on a"
    assert whys["late"] != whys["older"]


def test_names_are_data() -> None:
    world = World()
    world.ledger.node_changed(node(HOSTILE, 16))
    world.ledger.pod_changed(pod('</script>"\u2028', 4, HOSTILE, 0))
    (only,) = part(world)["nodes"]
    assert only["name"] == HOSTILE
    assert only["pods"][0]["name"] == '</script>"\u2028'


def test_a_node_says_why_autoscalers_leave_it_alone_as_long_as_they_do() -> None:
    world = World()
    world.fill(2)
    assert not any("keptFromScaleDown" in node for node in part(world)["nodes"])
    world.kept = {"gpu-2": "team/web would have no place"}
    first, second = part(world)["nodes"]
    assert "keptFromScaleDown" not in first
    assert second["keptFromScaleDown"] == "team/web would have no place"
    world.kept = {}
    assert not any("keptFromScaleDown" in node for node in part(world)["nodes"])


def test_groups_that_wait_at_bind_are_told() -> None:
    world = World()
    assert json.loads(world.documents.body())["groups"] == []
    group, ref = Group("jobset team/train", 3), PodRef("team", "a", "uid-a")
    world.resources.gate.shown(group.key, Member(ref))
    world.resources.gate.arrive(group, Arrival(ref, "1", "gpu-a", "", time.monotonic() + 5.0))
    (parsed_document,) = json.loads(world.documents.body())["groups"]
    assert parsed_document.pop("waitsUntil")
    assert parsed_document == {
        "name": "jobset team/train",
        "size": 3,
        "existing": 1,
        "bound": 0,
        "waiting": 1,
    }
