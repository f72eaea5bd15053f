"""Model of the structured allocator of kube-scheduler 1.37: which devices claims get on a node.

kube-scheduler takes the first devices that fit, in the order of pools, slices and devices. This is
a search with backtracking like the one of k8s.io/dynamic-resource-allocation/structured 0.37 with
the features that are on by default. `tests/e2e/test_first_fit.py` compares both.

Pure: no clock, no I/O. Tested in `tests/unit/core/claims/test_first_fit.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from gpushare.core.claims.model import (
    MAX_RESULTS,
    Amounts,
    Attribute,
    Capacity,
    Constraint,
    Device,
    DeviceKey,
    DeviceRequest,
    Fit,
    NamedRequest,
    NodeDevices,
    NoFit,
    PodClaims,
    Pool,
    PoolState,
    Taken,
    Use,
)
from gpushare.core.selectors import untolerated

Matcher = Callable[[tuple[str, ...], Device], bool]
"""Tells whether all of some CEL expressions are true of a device."""

_NOTHING: Amounts = {}
_COMPARABLE = frozenset({"string", "int", "bool", "version"})
_MAX_DEPTH = 400
"""Upper bound on devices and requests of one pod, each a level of the search; the interpreter
allows 1,000 levels."""


class Steps:
    """Upper bound on the steps of first fit, for one node or for several together."""

    __slots__ = ("left",)

    def __init__(self, count: int) -> None:
        """Allow so many steps; one is a try of one device, about 1 us."""
        self.left = count


def first_fit(
    node: NodeDevices, claims: PodClaims, use: Use, matches: Matcher, steps: Steps
) -> Fit | NoFit:
    """Return the devices that kube-scheduler would allocate for the claims on a node.

    use: devices that allocated claims hold; may name devices of other nodes.
    steps: lowered by the steps of the search; once none is left the answer is NOT_MODELLED.
    """
    try:
        search = _AllocatorSearch(node, claims, use, matches, steps)
        outcome = search.run()
    except _SearchEnded as end:
        return end.reason
    if outcome is _Outcome.DONE:
        return Fit(tuple(device for results in search.results for device in results))
    return NoFit.TOO_FEW_DEVICES


def _amounts(requested: Amounts, capacities: Mapping[str, Capacity]) -> Amounts | None:
    """Return the share of each capacity for a request; None if a device cannot give that much."""
    if not requested.keys() <= capacities.keys():
        return None
    consumed = {}
    for name, capacity in capacities.items():
        amount = capacity.consumed(requested.get(name))
        if amount is None:
            return None
        consumed[name] = amount
    return consumed


class _Outcome(Enum):
    DONE = 1
    NONE = 2
    TOO_MANY = 3
    """The claim needs more results than a claim can have."""


class _SearchEnded(Exception):
    def __init__(self, reason: NoFit) -> None:
        super().__init__(reason)
        self.reason = reason


class _Plan:
    """An alternative of a request on this node."""

    __slots__ = ("amounts", "claim", "constraints", "consumed", "count", "devices", "request")

    def __init__(self, claim: int, request: DeviceRequest) -> None:
        self.claim = claim
        self.request = request
        self.amounts = dict(request.amounts)
        self.consumed: dict[int, Amounts | None] = {}
        """Amounts that the request takes, by id of the capacities of a device."""
        self.constraints: tuple[_Values, ...] = ()
        self.count = request.count or 0
        self.devices: list[tuple[Device, Pool]] | None = None
        """All devices that match, if the request is for all."""


class _Values:
    """Values of the attribute of a constraint in the devices that are taken."""

    __slots__ = ("constraint", "values")

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self.values: list[Attribute] = []

    def concerns(self, request: NamedRequest, alternative: DeviceRequest) -> bool:
        names = self.constraint.requests
        return not names or request.name in names or alternative.name in names

    def add(self, device: Device) -> bool:
        """Add the value of a device; return whether the constraint still holds."""
        value = device.attributes.get(self.constraint.attribute)
        if value is None:
            return False
        if self.values:
            if value.kind not in _COMPARABLE:
                return False
            is_violated = (
                value in self.values if self.constraint.is_distinct else value != self.values[0]
            )
            if is_violated:
                return False
        self.values.append(value)
        return True


class _AllocatorSearch:
    """The search of devices for the claims of one pod on one node."""

    def __init__(
        self, node: NodeDevices, claims: PodClaims, use: Use, matches: Matcher, steps: Steps
    ) -> None:
        self._node = node
        self._claims = claims.claims
        self._use = use
        self._matches = matches
        self._steps = steps
        self._marks: dict[DeviceKey, list[int]] = {}
        """Claims (by index) of this pod that take a device whole."""
        self._shares: dict[DeviceKey, list[Amounts]] = {}
        """Amounts that this pod takes of shared devices."""
        self._counters: dict[int, _Counters] = {}
        """By id of the pool."""
        self._counted: list[_Counters | None] = []
        """The counters of the pool of each device that is taken, in the order of taking."""
        self.results: list[list[Taken]] = [[] for _ in self._claims]
        self._plans = [
            [
                [self._plan(index, alternative) for alternative in request.alternatives]
                for request in claim.requests
            ]
            for index, claim in enumerate(self._claims)
        ]

    def run(self) -> _Outcome:
        depth = 0
        for claim, plans in zip(self._claims, self._plans, strict=True):
            if sum(min(plan.count for plan in choices) for choices in plans) > MAX_RESULTS:
                raise _SearchEnded(NoFit.ERROR)
            depth += len(plans) + sum(max(p.count for p in choices) for choices in plans)
            constraints = [_Values(constraint) for constraint in claim.constraints]
            for request, choices in zip(claim.requests, plans, strict=True):
                for plan in choices:
                    plan.constraints = tuple(
                        values for values in constraints if values.concerns(request, plan.request)
                    )
        if depth > _MAX_DEPTH:
            raise _SearchEnded(NoFit.NOT_MODELLED)
        return self._requests(0, 0)

    def _plan(self, claim: int, request: DeviceRequest) -> _Plan:
        plan = _Plan(claim, request)
        if request.count is None:
            for pool in self._node.pools:
                if pool.state is not PoolState.COMPLETE:
                    raise _SearchEnded(NoFit.ERROR)
            plan.devices = [
                (device, pool)
                for device, pool in self._node.candidates
                if self._step()
                and self._matches(request.selectors, device)
                and self._consumed(plan, device) is not None
            ]
            plan.count = len(plan.devices)
        return plan

    def _step(self) -> bool:
        """Count a step."""
        self._steps.left -= 1
        if self._steps.left < 0:
            raise _SearchEnded(NoFit.NOT_MODELLED)
        return True

    def _requests(self, claim: int, request: int) -> _Outcome:
        """Find devices for a request and for all later requests."""
        if claim == len(self._claims):
            return _Outcome.DONE
        if request == len(self._plans[claim]):
            # `run` has checked that the smallest alternatives of each claim are not too many.
            return self._requests(claim + 1, 0)
        plans = self._plans[claim][request]
        if not self._claims[claim].requests[request].is_choice:
            return self._devices(plans[0], request, 0, 0)
        last = _Outcome.TOO_MANY
        for plan in plans:
            outcome = self._devices(plan, request, 0, 0)
            if outcome is _Outcome.DONE:
                return outcome
            if outcome is _Outcome.NONE:
                last = outcome
        return last

    def _devices(self, plan: _Plan, request: int, taken_count: int, start: int) -> _Outcome:
        """Find the remaining devices of a request, and the devices of all later requests.

        taken_count: devices that the request has. start: the first candidate to try.
        """
        if plan.devices is not None and not plan.devices:
            return _Outcome.NONE
        if taken_count >= plan.count:
            return self._requests(plan.claim, request + 1)
        if len(self.results[plan.claim]) + plan.count - taken_count > MAX_RESULTS:
            return _Outcome.TOO_MANY
        if plan.devices is not None:
            return self._next_of_all(plan, plan.devices, request, taken_count)
        candidates = self._node.candidates
        selectors = plan.request.selectors
        for index in range(start, len(candidates)):
            self._step()
            device, pool = candidates[index]
            if self._is_held(plan, device):
                continue
            consumed = self._consumed(plan, device)
            if (
                consumed is None
                or not self._has_room(device, consumed)
                or not self._matches(selectors, device)
                or not self._take(plan, device, pool, consumed)
            ):
                continue
            outcome = self._devices(plan, request, taken_count + 1, index + 1)
            if outcome is _Outcome.DONE:
                return outcome
            self._give_back(plan, device)
            if outcome is _Outcome.TOO_MANY:
                return outcome
        return _Outcome.NONE

    def _next_of_all(
        self, plan: _Plan, devices: Sequence[tuple[Device, Pool]], request: int, taken_count: int
    ) -> _Outcome:
        """Take the next device of a request for all devices; no other device can replace it."""
        self._step()
        device, pool = devices[taken_count]
        if self._is_held(plan, device):
            return _Outcome.NONE
        consumed = self._consumed(plan, device) or _NOTHING
        has_room = self._has_room(device, consumed)
        if not self._take(plan, device, pool, consumed):
            return _Outcome.NONE
        outcome = _Outcome.NONE
        if has_room:
            outcome = self._devices(plan, request, taken_count + 1, 0)
        if outcome is not _Outcome.DONE:
            self._give_back(plan, device)
        return outcome

    def _is_held(self, plan: _Plan, device: Device) -> bool:
        """Return whether a claim, or this pod, holds the device whole."""
        marks = self._marks.get(device.key)
        if plan.request.has_admin_access:
            return marks is not None and plan.claim in marks
        return marks is not None or device.key in self._use.exclusive

    def _consumed(self, plan: _Plan, device: Device) -> Amounts | None:
        """Return the amount that the request takes of each capacity of a device; None if the device
        has no such amounts.
        """
        amounts, capacities = plan.amounts, device.capacities
        if not amounts and not device.is_shared and device.key not in self._use.shares:
            return _NOTHING  # the whole device: capacities do not matter
        key = id(capacities)  # devices that are alike share one mapping
        if key not in plan.consumed:
            plan.consumed[key] = _amounts(amounts, capacities)
        return plan.consumed[key]

    def _has_room(self, device: Device, consumed: Amounts) -> bool:
        """Return whether the device has the amounts left."""
        held_amounts = self._use.shares.get(device.key, _NOTHING)
        own_shares = self._shares.get(device.key, ())
        if held_amounts or own_shares:
            for name, amount in consumed.items():
                total = amount + held_amounts.get(name, 0)
                for part in own_shares:
                    total += part.get(name, 0)
                if total > device.capacities[name].value:
                    return False
        return True

    def _take(self, plan: _Plan, device: Device, pool: Pool, consumed: Amounts) -> bool:
        """Take a device if the counters of the pool, the taints and the constraints allow that.

        Raises _SearchEnded if a constraint refuses a device of a request for all devices.
        """
        key = device.key
        request = plan.request
        counters = None
        # A further share of a device that is in use takes no more of the counters.
        is_in_use = device.is_shared and (key in self._use.shares or key in self._shares)
        if device.counters and not is_in_use:
            counters = self._counters_of(pool)
            if not counters.have_room(device):
                return False
        if device.taints and untolerated(device.taints, request.tolerations) is not None:
            return False
        for position, values in enumerate(plan.constraints):
            if not values.add(device):
                for added in plan.constraints[:position]:
                    added.values.pop()
                if plan.devices is not None:
                    raise _SearchEnded(NoFit.ERROR)
                return False
        if counters is not None:
            counters.add(device, 1)
        self._counted.append(counters)
        if device.is_shared:
            self._shares.setdefault(key, []).append(consumed)
        else:
            self._marks.setdefault(key, []).append(plan.claim)
        self.results[plan.claim].append(
            Taken(
                plan.claim,
                request.name,
                device,
                consumed if device.is_shared else None,
                request.has_admin_access,
            )
        )
        return True

    def _give_back(self, plan: _Plan, device: Device) -> None:
        """Undo the last `_take`."""
        self.results[plan.claim].pop()
        takers = self._shares if device.is_shared else self._marks
        takers[device.key].pop()
        if not takers[device.key]:
            del takers[device.key]
        for values in plan.constraints:
            values.values.pop()
        counters = self._counted.pop()
        if counters is not None:
            counters.add(device, -1)

    def _counters_of(self, pool: Pool) -> "_Counters":
        counters = self._counters.get(id(pool))
        if counters is None:
            counters = self._counters[id(pool)] = _Counters(pool, self._use)
        return counters


class _Counters:
    """The counters of a pool that are left."""

    __slots__ = ("_is_overdrawn", "_left")

    def __init__(self, pool: Pool, use: Use) -> None:
        free_amounts = {
            (counter_set, counter): amount
            for counter_set, amounts in pool.counters.items()
            for counter, amount in amounts.items()
        }
        for device in (*pool.devices, *pool.devices_elsewhere):
            if device.key in use.exclusive or device.key in use.shares:
                for counter_set, counter, amount in device.counters:
                    free_amounts[counter_set, counter] -= amount
        self._left = free_amounts
        # kube-scheduler allocates no counted device of a pool with any counter below zero.
        self._is_overdrawn = min(free_amounts.values(), default=0) < 0

    def have_room(self, device: Device) -> bool:
        """Return whether the pool has the counters that a device consumes."""
        return not self._is_overdrawn and all(
            amount <= self._left[counter_set, counter]
            for counter_set, counter, amount in device.counters
        )

    def add(self, device: Device, times: int) -> None:
        """Consume the counters of a device; times -1: give the counters back."""
        for counter_set, counter, amount in device.counters:
            self._left[counter_set, counter] -= times * amount
