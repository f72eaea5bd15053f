"""Placeholders for pods that wait for a device, so that an autoscaler brings a node.

Every ten seconds the books are asked which pods need another node although sums have room
(explain/node_wishes.py). Each such pod that kube-scheduler has refused gets one placeholder
(wire/placeholders.py), named after it, so a create whose answer is lost makes no second one. Which
there are is known from the watch alone: a status that was not written is written in the next round,
and a placeholder whose pod is bound, gone or has room is deleted, whoever created it. Without a
namespace the option is off, and all that are left are deleted.

Tested in `tests/unit/extender/follow/test_placeholders.py`.
"""

import json
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpushare.core.policy import load_policy
from gpushare.core.trial import FALLBACK_POLICY
from gpushare.errors import ApiConflict, ApiError, ApiNotFound, MessageError
from gpushare.explain.node_wishes import Wish, node_wishes
from gpushare.extender.follow.rights import WriteRight
from gpushare.extender.follow.rounds import Rounds
from gpushare.extender.follow.shown import Shown
from gpushare.extender.managed_resources import ManagedResources
from gpushare.kube.api import Calls
from gpushare.logline import Line
from gpushare.wire.groups import group_of
from gpushare.wire.objects import PODS
from gpushare.wire.placeholders import Placeholder, name_for, placeholder, status_patch

log = logging.getLogger("gpushare.placeholders")

EVERY = 10.0
AGAIN = 2.0
MOST = 10
"""Placeholders at once."""

_MOST_WISHES = 2 * MOST

WAITING = 30.0
"""Seconds that a pod has waited before it gets one."""

AFTER_JOIN = 180.0
"""Seconds after a node has come in which none is created: its device plug-in may still start."""

_TIMEOUT = 5.0
_MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A wish, and the placeholder to be created for it; None: not now. group: to be had whole."""

    wish: Wish
    body: bytes | None
    group: str


class Placeholders:
    """Keeps the placeholders up to date; call `round` once, or start `rounds` to repeat it.

    known: those that the watch shows, by their own uid. namespace: theirs; "": the option is off.
    not_ready: why not to act now, or "". wall: seconds
    since the epoch.
    """

    def __init__(
        self,
        api: Calls,
        resources: ManagedResources,
        known: Shown[Placeholder],
        namespace: str,
        *,
        not_ready: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._resources = resources
        self._known = known
        self._namespace = namespace
        self._not_ready = not_ready
        self._clock = clock
        self._wall = wall
        self._policy = load_policy(FALLBACK_POLICY)
        self._nodes: frozenset[str] | None = None
        self._joined = -math.inf
        self._owed = frozenset[str]()
        self._created = self._deleted = self._failed_writes = 0
        self._right = WriteRight(clock)
        self.rounds = Rounds("placeholders", self.round, EVERY, AGAIN, threading.Event())

    def state(self) -> dict[str, float]:
        """Return the values for metrics; none while the option is off."""
        if not self._namespace:
            return {}
        known = self._known.all().values()
        there = sum(1 for each in known if each.namespace == self._namespace)
        return {
            "placeholders": there,
            "placeholders_created_total": self._created,
            "placeholders_deleted_total": self._deleted,
            "placeholders_failed_writes_total": self._failed_writes,
        }

    def round(self) -> bool:
        """Create, tell and delete what is to be; return whether nothing is left to be done."""
        if self._not_ready():
            self._nodes = None
            return False
        if self._right.missing:
            return True
        self._look_for_new_nodes()
        wishes = {wish.ref.uid: wish for wish in self._wishes()} if self._namespace else {}
        done, there, replaced = True, set[str](), set[str]()
        for each in sorted(self._known.all().values(), key=lambda known: known.name):
            wish = wishes.get(each.uid)
            ours = not self._namespace or each.namespace == self._namespace
            if not ours:
                continue
            if wish is None or not wish.full <= each.nodes or each.name != name_for(each.uid):
                done &= self._delete(each)
                replaced.add(each.uid)
            else:
                there.add(each.uid)
                done &= each.told or self._tell(each)
        # Whose placeholder goes because it does not leave out a node that misleads now is owed one.
        self._owed = (self._owed | replaced) & wishes.keys() - there
        missing = [wish for uid, wish in wishes.items() if uid not in there]
        if self._clock() < self._joined + AFTER_JOIN:
            missing = [wish for wish in missing if wish.ref.uid in self._owed]
        # Those that were deleted just now count as well: they may be there for a moment yet.
        left = MOST - len(there) - len(replaced)
        return self._create(missing, left, len(wishes)) and done

    def _look_for_new_nodes(self) -> None:
        names = frozenset(self._resources.node_states)
        if self._nodes is None or names - self._nodes:
            self._joined = self._clock()
        self._nodes = names

    def _wishes(self) -> Iterable[Wish]:
        for managed in self._resources:
            view = managed.ledger.view()
            wishes = node_wishes(view, managed.filters, self._policy, _MOST_WISHES)
            yield from (wish for wish in wishes if name_for(wish.ref.uid))

    def _create(self, missing: Sequence[Wish], left: int, all_wishes: int) -> bool:
        """Create what is missing, at most so many, a group whole or not at all.

        Return whether all is done. all_wishes: how many there are in all.
        """
        if left <= 0:
            return True
        groups = defaultdict[str, list[_Candidate]](list)
        for wish in missing:
            try:
                candidate = self._candidate(wish)
            except (ApiError, MessageError) as error:
                log.warning(Line("no placeholder", pod=wish.ref, error=str(error)))
                return False
            groups[candidate.group or wish.ref.uid].append(candidate)
        done = True
        for candidates in groups.values():
            bodies = [(each.wish, each.body) for each in candidates if each.body is not None]
            # Of more wishes than were looked for a group may have others.
            cut = candidates[0].group and all_wishes >= _MOST_WISHES
            if cut or len(bodies) < len(candidates) or len(bodies) > left:
                continue
            left -= len(bodies)
            for wish, body in bodies:
                if self._not_ready():
                    return False
                done &= self._made(wish, body)
        return done

    def _candidate(self, wish: Wish) -> _Candidate:
        """Read the pod. Raises ApiError, or MessageError if it cannot be read."""
        ref = wish.ref
        try:
            answer = self._api.request(
                "GET", f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}", timeout=_TIMEOUT
            )
        except ApiNotFound:
            return _Candidate(wish, None, "")
        body = placeholder(answer, ref, wish.request, wish.nodes, self._namespace)
        if self._wall() - wish.created < WAITING:
            body = None
        group = group_of(PODS.decode_answer(answer, ref.namespace, ref.name))
        return _Candidate(wish, body, group.key)

    def _made(self, wish: Wish, body: bytes) -> bool:
        """Create one, and write its status."""
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        ref = wish.ref
        try:
            self._send("POST", path, body)
        except ApiConflict:
            return True  # an earlier create, whose answer was lost; the watch will show it
        except ApiError as error:
            return self._failed(Line("no placeholder", pod=ref, error=str(error)))
        self._created += 1
        log.info(Line("placeholder created", pod=ref, nodes=len(wish.nodes)))
        name = name_for(ref.uid)
        return self._tell(Placeholder(self._namespace, name, ref.uid, False, frozenset()))

    def _tell(self, each: Placeholder) -> bool:
        """Write the status, by which an autoscaler counts it."""
        path = f"/api/v1/namespaces/{each.namespace}/pods/{each.name}/status"
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._wall()))
        try:
            self._send("PATCH", path, status_patch(now), _MERGE_PATCH)
        except ApiNotFound:
            return True
        except ApiError as error:
            return self._failed(
                Line("placeholder not told", placeholder=each.name, error=str(error))
            )
        return True

    def _delete(self, each: Placeholder) -> bool:
        path = f"/api/v1/namespaces/{each.namespace}/pods/{each.name}"
        try:
            self._send("DELETE", path, json.dumps({"gracePeriodSeconds": 0}).encode())
        except ApiNotFound:
            return True
        except ApiError as error:
            return self._failed(
                Line("placeholder not deleted", placeholder=each.name, error=str(error))
            )
        self._deleted += 1
        log.info(Line("placeholder deleted", placeholder=each.name))
        return True

    def _failed(self, line: Line) -> bool:
        """Count and log a write that was not taken; return False: there is more to be done."""
        self._failed_writes += 1
        log.warning(line)
        return False

    def _send(
        self, method: str, path: str, body: bytes, content_type: str = "application/json"
    ) -> None:
        try:
            self._api.request(method, path, body=body, content_type=content_type, timeout=_TIMEOUT)
        except ApiError as error:
            self._right.failed(error)
            raise
