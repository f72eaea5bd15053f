"""A cluster in memory for simulations and trials: pods are placed, and leave.

The arrays are changed in place, and nothing is copied for a pod. Decisions are those of the
extender: the same ranking, the same choice of devices. kube-scheduler's checks
before its calls are made here too: CPU, memory and the GPU model.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpushare.core.apart import count_pod
from gpushare.core.decide import best_shares
from gpushare.core.model import ANY_NEIGHBOURS, Request, Shares
from gpushare.core.policy import Policy, load_policy
from gpushare.core.ranking import FallbackScorer, Ranking, Scorer, Scores, fits_devices
from gpushare.core.snapshot import Bools, Floats, Rows, Snapshot, counts_of, has_accepted_model
from gpushare.errors import SettingsError

_ROWS_REMEMBERED = 5_000_000
"""Nodes times kinds of pods whose scores are kept, 100 to 200 bytes each: about 4,000 kinds on the
nodes of openb, which are all that its traces have."""


class Placement(NamedTuple):
    """Where a pod is."""

    row: int
    shares: Shares
    request: Request

    @property
    def devices(self) -> tuple[int, ...]:
        """Those of the node, by rising index."""
        return tuple(device for device, _ in self.shares)


class MutableSnapshot(Snapshot):
    """A Snapshot with arrays and a generation that change in place.

    A simulation has one thread, so nobody reads it during a change.
    """

    def changed(self, row: int) -> None:
        """Note that the row has changed."""
        generation = self.generation + 1
        self.row_generation[row] = generation
        object.__setattr__(self, "generation", generation)


def fits(snapshot: Snapshot, rows: Rows, request: Request) -> Bools:
    """Return bool (K, D): where the request fits by devices, CPU, memory and model."""
    mask: Bools = _fits_devices(snapshot, rows, request)
    return mask & _host_fits(snapshot, request, rows)[:, None]


def _fits_devices(snapshot: Snapshot, rows: Rows, request: Request) -> Bools:
    """Return bool (K, D): where the request fits by devices; everywhere if it asks for none."""
    if not request.devices:
        return np.ones((len(rows), snapshot.used.shape[1]), dtype=bool)
    return fits_devices(snapshot, rows, request)


def _host_fits(snapshot: Snapshot, request: Request, rows: Rows | slice = slice(None)) -> Bools:
    """Return bool (K,): where the request fits by CPU, memory and model."""
    enough = snapshot.cpu_free[rows] >= request.cpu
    enough &= snapshot.memory_free[rows] >= request.memory
    if request.models:
        enough &= has_accepted_model(snapshot, rows, request)
    return enough


def ranking(policy: Policy, nodes: int, neighbours: int = ANY_NEIGHBOURS) -> Ranking:
    """Return a ranking by the policy, with the fits of kube-scheduler and of the extender.

    neighbours: the limit of neighbours.
    """
    kinds = max(_ROWS_REMEMBERED // max(nodes, 1), 1)
    return Ranking(policy, kinds, _fits_devices, _host_fits, neighbours=neighbours)


class OwnPolicyScorer:
    """A scorer that ranks a request by the policy that its pod names.

    default: the policy of requests that name none, one that cannot be loaded, or one that has
    failed; it must not fail. nodes: their number.
    """

    def __init__(self, default: Policy, nodes: int) -> None:
        self._nodes = nodes
        self._default = ranking(default, nodes)
        self._scorers: dict[str, Scorer] = {"": self._default}
        self._failed = set[str]()

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return the value of placing the request on each row."""
        return self._scorer(request.policy).scores(snapshot, request)

    def score_devices(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return float64 (K, D): the value of each device of these rows, even without room."""
        return self._scorer(request.policy).score_devices(snapshot, rows, request)

    def best_device(self, snapshot: Snapshot, row: int, request: Request) -> int | None:
        """Return the best single device of a row from cached scores, or None."""
        return self._scorer(request.policy).best_device(snapshot, row, request)

    def _scorer(self, name: str) -> Scorer:
        if name in self._failed:
            # The extender logs failures of its own rankings.
            return self._default
        if name not in self._scorers:
            failed = self._failed
            try:
                named = ranking(load_policy(name), self._nodes)
            except SettingsError:
                self._scorers[name] = self._default
            else:
                scorers = [(name, named), ("", self._default)]
                # A method of this object would be a cycle: the cached scores of each simulation
                # would stay until the next full garbage collection.
                self._scorers[name] = FallbackScorer(scorers, lambda name, *_: failed.add(name))
        return self._scorers[name]


class MutableCluster:
    """Nodes in their order, the pods on them, and a scorer for new pods.

    view: belongs to the cluster, which changes it. moved: called for every pod that is placed
    (with 1), and that leaves (with -1).
    """

    def __init__(
        self,
        view: MutableSnapshot,
        scorer: Scorer,
        moved: Callable[[Placement, int], None] | None = None,
    ) -> None:
        view.free.flags.writeable = True
        for free in view.percents_free:
            free.flags.writeable = True
        self.view = view
        self.scorer = scorer
        self._moved = moved
        self.capacity = int(self.view.capacity.sum())
        self.allocated = int(self.view.used.sum())

    def place(self, request: Request, among: Bools | None = None) -> Placement | None:
        """Place a pod where the score is highest, of equal nodes on the first; None if none fits.

        among: bool (N,), the rows that it may use; None: all. It raises nothing, since a pod that
        does not fit is no error in a simulation.
        """
        scores = self.scorer.scores(self.view, request)
        values = scores.values if among is None else np.where(among, scores.values, -np.inf)
        row = int(values.argmax()) if len(values) else 0
        if not len(values) or values[row] == -np.inf:
            return None
        if request.devices == 1:
            return self.put(row, ((scores.device(row), request.units),), request)
        return self._put_best(row, request)

    def place_on(self, row: int, request: Request) -> Placement | None:
        """Place a pod on the best devices of this node; None if it does not fit."""
        if not fits(self.view, np.array([row]), request).any():
            return None
        return self._put_best(row, request)

    def fits_empty(self, request: Request) -> bool:
        """Return whether some node fits the request now; called while the cluster is empty."""
        return bool(fits(self.view, np.arange(len(self.view.names)), request).any())

    def _put_best(self, row: int, request: Request) -> Placement:
        shares: Shares = ()
        if request.devices:
            rows = np.array([row])
            mask = fits_devices(self.view, rows, request)
            shares = best_shares(self.scorer, self.view, rows, mask, request)
        return self.put(row, shares, request)

    def put(self, row: int, shares: Shares, request: Request) -> Placement:
        """Charge the pod to the node, with these units on its devices."""
        placement = Placement(row, shares, request)
        self._count(placement, 1)
        return placement

    def release(self, placement: Placement) -> None:
        """Give back all that a pod held that has left."""
        self._count(placement, -1)

    def _count(self, placement: Placement, sign: int) -> None:
        row, shares, request = placement
        view = self.view
        allocated = 0
        for device, charged in request.charges_on(shares, view.capacity[row].tolist()):
            allocated += charged
            view.used[row, device] += sign * charged
            view.pods[row, device, : counts_of(request)] += sign
        if request.percents and shares:
            for device, percents in zip(
                placement.devices, request.percents_on(shares), strict=True
            ):
                for used, percent in zip(view.percents_used, percents, strict=True):
                    used[row, device] += sign * percent
            percents_left = view.percents_left(np.array([row]))
            for free, percent_left in zip(view.percents_free, percents_left, strict=True):
                free[row] = percent_left[0]
            view.__dict__["any_percents"] = True
        view.free[row] = view.left(np.array([row]))[0]
        count_pod(view.workloads, row, request, placement.devices, sign)
        view.cpu_free[row] -= sign * request.cpu
        view.memory_free[row] -= sign * request.memory
        if request.devices:
            view.gpu_pods[row] += sign
            self.allocated += sign * allocated
        else:
            view.cpu_only[row] += sign * request.cpu
        view.changed(row)
        if self._moved is not None:
            self._moved(placement, sign)
