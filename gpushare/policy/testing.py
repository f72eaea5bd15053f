"""A contract test for placement policies, to be run from the policy's own repository.

    from gpushare.policy.testing import check_policy

    def test_my_policy_keeps_the_contract():
        check_policy(MyPolicy)

The clusters are drawn from a seed, so a failure can be repeated. The only dependency is numpy.
`snapshot` makes a small cluster by hand, to test the preferences of a policy.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NotRequired, TypedDict, cast

import numpy as np

from gpushare.core.amounts import compute
from gpushare.core.decide import place, score_nodes
from gpushare.core.model import Charge, NodeSpec, Reason, Request
from gpushare.core.mutable_cluster import fits
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.policy import KeyedByShapes, Policy
from gpushare.core.ranking import Ranking, fits_devices
from gpushare.core.snapshot import Bools, Floats, Rows, Snapshot
from gpushare.core.workload import PodClass, Workload, workload_of
from gpushare.policy import REQUEST_FIELDS, SNAPSHOT_FIELDS

WORKLOAD = workload_of(
    {
        PodClass(cpu=500, units=2, devices=1, memory=2**30): 50,
        PodClass(cpu=2000, units=3, devices=1, models=("A",), memory=2**30): 20,
        PodClass(cpu=4000, units=8, devices=1, memory=2**32): 30,
        PodClass(cpu=1000, units=1, devices=1, memory=2**30, cores=40): 20,
        PodClass(cpu=4000, units=4, devices=2, memory=2**32, cores=100): 5,
        PodClass(cpu=6000, units=8, devices=2, memory=2**33): 9,
        PodClass(cpu=1000): 20,
    },
    capacities=(4, 8),
    turnover=1.0,
)
"""The workload that a policy is made for here, besides an empty one."""

_OTHER = Request(1, 1)
"""A different request, scored between two scores of one request."""


class Node(TypedDict):
    """A node for `snapshot`."""

    capacity: Sequence[int]
    """Units of each device."""
    used: NotRequired[Sequence[int]]
    """Units that pods hold on each device; 0 by default."""
    model: NotRequired[str]
    """The GPU model of all devices."""
    cpu: NotRequired[int]
    """Thousandths of a core; unknown by default."""
    memory: NotRequired[int]
    """Bytes; unknown by default."""


def snapshot(nodes: Sequence[Node]) -> Snapshot:
    """Return a snapshot of these nodes: row 0 is the first one, called node-0."""
    arrays = NodeArrays()
    for row, node in enumerate(nodes):
        name, capacity = f"node-{row}", tuple(node["capacity"])
        spec = NodeSpec(
            name,
            capacity,
            healthy=(True,) * len(capacity),
            models=(node.get("model", ""),) * len(capacity),
            uuids=("",) * len(capacity),
            cpu=node.get("cpu"),
            memory=node.get("memory"),
        )
        used = node.get("used", ())
        if len(used) > len(capacity):
            raise ValueError(f"{name}: used has {len(used)} devices, capacity {len(capacity)}")
        shares = [(device, units) for device, units in enumerate(used) if units]
        charges = (Charge(name, Request(units, 1), ((device, units),)) for device, units in shares)
        arrays.set_node(spec, charges)
    return arrays.snapshot({})


def check_policy(make: Callable[[Workload], Policy], *, clusters: int = 100, seed: int = 0) -> None:
    """Raise AssertionError, with a sentence that names the remedy, if a promise is broken.

    make: the object of the entry point, usually the class. clusters: number of small clusters that
    are drawn, with one request each. seed: of the draws.
    """
    for workload in (Workload(), WORKLOAD):
        policy = make(workload)
        _require(isinstance(policy, Policy), "what make returns has no method score", "")
        try:
            copy: Policy = pickle.loads(pickle.dumps(policy))  # noqa: S301  # of our own bytes
        except Exception as error:
            text = "it cannot be pickled; another process makes policies and sends them"
            raise AssertionError(f"{text}: {error}") from error
        random = np.random.default_rng(seed)
        for number in range(clusters):
            names = (f"node-{index}" for index in range(int(random.integers(1, 7))))
            nodes = tuple(_drawn_node(random, name) for name in names)
            request = _drawn_request(random)
            description = f"cluster {number} of seed {seed}: {request} on {nodes}"
            case = _Case(nodes, request, description)
            _check(policy, case, random)
            scores, again = (
                case.scores(tested_policy, view, _rows(view), request)
                for tested_policy, view in ((copy, case.snapshot()), (policy, case.snapshot()))
            )
            _require(
                np.array_equal(scores, again),
                "a pickled copy scores differently; keep what score needs through a pickle",
                case.description,
            )


@dataclass(frozen=True)
class _Case:
    """A cluster and a request."""

    nodes: tuple[tuple[NodeSpec, Charge], ...]
    """(node, charge of all pods there)."""
    request: Request
    description: str
    """Description of the case for messages."""

    def snapshot(self, only: str = "") -> Snapshot:
        """Return the cluster as arrays; only: leave out the pods of all other nodes."""
        arrays = NodeArrays()
        for node, charge in self.nodes:
            arrays.set_node(node, [charge] if only in ("", node.name) else [])
        return arrays.snapshot({})

    def scores(self, policy: Policy, view: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return the scores of these nodes where the case's request fits, 0 elsewhere."""
        return np.where(self.mask(view, rows), policy.score(view, rows, request), 0.0)

    def mask(self, view: Snapshot, rows: Rows) -> Bools:
        """Return bool (K, D): whether the request fits; without devices, by CPU and memory."""
        fitting = fits_devices if self.request.devices else fits
        return fitting(view, rows, self.request)


def _check(policy: Policy, case: _Case, random: np.random.Generator) -> None:
    """Check all promises on one case."""
    view, request = case.snapshot(), case.request
    rows = _rows(view)
    mask = case.mask(view, rows)

    require = partial(_require, case=case.description)
    try:
        scores = policy.score(cast(Snapshot, _Promised(view)), rows, request)
    except Exception as error:
        raise AssertionError(f"score raised {error!r}: {case.description}") from error
    require(isinstance(scores, np.ndarray), "score must return a numpy array")
    require(scores.dtype == np.float64, f"score must return float64, not {scores.dtype}")
    require(
        scores.shape == view.free.shape,
        f"score must return an entry for each row and device, {view.free.shape}: {scores.shape}",
    )
    require(bool(np.isfinite(scores[mask]).all()), "a score must be finite where the request fits")
    require(np.array_equal(rows, _rows(view)), "score must not change the rows it is given")

    before = np.where(mask, scores, 0.0)
    none = policy.score(view, rows[:0], request)
    require(none.shape == (0, view.free.shape[1]), "for no rows score must return shape (0, D)")
    policy.score(view, rows, _OTHER)
    require(
        np.array_equal(case.scores(policy, view, rows, request), before),
        "the same question must get the same answer; score must keep no state, and use no chance",
    )
    order = random.permutation(rows)
    require(
        np.array_equal(case.scores(policy, view, order, request), before[order]),
        "a score must not depend on the order of the rows, nor on which others are asked for",
    )
    equivalent = replace(request, containers=((0, 1),), policy="x", inits=(1,))
    require(
        np.array_equal(case.scores(policy, view, rows, equivalent), before),
        f"a score may depend on the request's {', '.join(REQUEST_FIELDS)} only",
    )
    for row, name in enumerate(view.names):
        row_scores = case.scores(policy, case.snapshot(only=name), rows[row : row + 1], request)
        require(
            np.array_equal(row_scores[0], before[row]),
            "a score must not depend on the pods of other nodes: it is kept until its own row "
            "changes, or a node comes, goes or changes",
        )
    if getattr(policy, "ignores_host", False):
        changed_request = replace(request, cpu=request.cpu + 1000, memory=request.memory + 2**30)
        require(
            np.array_equal(case.scores(policy, view, rows, changed_request), before),
            "a policy that says ignores_host must not read cpu or memory of the request",
        )
    if isinstance(policy, KeyedByShapes):
        _check_key(policy, case, random)
    # Pods without GPU never reach the extender: only simulations and trials place such pods.
    if request.devices:
        _check_placement(policy, view, case)


def _check_key(policy: KeyedByShapes, case: _Case, random: np.random.Generator) -> None:
    """Check that scores of nodes do not change with a new node while the key stays equal."""
    view = case.snapshot()
    more = replace(case, nodes=(*case.nodes, _drawn_node(random, "node-new")))
    for larger in (more, replace(case, nodes=(*more.nodes, *_renamed(case.nodes[:1])))):
        wider = larger.snapshot()
        if wider.capacity.shape[1] == view.capacity.shape[1] and (
            policy.shapes_key(wider) == policy.shapes_key(view)
        ):
            rows_of_view = np.array([wider.row[name] for name in view.names])
            _require(
                np.array_equal(
                    case.scores(policy, wider, rows_of_view, case.request),
                    case.scores(policy, view, _rows(view), case.request),
                ),
                "scores must stay while shapes_key does, whatever nodes come",
                case.description,
            )


def _renamed(
    nodes: Iterable[tuple[NodeSpec, Charge]],
) -> Iterator[tuple[NodeSpec, Charge]]:
    for node, charge in nodes:
        name = f"{node.name}-again"
        yield replace(node, name=name), charge._replace(node=name)


def _check_placement(policy: Policy, view: Snapshot, case: _Case) -> None:
    """Check that the node with the best score is one where the pod can be placed."""
    ranking = Ranking(policy)
    for name in score_nodes(view, view.names, case.request, ranking).get(10, []):
        chosen = place(view, name, case.request, ranking)
        row = view.row[name]
        _require(
            all(
                view.free[row, device] >= units
                and view.cores_free[row, device] >= case.request.cores
                for device, units in chosen.shares
            ),
            "a device was chosen that has no room",
            case.description,
        )


class _Promised:
    """A view of a snapshot with only the promised fields."""

    def __init__(self, view: Snapshot) -> None:
        self._view = view

    def __getattr__(self, name: str) -> object:
        if name not in SNAPSHOT_FIELDS:
            promised = ", ".join(SNAPSHOT_FIELDS)
            raise AttributeError(
                f"snapshot.{name} is not promised to policies; these are: {promised}"
            )
        value: object = getattr(self._view, name)
        return value


def _require(holds: bool, sentence: str, case: str) -> None:
    if not holds:
        raise AssertionError(f"{sentence}: {case}" if case else sentence)


def _rows(view: Snapshot) -> Rows:
    return np.arange(len(view.names), dtype=np.intp)


def _drawn_node(random: np.random.Generator, name: str) -> tuple[NodeSpec, Charge]:
    """Draw a node, perhaps closed, with broken devices or unknown CPU, and the charge there."""
    count = int(random.integers(0, 5))
    capacity = tuple(int(units) for units in random.choice([0, 4, 8, 8], count))
    has_host = random.random() < 0.8
    node = NodeSpec(
        name,
        capacity,
        healthy=tuple(bool(healthy) for healthy in random.random(count) < 0.9),
        models=(str(random.choice(["A", "B"])),) * count,
        uuids=("",) * count,
        cpu=int(random.choice([3000, 16_000])) if has_host else None,
        memory=2**34 if has_host else None,
        closed=Reason.OTHER_UNIT if random.random() < 0.1 else None,
    )
    shares = tuple(
        (device, int(random.integers(0, has + 2))) for device, has in enumerate(capacity)
    )
    units, cores = sum(units for _, units in shares), int(random.choice([0, 0, 40, 100]))
    request = Request(units, 1, cpu=500, memory=2**30, percents=compute(cores))
    return node, Charge(name, request, shares)


def _drawn_request(random: np.random.Generator) -> Request:
    """Draw a request, with no, one or several devices."""
    devices = int(random.integers(0, 4))
    return Request(
        int(random.integers(1, 9)) if devices else 0,
        devices,
        cpu=int(random.choice([0, 500, 4000])),
        memory=int(random.choice([0, 2**33])),
        models=("A",) if devices and random.random() < 0.3 else (),
        percents=compute(
            int(random.choice([20, 60, 100])) if devices and random.random() < 0.3 else 0
        ),
    )
