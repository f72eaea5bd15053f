"""Placeholders for pending pods, so that an autoscaler adds a node with free devices.

Every ten seconds this module looks in the books for pods that need another node although the sums
of a node have room (explain/autoscalers.py). Each such pod that kube-scheduler has refused gets one
placeholder (wire/placeholders.py) with a name made of the uid, so a create with a lost answer makes
no second placeholder. The watch alone shows the existing placeholders: the next round writes a
missing status, and deletes a placeholder if the pod is bound, gone or has room. Namespaces take
turns, and a pod without a new node for long yields its turn. A group has all placeholders or none:
a status is written when all placeholders of the group exist, and a refusal of one deletes the
others. Without a namespace the option is off, and this module deletes all placeholders.
"""

import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

from gpushare.core.model import PodRef
from gpushare.core.policy import load_policy
from gpushare.core.trial import FALLBACK_POLICY
from gpushare.daemon.loop import Loop
from gpushare.daemon.part import LoopPart
from gpushare.errors import ApiConflict, ApiError, ApiNotFound, MessageError
from gpushare.explain.autoscalers import Wish, node_wishes, wish_turns
from gpushare.explain.pod import NodeAsk
from gpushare.extender.follow.shown import Shown
from gpushare.extender.follow.write_right import WriteRight
from gpushare.extender.managed_resources import ManagedResources
from gpushare.kube.api import Calls, merge_patch
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
"""Seconds that a pod is pending before it gets a placeholder."""

PATIENCE = 900.0
"""Seconds with a placeholder and without a new node, after which a pod takes its turn after all
other pods. cluster-autoscaler gives up on a node after as long (`--max-node-provision-time`)."""

AFTER_JOIN = 180.0
"""Seconds after a node has joined without a new placeholder: the device plug-in of the node may
still start."""

_JOINED = (
    f"a node has come, or this process leads, for less than {AFTER_JOIN:.0f} s: it may yet help"
)
_TOO_MANY = f"there are {MOST} placeholders already"
_TOO_LARGE = "its group needs more at once than there may be"
_NOT_REFUSED = "kube-scheduler has not found it unschedulable, or has another place in mind"

_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A wish, and the placeholder to create for the wish; b"" and a reason for none now."""

    wish: Wish
    body: bytes = b""
    group: str = ""
    """The group of the pod: all members get placeholders, or none. "": the pod has no group."""
    why_not: str = ""


@dataclass(eq=False)
class Placeholders(LoopPart):
    """Keeps the placeholders up to date: `round` once, a started part again and again.

    watched: the placeholders that the watch shows, by uid. namespace: of the placeholders; "": the
    option is off. not_ready: why not to act now, or "". tell: called once with the outcome of a
    wish. wall: seconds since the epoch.
    """

    api: Calls
    resources: ManagedResources
    watched: Shown[Placeholder]
    namespace: str
    _: KW_ONLY
    not_ready: Callable[[], str]
    tell: Callable[[PodRef, NodeAsk], None] = lambda *_: None
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._policy = load_policy(FALLBACK_POLICY)
        self._nodes: frozenset[str] | None = None
        self._joined = -math.inf
        self._owed = frozenset[str]()
        # By the uid of a pod: the time of its first placeholder, while the pod needs a node.
        self._had_since: dict[str, float] = {}
        # Namespaces with more wishes than this round has looked at.
        self._cut = set[str]()
        self._why_not: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._created = self._deleted = self._failed_writes = 0
        self._right = WriteRight(self.clock)
        self.loop = Loop(
            "placeholders",
            lambda: EVERY if self.round() else AGAIN,
            AGAIN,
            log=log,
            failed="placeholders failed",
        )

    def state(self) -> dict[str, float]:
        """Return the values for metrics; none while the option is off."""
        if not self.namespace:
            return {}
        return {
            "placeholders_created_total": self._created,
            "placeholders_deleted_total": self._deleted,
            "placeholders_failed_writes_total": self._failed_writes,
        }

    def counts(self) -> dict[str, int]:
        """Return the number of placeholders by namespace; nothing while the option is off."""
        if not self.namespace:
            return {}
        stand_ins = self.watched.all().values()
        return {
            self.namespace: sum(1 for stand_in in stand_ins if stand_in.namespace == self.namespace)
        }

    def ask_for(self, uid: str) -> NodeAsk | None:
        """Return whether an autoscaler was asked for a node for the pod; None: nothing is known."""
        if not self.namespace:
            return None
        for stand_in in self.watched.all().values():
            if (
                stand_in.uid == uid
                and stand_in.namespace == self.namespace
                and stand_in.unschedulable
            ):
                return NodeAsk.by(stand_in)
        why_not = self._why_not.get(uid)
        return None if why_not is None else NodeAsk(why_not=why_not)

    def round(self) -> bool:
        """Create, update and delete placeholders; return whether all writes are done."""
        why_not = dict[str, str]()
        if self.not_ready():
            self._nodes = None
            self._why_not = why_not
            return False
        if self._right.missing:
            return True
        names = frozenset(self.resources.node_states)
        if self._nodes is None or names - self._nodes:
            self._joined = self.clock()
        self._nodes = names
        is_complete = self._act(why_not)
        self._why_not = why_not
        return is_complete

    def _act(self, why_not: dict[str, str]) -> bool:
        """Make a round; add the reason of each pod without a placeholder to `why_not`."""
        wishes = {wish.ref.uid: wish for wish in self._wishes(why_not)} if self.namespace else {}
        self._refused = {uid: reason for uid, reason in self._refused.items() if uid in wishes}
        standing, replaced, is_complete = self._still_wanted(wishes)
        # A pod is owed a new placeholder if the old one was deleted because it does not exclude a
        # node that is full now.
        self._owed = (self._owed | replaced) & wishes.keys() - standing
        groups = self._groups(
            [wish for uid, wish in wishes.items() if uid not in standing], why_not
        )
        if groups is None:
            return False
        turns = wish_turns(
            # An existing placeholder comes first while its namespace has the turn.
            sorted(wishes.values(), key=lambda wish: wish.ref.uid not in standing),
            self._given_up(),
        )
        units = _units(turns, standing, groups, self._cut)
        served = _served(units, MOST)
        # Deleted placeholders count too: they may exist a moment longer.
        room = MOST - len(standing) - len(replaced)
        for uid in [uid for unit in units if unit.key not in served for uid in unit.standing]:
            # Another pod has the turn, and gets the placeholder in the next round.
            self._delete(standing.pop(uid))
            is_complete = False
        unmade = set[str]()
        for unit in units:
            if not unit.candidates:
                continue
            reason = unit.why_not
            if not reason and (unit.key not in served or len(unit.candidates) > room):
                reason = _TOO_LARGE if unit.grouped else _TOO_MANY
                is_complete &= unit.key not in served
            if not reason:
                room -= len(unit.candidates)
                reason = self._make(unit.candidates, standing)
                is_complete &= not reason
            if reason:
                unmade.add(unit.key)
                why_not |= {candidate.wish.ref.uid: reason for candidate in unit.candidates}
            if self._right.missing or self.not_ready():
                return False
        self._note_standing(standing, wishes)
        # The new placeholders have no status yet, so no autoscaler has counted them.
        refused_groups = {group for group in unmade if any(map(self._rests, groups[group]))}
        return is_complete & self._count_in(standing, wishes, unmade, refused_groups)

    def _still_wanted(
        self, wishes: Mapping[str, Wish]
    ) -> tuple[dict[str, Placeholder], set[str], bool]:
        """Delete the placeholders without a current wish.

        Return (remaining placeholders by uid of the pod, uids of the pods with a deleted
        placeholder, whether the API server took every delete).
        """
        standing, replaced, is_complete = dict[str, Placeholder](), set[str](), True
        for stand_in in sorted(self.watched.all().values(), key=lambda known: known.name):
            uid, wish = stand_in.uid, wishes.get(stand_in.uid)
            is_own = not self.namespace or stand_in.namespace == self.namespace
            if not is_own:
                continue
            if wish is None or not wish.full <= stand_in.nodes or stand_in.name != name_for(uid):
                is_complete &= self._delete(stand_in)
                replaced.add(uid)
            else:
                standing[uid] = stand_in
        return standing, replaced, is_complete

    def _count_in(
        self,
        standing: Mapping[str, Placeholder],
        wishes: Mapping[str, Wish],
        unmade: Collection[str],
        refused_groups: Collection[str],
    ) -> bool:
        """Make autoscalers count the placeholders; delete the placeholders of incomplete groups.

        unmade: keys of the units with a missing placeholder. refused_groups: the keys among them
        with a refused placeholder. Return whether all writes are done.
        """
        is_complete = True
        for uid, stand_in in standing.items():
            is_counted = stand_in.unschedulable
            if stand_in.group in refused_groups or (stand_in.group in unmade and not is_counted):
                is_complete &= self._delete(stand_in)  # one of its group cannot be had
            elif not is_counted:
                is_complete &= self._tell(stand_in, wishes[uid].ref)
        return is_complete

    def _given_up(self) -> set[str]:
        """Return the uids of the pods that have waited for a node for PATIENCE seconds."""
        before = self.clock() - PATIENCE
        return {uid for uid, since in self._had_since.items() if since <= before}

    def _note_standing(
        self, standing: Mapping[str, Placeholder], wishes: Mapping[str, Wish]
    ) -> None:
        """Note the time of the first placeholder of each pod."""
        now = self.clock()
        had = {uid: since for uid, since in self._had_since.items() if uid in wishes}
        self._had_since = dict.fromkeys(standing, now) | had

    def _wishes(self, why_not: dict[str, str]) -> Sequence[Wish]:
        """Return the wishes; add the reason of each other pod without room to `why_not`."""
        last = self._given_up()
        all_wishes, self._cut = list[Wish](), set[str]()
        for resource in self.resources:
            view = resource.ledger.view()
            wishes = node_wishes(view, resource.filters, self._policy, _MOST_WISHES, last)
            why_not |= wishes.why_not
            self._cut |= wishes.cut
            all_wishes += (wish for wish in wishes.wishes if name_for(wish.ref.uid))
        return all_wishes

    def _groups(
        self, missing: Sequence[Wish], why_not: dict[str, str]
    ) -> Mapping[str, Sequence[_Candidate]] | None:
        """Return the missing placeholders by group, or by uid for a pod without a group; None after
        a failed read of a pod.
        """
        joined = self.clock() < self._joined + AFTER_JOIN
        groups = defaultdict[str, list[_Candidate]](list)
        for wish in missing:
            try:
                candidate = self._candidate(wish)
            except (ApiError, MessageError) as error:
                log.warning(Line("no placeholder", pod=wish.ref, error=str(error)))
                why_not[wish.ref.uid] = f"its pod could not be read: {error}"
                return None
            if joined and wish.ref.uid not in self._owed:
                candidate = replace(candidate, why_not=_JOINED)
            groups[candidate.group or wish.ref.uid].append(candidate)
        return groups

    def _candidate(self, wish: Wish) -> _Candidate:
        """Read the pod. Raises ApiError, or MessageError for an unreadable pod."""
        ref = wish.ref
        try:
            answer = self.api.request(
                "GET", f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}", timeout=_TIMEOUT
            )
        except ApiNotFound:
            return _Candidate(wish, why_not="it is gone")
        group = group_of(PODS.decode_answer(answer, ref.namespace, ref.name)).key
        body = placeholder(answer, ref, wish.request, wish.nodes, self.namespace, group=group)
        candidate = _Candidate(wish, body or b"", group)
        if body is None:
            return replace(candidate, why_not=_NOT_REFUSED)
        if self._rests(candidate):
            reason = self._refused.get(ref.uid, "it was refused a short while ago")
            return replace(candidate, why_not=reason)
        if self.wall() - wish.created < WAITING:
            return replace(candidate, why_not=f"it waits for less than {WAITING:.0f} s")
        return candidate

    def _rests(self, candidate: _Candidate) -> bool:
        """Return whether the API server refused this placeholder a short while ago."""
        return self._right.rests(("POST", name_for(candidate.wish.ref.uid)))

    def _make(self, candidates: Sequence[_Candidate], standing: dict[str, Placeholder]) -> str:
        """Create the placeholders of one pod or group, and add them to `standing`.

        Return the reason why a placeholder was not created, or "".
        """
        for candidate in candidates:
            ref, name = candidate.wish.ref, name_for(candidate.wish.ref.uid)
            if self.not_ready():
                return "this process does not lead any more"
            try:
                self._send(
                    "POST", name, f"/api/v1/namespaces/{self.namespace}/pods", candidate.body
                )
            except ApiConflict:
                continue  # an earlier create with a lost answer; the watch will show the pod
            except ApiError as error:
                reason = f"it was refused: {error}"
                if self._refused.get(ref.uid) != reason:
                    self._refused[ref.uid] = reason
                    self.tell(ref, NodeAsk(why_not=reason))
                self._failed(Line("no placeholder", pod=ref, error=str(error)))
                return reason
            self._created += 1
            log.info(Line("placeholder created", pod=ref, nodes=len(candidate.wish.nodes)))
            standing[ref.uid] = Placeholder(
                self.namespace, name, ref.uid, False, candidate.wish.nodes, group=candidate.group
            )
        return ""

    def _tell(self, stand_in: Placeholder, ref: PodRef) -> bool:
        """Write the status that makes an autoscaler count the placeholder."""
        if self._right.rests(("PATCH", stand_in.name)):
            return True
        path = f"/api/v1/namespaces/{stand_in.namespace}/pods/{stand_in.name}/status"
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.wall()))
        try:
            self._send("PATCH", stand_in.name, path, status_patch(now))
        except ApiNotFound:
            return True
        except ApiError as error:
            return self._failed(
                Line("placeholder not told", placeholder=stand_in.name, error=str(error))
            )
        self.tell(ref, NodeAsk(self.wall()))
        return True

    def _delete(self, stand_in: Placeholder) -> bool:
        if self._right.rests(("DELETE", stand_in.name)):
            return True
        path = f"/api/v1/namespaces/{stand_in.namespace}/pods/{stand_in.name}"
        at_once = json.dumps({"gracePeriodSeconds": 0}).encode()
        try:
            self._send("DELETE", stand_in.name, path, at_once)
        except ApiNotFound:
            return True
        except ApiError as error:
            return self._failed(
                Line("placeholder not deleted", placeholder=stand_in.name, error=str(error))
            )
        self._deleted += 1
        log.info(Line("placeholder deleted", placeholder=stand_in.name))
        return True

    def _failed(self, line: Line) -> bool:
        """Count and log a write that was not taken; return False: there is more to be done."""
        self._failed_writes += 1
        log.warning(line)
        return False

    def _send(self, method: str, name: str, path: str, body: bytes) -> None:
        """Send a write about the placeholder `name`; PATCH: a merge patch. Raises ApiError."""
        try:
            if method == "PATCH":
                merge_patch(self.api, path, body, _TIMEOUT)
            else:
                self.api.request(method, path, body=body, timeout=_TIMEOUT)
        except ApiError as error:
            self._right.failed(error, (method, name))
            raise
        self._right.taken((method, name))


@dataclass(slots=True)
class _Unit:
    """The pods of one group, or one pod without a group: all have placeholders, or none."""

    key: str
    """The group, or the uid of the pod."""
    namespace: str
    grouped: bool = False
    standing: list[str] = field(default_factory=list)
    """The uids of the pods that have a placeholder."""
    candidates: list[_Candidate] = field(default_factory=list)
    """The pods that have none."""
    turn: int = 0
    """The turn of the last pod: a group waits until the namespace has had a turn for each pod."""

    why_not: str = ""
    """The reason for no further placeholders now, or ""."""


def _units(
    turns: Sequence[Wish],
    standing: Mapping[str, Placeholder],
    groups: Mapping[str, Sequence[_Candidate]],
    cut: Collection[str],
) -> list[_Unit]:
    """Return the units of all wishes by their turns.

    turns: all wishes in turns. standing: the existing placeholders by uid of the pod. groups: the
    missing placeholders by key of the unit. cut: namespaces with more wishes than were looked at.
    """
    missing = {
        candidate.wish.ref.uid: (key, candidate)
        for key, candidates in groups.items()
        for candidate in candidates
    }
    units: dict[str, _Unit] = {}
    for turn, wish in enumerate(turns):
        uid = wish.ref.uid
        if uid in standing:
            group, candidate = standing[uid].group, None
            key = group or uid
        else:
            key, candidate = missing[uid]
            group = candidate.group
        unit = units.setdefault(key, _Unit(key, wish.ref.namespace))
        unit.turn, unit.grouped = turn, bool(group)
        if candidate is None:
            unit.standing.append(uid)
        else:
            unit.candidates.append(candidate)
    for unit in units.values():
        refusals = [pod.why_not for pod in unit.candidates if pod.why_not]
        if not refusals and unit.grouped and unit.candidates and unit.namespace in cut:
            refusals = [_TOO_LARGE]
        unit.why_not = refusals[0] if refusals else ""
    return sorted(units.values(), key=lambda unit: unit.turn)


def _served(units: Iterable[_Unit], room: int) -> set[str]:
    """Return the keys of the first units that fit into the room together."""
    served = set[str]()
    for unit in units:
        needed = len(unit.standing) + (0 if unit.why_not else len(unit.candidates))
        if needed <= room:
            room -= needed
            served.add(unit.key)
    return served
