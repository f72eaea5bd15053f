"""`gpushare defrag --apply`: the evicted pods, their order, and the reasons to stop."""

import itertools
import json
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.cli import defrag, defrag_apply
from gpushare.cli.defrag import main
from gpushare.errors import ApiConflict, ApiError, ApiNotFound
from gpushare.wire.kept import MOVES
from gpushare.wire.moves import SETTLES, MoveRecord, record_of
from tests.unit.cli.fake_kubectl import inventory, node, pending, pod
from tests.unit.cli.test_defrag import budget, running

FOR_POD = ["--for", "pod", "team-a/late-0", "--apply"]
TARGETS = {"embed-7f9c-x": ("gpu-2", "1"), "notebook-0": ("gpu-2", "0")}
MAPS = "/api/v1/namespaces/kube-system/configmaps"
RECORD = f"{MAPS}/{MOVES}"
EPOCH = 1_800_000_000.0
Capsys = pytest.CaptureFixture[str]
Apply = Callable[..., tuple[int, str, str]]


class Evictor:
    """An API server with controllers and a scheduler that do their work at once.

    faults: what an eviction raises instead, one a call; None: nothing. before: runs at each
    eviction, first. places: where a pod made anew goes; "" leaves it without a node. record: the
    ConfigMap of moves. write_fails: what the next write of it raises instead.
    """

    def __init__(self) -> None:
        self.nodes = [node(name, inventory=inventory(80, 80)) for name in ("gpu-1", "gpu-2")]
        self.late = pending("late-0", 120, namespace="team-a")
        self.late["metadata"] |= {"labels": {"aliyun.com/gpu-count": "2"}}
        self.pods = [
            running("notebook-0", "gpu-1:0", 10),
            running("embed-7f9c-x", "gpu-1:1", 22, owner="ReplicaSet"),
            pod("train-0", "gpu-1", 20, idx="0", namespace="team-b"),
            running("serve-0", "gpu-2:0", 60, hours=100),
            running("serve-1", "gpu-2:1", 50, hours=100),
            self.late,
        ]
        for at, item in enumerate(self.pods):
            item["metadata"]["resourceVersion"] = str(at)
        self.pod("embed-7f9c-x")["metadata"]["ownerReferences"][0]["uid"] = "replicas"
        self.budgets = [budget("team-a", 1)]
        self.places = dict(TARGETS)
        self.phase = "Running"
        self.evictions: list[dict[str, Any]] = []
        self.faults: list[Exception | None] = []
        self.before: Callable[[], None] = lambda: None
        self.reads_fail = 0
        self.record: dict[str, Any] | None = None
        self.write_fails: list[Exception] = []
        self.binds = True
        self._numbers = itertools.count(1)

    def pod(self, name: str) -> dict[str, Any]:
        return next(item for item in self.pods if item["metadata"]["name"] == name)

    def names(self) -> dict[str, str]:
        return {item["metadata"]["name"]: item["spec"].get("nodeName", "") for item in self.pods}

    def _of(self, namespace: str) -> list[dict[str, Any]]:
        return [item for item in self.pods if item["metadata"]["namespace"] == namespace]

    def evicted(self) -> list[str]:
        return [eviction["metadata"]["name"] for eviction in self.evictions]

    # -- calls of the command ------------------------------------------------------------------

    def namespace(self) -> str:
        return "default"

    def get(self, path: str) -> Mapping[str, Any]:
        if path == RECORD and self.record is not None:
            return self.record
        raise ApiNotFound("no such object", 404)

    def request(self, _method: str, path: str, **_: object) -> bytes:
        if self.reads_fail:
            self.reads_fail -= 1
            raise ApiError("Unable to connect to the server: no", 0)
        for item in self.pods:
            if path == f"/api/v1/namespaces/team-a/pods/{item['metadata']['name']}":
                return json.dumps({"apiVersion": "v1", "kind": "Pod"} | item).encode()
        lists: dict[str, tuple[str, list[Any]]] = {
            "/api/v1/nodes": ("Node", self.nodes),
            "/api/v1/pods": ("Pod", self.pods),
            "/api/v1/namespaces": ("Namespace", [{"metadata": {"name": "team-a"}}]),
            "/api/v1/namespaces/team-a/pods": ("Pod", self._of("team-a")),
            "/apis/policy/v1/poddisruptionbudgets": ("PodDisruptionBudget", self.budgets),
            "/api/v1/namespaces/kube-system/configmaps": ("ConfigMap", []),
        }
        if path not in lists:  # it has no device class of claims
            raise ApiNotFound("not found", 404)
        kind, items = lists[path]
        document = {"kind": f"{kind}List", "metadata": {"resourceVersion": "7"}, "items": items}
        return json.dumps(document).encode()

    def replace(self, path: str, body: dict[str, Any]) -> None:
        assert path == RECORD
        assert self.record is not None
        self.write(body, self.record["metadata"]["resourceVersion"])

    def write(self, body: dict[str, Any], version: str | None = None) -> None:
        """Store the record unless it has changed since the read."""
        if self.write_fails:
            raise self.write_fails.pop(0)
        assert body["metadata"].get("resourceVersion") == version
        self.record = deepcopy(body)
        self.record["metadata"]["resourceVersion"] = f"{next(self._numbers)}00"

    def moves(self) -> dict[str, bool]:
        """Which evictions are written down, and whether their end is known."""
        moves = json.loads(self.record["data"]["moves"]) if self.record else []
        return {move["pod"]: move["settled"] for move in moves}

    def create(self, path: str, body: dict[str, Any]) -> None:
        if path == MAPS:
            self.write(body)
            return
        name = path.split("/")[-2]
        assert path == f"/api/v1/namespaces/team-a/pods/{name}/eviction"
        record = record_of(self.record or {}, EPOCH)
        move = record.under_way(EPOCH)
        assert move is not None, "it is written down"
        assert move.pod == f"team-a/{name}", "nothing else is under way"
        self.before()
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        self.evict(name, body)

    def evict(self, name: str, body: dict[str, Any]) -> None:
        """Take the pod away, and make another in its stead."""
        old = next((item for item in self.pods if item["metadata"]["name"] == name), None)
        if old is None:
            raise ApiNotFound("Error from server (NotFound): no", 404)
        preconditions = body["deleteOptions"]["preconditions"]
        metadata = old["metadata"]
        if preconditions != {key: metadata[key] for key in ("uid", "resourceVersion")}:
            raise ApiConflict("Error from server (Conflict): no", 409)
        self.evictions.append(body)
        self.pods.remove(old)
        replacement = deepcopy(old)
        number = next(self._numbers)
        replacement["metadata"] |= {"uid": f"new-{number}", "resourceVersion": f"{number}00"}
        place, device = self.places[name]
        replacement["spec"]["nodeName"], replacement["status"]["phase"] = place, self.phase
        replacement["metadata"]["annotations"] = {"ALIYUN_COM_GPU_MEM_IDX": device}
        replacement["status"]["startTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if name.startswith("embed"):
            replacement["metadata"]["name"] = f"embed-7f9c-{number}"
        self.pods.append(replacement)
        if self.binds and len(self.evictions) == len(TARGETS):
            self.late["spec"]["nodeName"] = "gpu-1"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Evictor:
    changes = Evictor()
    now = itertools.count()
    monkeypatch.setattr(defrag, "connection", lambda *_: changes)
    clock = SimpleNamespace(
        sleep=lambda _: None, monotonic=lambda: float(next(now)), time=lambda: EPOCH
    )
    monkeypatch.setattr(defrag_apply, "time", clock)
    return changes


@pytest.fixture
def apply(api: Evictor, capsys: Capsys) -> Apply:
    def run(*words: str) -> tuple[int, str, str]:
        code = main([*(words or FOR_POD), "--yes", "--wait", "20"])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def stopped(answer: tuple[int, str, str]) -> str:
    code, out, err = answer
    assert (code, err) == (1, "")
    last = out.splitlines()[-1]
    assert last.startswith("Stopped:  ")
    return last.removeprefix("Stopped:  ")


def test_each_pod_is_evicted_once_the_one_before_runs_and_the_pod_is_bound(
    api: Evictor, apply: Apply
) -> None:
    code, out, err = apply()
    assert (code, err) == (0, "")
    assert sorted(api.evicted()) == ["embed-7f9c-x", "notebook-0"]
    assert api.names()["late-0"] == "gpu-1"
    assert set(api.moves().values()) == {True}
    steps = [line.split()[4] for line in out.splitlines() if line.startswith("move ")]
    assert [step == "evicting" for step in steps] == [True, False, True, False]
    assert out.splitlines()[-1] == "Done:     the pod that waited is bound to gpu-1"


def test_an_eviction_can_hit_only_the_pod_that_was_looked_at(api: Evictor, apply: Apply) -> None:
    assert apply()[0] == 0
    for eviction in api.evictions:
        assert eviction["apiVersion"] == "policy/v1"
        preconditions = eviction["deleteOptions"]["preconditions"]
        assert preconditions["uid"] == f"uid-{eviction['metadata']['name']}"
        assert preconditions["resourceVersion"] in ("0", "1")


def test_the_document_comes_alone_and_once(api: Evictor, apply: Apply) -> None:
    code, out, err = apply(*FOR_POD, "-o", "json")
    assert code == 0
    text = json.loads(out)["apply"]
    assert {item["name"] for item in text["moved"]} == {"embed-7f9c-x", "notebook-0"}
    assert (text["left"], text["stopped"], text["boundTo"]) == ([], None, "gpu-1")
    assert "move 2 of 2" in err


def test_room_of_a_size_is_looked_at_in_the_end(api: Evictor, apply: Apply) -> None:
    api.binds = False
    api.pods.remove(api.late)
    code, out, _ = apply("--for", "2x60GiB", "--apply")
    assert (code, out.splitlines()[-1]) == (0, "Done:     the room is open")
    assert len(api.evictions) == 2


def test_what_fits_evicts_nobody(api: Evictor, apply: Apply) -> None:
    code, out, _ = apply("--for", "20GiB", "--apply")
    assert (code, api.evictions) == (0, [])
    assert "nothing has to move" in out


def test_without_a_word_nobody_is_evicted(
    api: Evictor, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--for", "pod", "team-a/late-0"]) == 0
    monkeypatch.setattr("sys.stdin", Terminal("", terminal=False))
    assert main(FOR_POD) == 2
    assert "say --yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", Terminal("\n"))
    assert main(FOR_POD) == 1
    assert capsys.readouterr().out.endswith("[y/N] Nothing was changed.\n")
    assert api.evictions == []
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert main(FOR_POD) == 0
    assert len(api.evictions) == 2


class Terminal:
    """The input of a user."""

    def __init__(self, typed: str, *, terminal: bool = True) -> None:
        self.typed, self.terminal = typed, terminal

    def isatty(self) -> bool:
        return self.terminal

    def readline(self) -> str:
        return self.typed


REFUSED = ApiError("Error from server (TooManyRequests): the budget", 429)
LOST = ApiError("error: connection lost", 0)


def test_a_budget_in_the_way_is_waited_for(api: Evictor, apply: Apply) -> None:
    api.faults = [REFUSED, REFUSED]
    code, out, _ = apply()
    assert (code, len(api.evictions)) == (0, 2)
    assert out.count("it is tried again") == 1


def test_a_budget_that_never_allows_it_stops(api: Evictor, apply: Apply) -> None:
    api.faults = [REFUSED] * 100
    assert "(TooManyRequests): the budget, for 20 seconds" in stopped(apply())
    assert api.evictions == []
    assert api.moves() == {}, "nothing was moved"


def test_a_budget_that_counts_the_pod_moved_last_is_waited_for(
    api: Evictor, apply: Apply, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, looks = api.budgets[0]["status"], itertools.count()
    lists = api.request

    def request(method: str, path: str, **more: object) -> bytes:
        if path.endswith("poddisruptionbudgets") and api.evictions and next(looks) > 1:
            status["disruptionsAllowed"] = 1
        return lists(method, path, **more)

    monkeypatch.setattr(api, "request", request)
    api.before = lambda: status.update(disruptionsAllowed=0)
    code, out, _ = apply()
    assert (code, len(api.evictions)) == (0, 2)
    assert "allows no disruption now; waiting for it" in out


def test_a_spent_budget_stops_in_the_end(api: Evictor, apply: Apply) -> None:
    api.before = lambda: api.budgets[0]["status"].update(disruptionsAllowed=0)
    assert "its PodDisruptionBudget allows no disruption now" in stopped(apply())
    assert len(api.evictions) == 1


def test_rights_that_are_missing_are_told(api: Evictor, apply: Apply) -> None:
    api.faults = [ApiError("Error from server (Forbidden): no", 403)]
    assert "pods/eviction may not be created in namespace team-a" in stopped(apply())


def _of_another(api: Evictor, at: float) -> None:
    """Write an eviction down, as another process does."""
    api.write(MoveRecord().sent("uid-other", "team-b/other", at).document())


def test_while_another_process_moves_a_pod_nobody_is_evicted(api: Evictor, apply: Apply) -> None:
    _of_another(api, EPOCH)
    assert "team-b/other is being moved by another process, for 20" in stopped(apply())
    assert api.evictions == []
    assert api.moves() == {"team-b/other": False}


def test_an_eviction_of_the_same_pod_by_another_process_stays_written_down(
    api: Evictor, apply: Apply
) -> None:
    for name in TARGETS:
        api.record = None
        api.write(MoveRecord().sent(f"uid-{name}", f"team-a/{name}", EPOCH).document())
        assert "is being moved by another process" in stopped(apply())
        assert api.moves() == {f"team-a/{name}": False}
    assert api.evictions == []


def test_it_goes_on_once_the_other_process_has_moved_its_pod(
    api: Evictor, apply: Apply, monkeypatch: pytest.MonkeyPatch
) -> None:
    _of_another(api, EPOCH)
    looks, lists = itertools.count(), api.request

    def request(method: str, path: str, **more: object) -> bytes:
        if path == "/api/v1/nodes" and next(looks) == 3:
            record = record_of(api.record or {}, EPOCH)
            api.replace(RECORD, record.settled("uid-other").document())
        return lists(method, path, **more)

    monkeypatch.setattr(api, "request", request)
    code, out, _ = apply()
    assert (code, len(api.evictions)) == (0, 2)
    assert out.count("it is tried again") == 1
    assert api.moves() == dict.fromkeys(
        ("team-b/other", "team-a/embed-7f9c-x", "team-a/notebook-0"), True
    )


def test_an_eviction_of_long_ago_holds_up_nobody(api: Evictor, apply: Apply) -> None:
    _of_another(api, EPOCH - SETTLES)
    assert apply()[0] == 0


def test_who_writes_a_move_down_at_the_same_time_comes_first(api: Evictor, apply: Apply) -> None:
    api.write_fails = [ApiConflict("Error from server (AlreadyExists): no", 409)]
    code, out, _ = apply()
    assert (code, len(api.evictions)) == (0, 2)
    assert "another process moves pods, too; it is tried again" in out


def test_what_may_not_be_written_down_is_not_done(api: Evictor, apply: Apply) -> None:
    api.write_fails = [ApiError("Error from server (Forbidden): no", 403)]
    text = stopped(apply())
    assert text.startswith("ConfigMap gpushare-moves, in which moves are written down, may not be")
    assert "docs/defrag.md" in text
    assert api.evictions == []


def test_an_end_that_cannot_be_written_down_is_written_with_the_next_move(
    api: Evictor, apply: Apply
) -> None:
    api.before = lambda: api.write_fails.extend([LOST] if not api.evictions else [])
    code, _, _ = apply()
    assert (code, len(api.evictions)) == (0, 2)
    assert set(api.moves().values()) == {True}


@pytest.mark.parametrize("reads_fail", [0, 3])
def test_a_lost_answer_of_what_was_not_done_is_sent_again(
    api: Evictor, apply: Apply, reads_fail: int
) -> None:
    def lose() -> None:
        api.reads_fail = reads_fail if api.faults and api.faults[0] else 0

    api.faults, api.before = [LOST], lose
    code, out, _ = apply()
    assert (code, len(api.evictions)) == (0, 2)
    assert "had no clear answer" in out


@pytest.mark.parametrize("late", [False, True])
def test_a_lost_answer_of_what_was_done_is_seen(api: Evictor, apply: Apply, *, late: bool) -> None:
    create = api.create
    calls: list[dict[str, Any]] = []

    def lose(path: str, body: dict[str, Any]) -> None:
        if path == MAPS:
            create(path, body)
            return
        calls.append(body)
        if len(calls) == 1 and not late:
            create(path, body)
        if len(calls) == 1:
            raise LOST
        if len(calls) == 2 and late:  # the first call arrives before the second one
            create(path, body)
        create(path, body)

    api.create = lose  # type: ignore[method-assign]
    code, _, _ = apply()
    assert (code, len(api.evictions)) == (0, 2)
    assert len(calls) == (3 if late else 2)


def test_a_pod_that_changes_after_a_lost_answer_is_looked_at_again(
    api: Evictor, apply: Apply
) -> None:
    api.faults = [LOST, ApiConflict("no", 409)]
    code, out, _ = apply()
    assert (code, len(api.evictions)) == (0, 2)
    assert "has changed since it was looked at; it is tried again" in out


def test_an_outcome_that_stays_unknown_is_told_as_such(api: Evictor, apply: Apply) -> None:
    def lose() -> None:
        api.reads_fail = 10_000

    api.faults, api.before = [LOST], lose
    answer = apply()
    assert "was evicted is not known" in stopped(answer)
    assert "Unknown:  whether team-a/" in answer[1]


def test_a_pod_that_changed_is_looked_at_again(api: Evictor, apply: Apply) -> None:
    api.faults = [ApiConflict("no", 409)]
    assert apply()[0] == 0


def _elsewhere(api: Evictor) -> None:
    api.places = dict.fromkeys(TARGETS, ("gpu-1", "0"))


def _never_runs(api: Evictor) -> None:
    api.phase = "Pending"


def _has_no_node(api: Evictor) -> None:
    api.places = dict.fromkeys(TARGETS, ("", ""))
    api.phase = "Pending"


def _rolls(api: Evictor) -> None:
    """Have another ReplicaSet make the pods from now on, as in a roll-out."""
    evict = api.evict

    def by_another(name: str, body: dict[str, Any]) -> None:
        evict(name, body)
        api.pods[-1]["metadata"]["ownerReferences"][0]["uid"] = "next"

    api.evict = by_another  # type: ignore[method-assign]


def _ends_slowly(api: Evictor) -> None:
    old = deepcopy(api.pods[:2])
    for item in old:
        item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    evict = api.evict

    def keep(name: str, body: dict[str, Any]) -> None:
        evict(name, body)
        api.pods += [item for item in old if item["metadata"]["name"] == name]

    api.evict = keep  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (_elsewhere, "landed on gpu-1, not on gpu-2"),
        (_never_runs, "is Pending on gpu-2"),
        (_has_no_node, "is Pending and waits for a node"),
        (_rolls, "no pod came in its stead"),
        (_ends_slowly, "is still ending"),
    ],
)
def test_a_moved_pod_that_is_not_where_it_was_planned_stops(
    api: Evictor, apply: Apply, fault: Callable[[Evictor], None], text: str
) -> None:
    fault(api)
    answer = apply()
    assert text in stopped(answer)
    assert len(api.evictions) == 1
    assert "Evicted:  team-a/" in answer[1]
    assert "Left:     team-a/" in answer[1]


def _first_is_made(api: Evictor, change: Callable[[], None]) -> None:
    evict = api.evict

    def then(name: str, body: dict[str, Any]) -> None:
        evict(name, body)
        change()

    api.evict = then  # type: ignore[method-assign]


def _close_the_hole(api: Evictor) -> None:
    api.nodes[0]["spec"] = {"unschedulable": True}


def _withdraw_consent(api: Evictor) -> None:
    for item in api.pods:
        item["metadata"].get("labels", {}).pop("gpushare.io/movable", None)


def _bind_elsewhere(api: Evictor) -> None:
    api.late["spec"]["nodeName"] = "gpu-9"


def _delete_late(api: Evictor) -> None:
    api.pods.remove(api.late)


def _make_late_anew(api: Evictor) -> None:
    api.late["metadata"]["uid"] = "another"


def _more_room_needed(api: Evictor) -> None:
    api.pods.append(running("more-0", "gpu-1:1", 30))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_close_the_hole, "the rest of the plan holds no longer"),
        (_withdraw_consent, "no label gpushare.io/movable"),
        (_bind_elsewhere, "is bound to gpu-9 already"),
        (_delete_late, "for which it is done, is gone"),
        (_make_late_anew, "for which it is done, is gone"),
        (_more_room_needed, "the rest of the plan holds no longer"),
    ],
)
def test_it_stops_between_moves_if_the_plan_holds_no_longer(
    api: Evictor, apply: Apply, change: Callable[[Evictor], None], text: str
) -> None:
    _first_is_made(api, lambda: change(api))
    answer = apply()
    assert text in stopped(answer)
    assert len(api.evictions) == 1
    assert sum(line.startswith("Moved:") for line in answer[1].splitlines()) == 1
    assert "Left:     team-a/" in answer[1]


def test_what_need_not_move_any_more_stays(api: Evictor, apply: Apply) -> None:
    def leave() -> None:
        ended_pods = [item for item in api.pods if item["metadata"]["uid"].startswith("uid-")]
        api.pods = [item for item in api.pods if item not in ended_pods[:1]]
        api.late["spec"].pop("nodeName", None)

    api.binds = False
    api.pods.remove(api.late)
    _first_is_made(api, leave)
    code, out, _ = apply("--for", "2x60GiB", "--apply")
    assert (code, len(api.evictions)) == (0, 1)
    assert "what was left of the plan need not move" in out


def test_a_pod_that_has_its_room_before_all_was_moved_needs_no_more(
    api: Evictor, apply: Apply
) -> None:
    _first_is_made(api, lambda: api.late["spec"].update(nodeName="gpu-1"))
    code, out, _ = apply()
    assert (code, len(api.evictions)) == (0, 1)
    assert "what was left of the plan need not move" in out
    assert "Left:" not in out
    assert out.splitlines()[-1] == "Done:     the pod that waited is bound to gpu-1"


def test_room_that_the_pod_does_not_get_is_told(api: Evictor, apply: Apply) -> None:
    api.binds = False
    assert "the room is open, but pod team-a/late-0 is not bound" in stopped(apply())
    assert len(api.evictions) == 2


@pytest.mark.parametrize("is_evicted", [False, True])
def test_ctrl_c_in_an_eviction_says_where_it_stands(
    api: Evictor, apply: Apply, *, is_evicted: bool
) -> None:
    evict = api.evict

    def interrupted(name: str, body: dict[str, Any]) -> None:
        if is_evicted:
            evict(name, body)
        raise KeyboardInterrupt

    api.evict = interrupted  # type: ignore[method-assign]
    code, out, _ = apply()
    assert code == 130
    assert ("Evicted:  " in out, "Unknown:  " in out) == (is_evicted, not is_evicted)
    assert out.splitlines()[-1] == "Stopped:  ended by Ctrl-C"


def test_words_that_do_not_go_together_are_refused(api: Evictor, capsys: Capsys) -> None:
    for words, text in (
        (["--apply", "--snapshot", "f"], "--apply goes with a live cluster"),
        (["--yes"], "--yes goes with --apply"),
        (["--apply", "--wait", "0"], "--wait: 0 is not from 1"),
    ):
        assert main(["--for", "8GiB", *words]) == 2
        assert text in capsys.readouterr().err
