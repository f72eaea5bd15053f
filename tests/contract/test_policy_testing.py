"""`gpushare.policy.testing` passes our own policies and refuses each kind of broken one."""

import re
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import gpushare.policy
from gpushare.core.policy import load_policy, policy_names
from gpushare.policy import (
    REQUEST_FIELDS,
    SNAPSHOT_FIELDS,
    Floats,
    PodClass,
    Request,
    Rows,
    Snapshot,
    Workload,
)
from gpushare.policy.testing import check_policy, snapshot

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", policy_names())
def test_the_policies_that_we_ship_keep_the_contract(name: str) -> None:
    check_policy(lambda workload: load_policy(name, workload), clusters=30)


class _Tightest:
    """A policy that keeps the contract; each broken one below differs in one point."""

    def __init__(self, _workload: Workload | None = None) -> None:
        """Nothing is prepared."""

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        remaining: Floats = (snapshot.free[rows] - request.units).astype(np.float64)
        return -remaining


class _NoScore:
    def __init__(self, _workload: Workload | None = None) -> None:
        """Nothing is prepared."""


class _Unpicklable(_Tightest):
    def __init__(self, _workload: Workload | None = None) -> None:
        self.key = lambda: 0


class _Forgetful(_Tightest):
    def __init__(self, _workload: Workload | None = None) -> None:
        self.sign = -1.0

    def __getstate__(self) -> dict[str, float]:
        return {"sign": 1.0}

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        return self.sign * super().score(snapshot, rows, request)


class _Whole(_Tightest):
    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        return snapshot.free[rows]  # type: ignore[return-value]


class _ByNode(_Tightest):
    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        return snapshot.free[rows].sum(axis=1).astype(float)  # type: ignore[no-any-return]


class _Divides(_Tightest):
    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return 1.0 / (snapshot.free[rows] - request.units)


class _DividesByDevices(_Tightest):
    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        return super().score(snapshot, rows, request) + request.total // request.devices


class _Counts(_Tightest):
    def __init__(self, _workload: Workload | None = None) -> None:
        self.calls = 0.0

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        self.calls += 1
        return super().score(snapshot, rows, request) + self.calls


class _Ranks(_Tightest):
    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        return super().score(snapshot, rows, request) + np.arange(len(rows))[:, None]


class _ReadsContainers(_Tightest):
    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        return super().score(snapshot, rows, request) + len(request.inits)


class _LooksAtOthers(_Tightest):
    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        return super().score(snapshot, rows, request) + int(snapshot.used.sum())


class _ReadsWhatIsOurs(_Tightest):
    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        return super().score(snapshot, rows, request) + snapshot.generation * 0


class _Writes(_Tightest):
    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        rows[:] = 0
        return super().score(snapshot, rows, request)


class _ReadsHost(_Tightest):
    ignores_host = True

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        return super().score(snapshot, rows, request) + request.cpu


class _KeyedByNothing(_Tightest):
    def shapes_key(self, _snapshot: Snapshot) -> int:
        return 0

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        return super().score(snapshot, rows, request) + len(snapshot.names)


class _KeyedByNumber(_KeyedByNothing):
    def shapes_key(self, snapshot: Snapshot) -> int:
        return len(snapshot.names)


@pytest.mark.parametrize("policy", [_Tightest, _KeyedByNumber])
def test_a_policy_that_keeps_the_contract_passes(policy: type[_Tightest]) -> None:
    check_policy(policy)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (_NoScore, "no method score"),
        (_Unpicklable, "cannot be pickled"),
        (_Forgetful, "a pickled copy scores differently"),
        (_Whole, "must return float64, not int64"),
        (_ByNode, "an entry for each row and device"),
        (_Divides, "must be finite where the request fits: cluster"),
        (_DividesByDevices, "score raised ZeroDivisionError"),
        (_Counts, "the same question must get the same answer"),
        (_Ranks, "must not depend on the order of the rows"),
        (_ReadsContainers, "may depend on the request's units, devices, cpu, memory"),
        (_LooksAtOthers, "must not depend on the pods of other nodes"),
        (_ReadsWhatIsOurs, "snapshot.generation is not promised to policies"),
        (_Writes, "must not change the rows"),
        (_ReadsHost, "says ignores_host must not read cpu or memory"),
        (_KeyedByNothing, "scores must stay while shapes_key does"),
    ],
)
def test_a_broken_policy_is_refused_with_what_to_change(
    broken: type[_Tightest], sentence: str
) -> None:
    with pytest.raises(AssertionError, match=re.escape(sentence)):
        check_policy(broken)


def test_what_is_promised_is_there() -> None:
    assert all(hasattr(gpushare.policy, name) for name in gpushare.policy.__all__)
    field_names = {field.name for field in fields(Snapshot)}
    assert all(name in field_names or hasattr(Snapshot, name) for name in SNAPSHOT_FIELDS)
    assert all(hasattr(Request(1, 1), name) for name in REQUEST_FIELDS)


def test_the_page_lists_every_promised_field_and_no_other() -> None:
    def listed(heading: str) -> list[str]:
        section = PAGE.split(f"\n### {heading}\n")[1].split("\n#")[0]
        cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        return sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell))

    assert listed("The snapshot") == sorted(SNAPSHOT_FIELDS)
    assert listed("The request") == sorted(REQUEST_FIELDS)


def test_the_page_lists_the_fields_that_a_workload_and_a_pod_class_have() -> None:
    section = PAGE.split("\n### The workload\n")[1].split("\n#")[0]
    workload, pod_class = section.split("| field of a `PodClass` |")
    for table, value in ((workload, Workload()), (pod_class, PodClass())):
        cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        names = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
        attributes = {name for name in dir(type(value)) if not name.startswith("_")}
        assert names == attributes


def test_the_examples_of_the_page_run_and_keep_the_contract(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, tests = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    # pickle looks a class up by its module.
    module = ModuleType("my_policies")
    monkeypatch.setitem(sys.modules, "my_policies", module)
    exec(compile(policy, "docs/policies.md", "exec"), module.__dict__)  # noqa: S102  # our own page
    names: dict[str, object] = {}
    exec(compile(tests, "docs/policies.md", "exec"), names)  # noqa: S102  # our own page
    result = [value for name, value in names.items() if name.startswith("test_")]
    assert len(result) == 2
    for test in result:
        assert callable(test)
        test()


def test_a_snapshot_made_by_hand_has_what_was_given() -> None:
    created = snapshot(
        [
            {"capacity": (8, 8), "used": (2,), "model": "A"},
            {"capacity": (4,), "cpu": 2000, "memory": 2**30},
            {"capacity": ()},
        ]
    )
    assert created.names == ("node-0", "node-1", "node-2")
    assert created.free.tolist() == [[6, 8], [4, 0], [0, 0]]
    assert created.used.tolist() == [[2, 0], [0, 0], [0, 0]]
    assert created.open.tolist() == [[True, True], [True, False], [False, False]]
    assert [created.models[at] for at in created.model[:, 0].tolist()[:2]] == ["A", ""]
    assert created.cpu_free.tolist()[1] == 2000
    assert (created.cpu_capacity < 0).tolist() == [True, False, True]
    assert created.memory_free.tolist()[1] == 2**30
    assert created.gpu_pods.tolist() == [1, 0, 0]


def test_a_snapshot_refuses_more_used_devices_than_there_are() -> None:
    with pytest.raises(ValueError, match="node-0: used has 2 devices, capacity 1"):
        snapshot([{"capacity": (8,), "used": (1, 2)}])
