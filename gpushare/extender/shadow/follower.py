"""Compares the choices of a shadow policy with the real ones, for one managed resource.

For one thread: the caller passes the answers of filter, and the pods that came to a node or left a
node, in their order. The follower reads views of the real books, so it judges without a lock.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from gpushare.core.decide import best_row, place
from gpushare.core.model import ObservedPod, Request
from gpushare.core.mutable_cluster import fits
from gpushare.core.node_names import NodeNames
from gpushare.core.ranking import Fits, Ranking, fits_devices
from gpushare.core.shadow_books import Place, ShadowBooks, Sums, sums_of
from gpushare.core.snapshot import Bools, Snapshot
from gpushare.extender.managed_resources import ManagedResource

SETTLE_EVERY = 60.0
"""Seconds after which the real nodes are taken over again, though none came, went or changed."""
_SOON = 1.0
"""The same while something is known to be wrong."""
_FIGURES_EVERY = 5.0
_MOST_COUNTED = 10_000
"""Refused pods that are remembered, so that each counts once."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A pod that filter has answered for."""

    resource: str
    uid: str
    request: Request
    names: NodeNames
    """The nodes that kube-scheduler asked about."""
    fits: Bools
    """bool (len(names),): those with room."""
    seen: Snapshot | None
    """The snapshot that filter judged; None: the choice is not compared."""


@dataclass(slots=True)
class Counts:
    """The results of the shadow. The thread of the shadow writes, any thread may read."""

    choices: Counter[str] = field(default_factory=lambda: Counter(same=0, node=0, device=0))
    """Requests by `same`, `node` or `device`: whether the policies choose the same on the real
    books, or which differs."""
    pods: Counter[str] = field(default_factory=lambda: Counter(both=0, real=0, shadow=0))
    """By `both` (bound, and with room here), `real` (bound, and refused here) and `shadow`
    (really refused, with room here)."""
    inexact: Counter[str] = field(
        default_factory=lambda: Counter(node_changed=0, not_asked=0, unplaced=0)
    )
    """Pods that could not be followed exactly, by why."""
    rebases: int = 0
    real: Sums = field(default_factory=Sums)
    """The sums of the real books."""
    shadow: Sums = field(default_factory=Sums)
    """The sums of the books of the shadow."""


class Follower:
    """Follows one managed resource. `policy`: the name of the shadow policy."""

    def __init__(self, resource: ManagedResource, policy: str) -> None:
        self.managed = resource
        self.counts = Counts()
        self._policy = policy
        self.books: ShadowBooks | None = None
        """The shadow's books; None before the first list of pods."""
        self._settled = self._figured = float("-inf")
        self._wrong = self._changed = False
        self._counted: OrderedDict[str, None] = OrderedDict()
        self._rankings: dict[tuple[Fits, str], Ranking] = {}

    def rebase(self, now: float) -> None:
        """Copy the real books: an event was lost, or came out of order."""
        view = self.managed.ledger.view()
        if self.books is None:
            self.books = ShadowBooks(view.snapshot, view.entries)
        else:
            self.counts.rebases += bool(self.books.pods)  # not when the first list comes
            self.books.rebase(view.snapshot, view.entries)
        self._settled, self._wrong, self._changed = now, False, True

    def asked(self, filter_answer: Asked, now: float) -> None:
        """Compare the choices for a pod on the real books, and judge whether it fits here."""
        if filter_answer.seen is not None and filter_answer.fits.any():
            self._compare(filter_answer.seen, filter_answer)
        books = self.books
        if books is None or books.knows(filter_answer.uid):
            return
        if filter_answer.seen is not None and not books.follows(filter_answer.seen):
            self._follow_nodes(books, now)
        if filter_answer.fits.any():
            books.ask(filter_answer.uid, filter_answer.names)
        elif filter_answer.uid not in self._counted and books.has_room(
            filter_answer.request, filter_answer.names
        ):
            self.counts.pods["shadow"] += 1
            self._counted[filter_answer.uid] = None
            if len(self._counted) > _MOST_COUNTED:
                self._counted.popitem(last=False)

    def came(self, pod: ObservedPod) -> None:
        """Take a pod that is really bound now."""
        uid, books = pod.ref.uid, self.books
        self._counted.pop(uid, None)
        if books is None or books.knows(uid):
            return
        self._changed = True
        if not books.was_asked(uid):
            # By hand, by another scheduler, or while another process led: nothing was chosen here.
            self.counts.inexact["not_asked"] += 1
            entry = self.managed.ledger.entry(uid)
            shares = entry.placement if entry is not None else pod.placement
            place = Place(pod.node, shares or (), pod.request)
            if len(place.shares) != pod.request.devices or not books.put(uid, place):
                books.leave(uid)
                self._wrong = True
            return
        is_placed = books.place(uid, pod.request, self._ranking(fits, self._policy_of(pod.request)))
        self.counts.pods["both" if is_placed else "real"] += 1

    def went(self, uid: str) -> None:
        """End the charge of a pod that has ended or left its node."""
        self._counted.pop(uid, None)
        if self.books is not None and not self.books.free(uid):
            self._wrong = True
        self._changed = True

    def tick(self, now: float) -> None:
        """Copy the shapes of the real nodes, and count the sums of both books, if it is time."""
        books = self.books
        if books is None:
            return
        overdue = now - self._settled
        always = overdue >= SETTLE_EVERY or (self._wrong and overdue >= _SOON)
        self._follow_nodes(books, now, always=always)
        if self._changed and now >= self._figured + _FIGURES_EVERY:
            view = self.managed.ledger.view()
            typical = view.typical_units
            self.counts.real = sums_of(view.snapshot, len(view.entries), typical)
            self.counts.shadow = sums_of(books.snapshot, books.pods, typical)
            self._figured, self._changed = now, False

    def _follow_nodes(self, books: ShadowBooks, now: float, *, always: bool = False) -> None:
        """Copy the shapes of the real nodes, if they have changed; always: even if not."""
        real = self.managed.ledger.snapshot()
        if books.follows(real) and not always:
            books.follow_host(real)
            return
        view = self.managed.ledger.view()
        settled = books.settle(
            view.snapshot, view.entries, self._ranking(fits, self._policy_of(Request()))
        )
        self.counts.inexact["node_changed"] += settled.moved
        self.counts.inexact["unplaced"] += settled.unplaced
        self._settled, self._wrong, self._changed = now, False, True

    def _compare(self, snapshot: Snapshot, filter_answer: Asked) -> None:
        """Count whether bind would take the same of the nodes with room by both policies."""
        request, choices = filter_answer.request, []
        rows = filter_answer.names.rows(snapshot.row)[filter_answer.fits]
        for policy in (self.managed.default_policy, ""):
            scorer = self._ranking(fits_devices, self._policy_of(request, policy))
            best = best_row(snapshot, rows, request, scorer)
            if best is None:  # the choice is not ours
                return
            choices.append(place(snapshot, snapshot.names[int(rows[best])], request, scorer))
        real, shadow_choice = choices
        differs = "node" if real.node != shadow_choice.node else "device"
        same = (real.node, real.devices) == (shadow_choice.node, shadow_choice.devices)
        self.counts.choices["same" if same else differs] += 1

    def _policy_of(self, request: Request, default: str = "") -> str:
        """Return the policy that the pod names, if there is such a one; else the default."""
        wished = request.policy
        return wished if wished in self.managed.rankings else default or self._policy

    def _ranking(self, room: Fits, name: str) -> Ranking:
        """Return a ranking of the shadow by the current policy: a memo has one user.

        room: what has room; in the shadow's books kube-scheduler's own filters count too.
        """
        policy = self.managed.rankings[name].policy
        ranking = self._rankings.get((room, name))
        if ranking is None or ranking.policy is not policy:
            ranking = self._rankings[room, name] = Ranking(
                policy, fits=room, neighbours=self.managed.neighbours
            )
        return ranking
