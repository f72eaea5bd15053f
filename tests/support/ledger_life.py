"""The books and the world that they describe, through a sequence of steps.

Every step is valid at any time (without an object it does nothing), so that hypothesis and a seeded
random choose freely. `audit` checks the invariants after each step, `rest` those after all events
have arrived. `n` picks an object.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from gpushare.core.amounts import charged_units
from gpushare.core.decide import filter_nodes, place
from gpushare.core.model import NodeSpec, ObservedPod, Pinned, PodRef, Request
from gpushare.core.pairing import Pairing
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.ranking import Ranking
from gpushare.core.states.entry import NodeBooks
from gpushare.errors import InsufficientMemory, RequestRefused
from gpushare.ledger import Ledger
from gpushare.wire.inspect import encode_node
from tests.support.ledger_world import READ_TIMEOUT, Post, Rig, World
from tests.unit.core.clusters import node

_T = TypeVar("_T")

NODES = ("a", "b")


class Life:
    """One ledger, told by one world."""

    def __init__(self, pairing: Pairing, shape: Sequence[int]) -> None:
        self.pairing = pairing
        self.books = Ledger(pairing)
        self.world = World()
        self.reads: list[tuple[str, int, ObservedPod | None, float]] = []
        self.pod_count = 0
        self._texts: dict[tuple[str, int], str] = {}
        for name in NODES:
            self.world.rigs[name] = Rig(tuple(f"{name}{device}" for device in range(len(shape))))
            self._set_node(node(name, *shape, cpu=1000, memory=1000))

    # -- nodes, users, other schedulers ---------------------------------------------------------

    def change_nodes(
        self, kind: str, name: str, shape: Sequence[int], sick: frozenset[int]
    ) -> None:
        if kind == "set":
            rig = self.world.rigs[name]
            order = tuple(f"{name}{device}" for device in range(len(shape)))
            if len(rig.order) == len(shape):
                order = rig.order  # a node without card names cannot show moved cards
            rig.becomes(order, names=False, identity=False)
            self._set_node(node(name, *shape, unhealthy=sick, cpu=1000, memory=1000))
        elif kind == "remove":
            self.world.nodes.pop(name, None)
            self.books.node_gone(name)
        elif kind == "list":
            self.books.replace_nodes(self.world.nodes.values())
        else:
            self.books.set_unhealthy(name, sick)

    def change_cards(self, name: str, order: Sequence[int], identity: bool) -> None:
        """Cards die, move and come back, and the inventory names the cards."""
        rig = self.world.rigs[name]
        cards = tuple(f"{name}{card}" for card in order)
        if not rig.names_cards and len(rig.order) == len(cards):
            cards = rig.order  # one change at a time: now the cards get names
        rig.becomes(cards, names=True, identity=identity)
        size = [8] * len(cards)
        names = node(name, *size, cpu=1000, memory=1000, uuids=cards, serves_by_identity=identity)
        self._set_node(names)

    def _set_node(self, spec: NodeSpec) -> None:
        self.world.nodes[spec.name] = spec
        self.books.node_changed(spec)

    def create(self, request: Request) -> None:
        self.pod_count += 1
        self.world.create(f"p{self.pod_count}", request)

    def another_binds(self, n: int, name: str, text: bool) -> None:
        uid = _pick(n, self.world.waiting())
        if uid is not None:
            request = self.world.pods[uid].request
            values = tuple((n % 3 + extra, request.units) for extra in range(request.devices))
            self.world.change(
                uid,
                node=name,
                bound_shares=values,
                placement=values if text and values else None,
                bound_at=self.world.rigs[name].version,
            )

    def change_a_pod(self, n: int, kind: str) -> None:
        uid = _pick(n, sorted(self.world.pods))
        if uid is None:
            return
        pod = self.world.pods[uid]
        runs = pod.node and not pod.ended
        if kind == "delete":
            self.world.delete(uid)
        elif kind == "end":
            self.world.change(uid, ended=True)
        elif runs and kind == "serve":
            self.world.serve(uid)
            self.world.change(uid, assigned=True)
        elif runs and kind == "admit":
            self.world.change(uid, started=1.0)
        elif runs and kind == "run":  # set up anew, a pod may be Pending again
            self.world.serve(uid)
            self.world.change(uid, started=1.0, running=not pod.running)
        elif runs:
            self.world.change(uid, request=replace(pod.request, cpu=n % 6))

    # -- the binder -----------------------------------------------------------------------------

    def create_and_bind(self, request: Request, name: str) -> None:
        self.create(request)
        self._bind(f"p{self.pod_count}", name)

    def bind(self, n: int, name: str) -> None:
        """Bind any pod, even one that is gone or bound: the scheduler may not know yet."""
        if self.pod_count:
            self._bind(f"p{n % self.pod_count + 1}", name)

    def _bind(self, uid: str, name: str) -> None:
        pod = self.world.pods.get(uid)
        request = pod.request if pod else Request(1, 1)
        if not request.devices:
            return
        view = self.books.snapshot()
        fits = bool(filter_nodes(view, [name], request).fit)
        try:
            allocation = place(view, name, request, Ranking(DeviceBestFit()))
        except RequestRefused:
            assert not fits
            return
        assert fits
        try:
            ref = PodRef("default", uid, uid)
            allocation, _ = self.books.assume(ref, request, allocation, self.world.now)
        except InsufficientMemory as error:
            raise AssertionError("placed on this very view, and refused") from error
        except RequestRefused:
            return
        version = self.world.rigs[name].version
        self.world.send(Post(uid, allocation, self.world.now, version))
        after = self.books.snapshot()
        row = after.row[name]
        assert all(after.used[row, d] <= after.capacity[row, d] for d in allocation.devices)
        assert all(after.cores_used[row, d] <= 100 for d in allocation.devices)
        if request.cores == 100:
            assert all(
                after.used[row, d]
                == charged_units(request.units, request.percents, int(after.capacity[row, d]))
                for d in allocation.devices
            )

    def land(self, n: int, answer: str) -> None:
        """A binding reaches the API server; the answer comes at once, is lost, or comes later."""
        post = self._post(n, lambda post: not post.status)
        if post is not None:
            self.world.land(post)
            if answer != "later" and not post.is_reported:
                self._tell(post, lost=answer == "lost")

    def answer(self, n: int, lost: bool) -> None:
        post = self._post(n, lambda post: not post.is_reported)
        if post is not None:
            self._tell(post, lost)

    def _tell(self, post: Post, lost: bool) -> None:
        post.is_reported = True
        if post.status == 201 and not lost:
            self.books.landed(post.uid, self.world.now)
        elif post.status == 404 and not lost:
            self.books.forget(post.uid)
        else:
            self.books.doubt(post.uid, self.world.now)

    def send_again(self, n: int) -> None:
        post = self._post(n, lambda post: post.is_reported)
        charge = self.books.entry(post.uid) if post else None
        if post is None or charge is None or charge.placement != post.allocation.shares:
            return
        with suppress(RequestRefused):
            if self.books.resume(post.uid, post.allocation.node, self.world.now):
                again = Post(post.uid, post.allocation, self.world.now, post.version)
                self.world.send(again)

    def read_the_overdue(self) -> None:
        now = self.world.now
        for due in self.books.overdue(now):
            self.reads.append((due.ref.uid, due.token, self.world.read(due.ref.uid), now))

    def settle(self, n: int) -> None:
        if self.reads:
            uid, token, collected, _ = self.reads.pop(n % len(self.reads))
            self.books.settle(uid, token, collected, self.world.now)

    def time_passes(self, seconds: float) -> None:
        world = self.world
        world.now += seconds
        for post in world.posts:
            # A client notices within its timeout that no answer came.
            if not post.is_reported and world.now > post.sent_at + READ_TIMEOUT:
                post.is_reported = True
                self.books.doubt(post.uid, post.sent_at + READ_TIMEOUT)
        world.posts = [post for post in world.posts if world.may_land(post) or not post.is_reported]
        self.reads = [
            old_version for old_version in self.reads if world.now <= old_version[3] + READ_TIMEOUT
        ]

    # -- the watch ------------------------------------------------------------------------------

    def show_the_next_event(self) -> None:
        world = self.world
        if world.listing or world.cursor == len(world.log):
            return
        event = world.log[world.cursor]
        world.cursor += 1
        if isinstance(event, str):
            self.books.pod_gone(event)
        else:
            self.books.pod_changed(event)
            world.note_shown(event)

    def the_watch_breaks(self) -> None:
        """Take a list; until its arrival the books get no events."""
        if not self.world.listing:
            self.world.list_pods()

    def the_list_arrives(self) -> None:
        if self.world.listing:
            pods, self.world.cursor = self.world.listing
            self.world.listing = None
            self.books.replace_pods(pods)
            for pod in pods:
                self.world.note_shown(pod)

    # -- invariants ----------------------------------------------------------------------------

    def audit(self) -> None:
        """The sums equal the entries, nothing held is free, nobody is charged twice."""
        self.books.check()
        view = self.books.snapshot()
        for name, spec in self.world.nodes.items():
            free = view.free[view.row[name]].tolist()
            cores_free = view.cores_free[view.row[name]].tolist()
            for device, (values, cores) in enumerate(self.world.held(name)):
                assert free[device] <= max(spec.capacity[device] - values, 0), (name, device)
                assert cores_free[device] <= max(100 - cores, 0), (name, device)
        uids = [entry.ref.uid for books in self.books.dump() for entry in books.entries]
        assert len(uids) == len(set(uids))
        for books in self.books.dump():
            row = view.row[books.spec.name]
            if self.pairing is Pairing.ON or row in view.pinned:
                pins = view.pinned.get(row, ())
                assert sorted(pins, key=repr) == sorted(_pins(books), key=repr)
        self._a_version_of_a_node_has_one_text()

    def _a_version_of_a_node_has_one_text(self) -> None:
        for name, version in self.books.node_versions().items():
            books = self.books.node_books(name)
            assert books is not None
            text = encode_node(None, books, "") + repr((books.spec.healthy, books.spec.closed))
            assert self._texts.setdefault((name, version), text) == text

    def rest(self) -> None:
        """Deliver all events: the books equal the world; without pods all memory is free."""
        self.the_list_arrives()
        for _ in range(3):
            self._come_to_rest()
        counts = self.books.counts()
        assert (counts["assumed"], counts["in_doubt"]) == (0, 0)
        for books in self.books.dump():
            memory, cores = self.world.charged(books.spec.name)
            for units, (minimum, maximum) in zip(books.used, memory, strict=True):
                assert minimum <= units <= maximum
            for percent, (minimum, maximum) in zip(books.cores_used, cores, strict=True):
                assert minimum <= percent <= maximum
            self._host_is_right(books.spec)
        for uid in list(self.world.pods):
            self.world.delete(uid)
        self._come_to_rest()
        view = self.books.snapshot()
        assert not view.used.any()
        assert not view.cores_used.any()
        assert not view.pinned
        self.books.check()

    def _host_is_right(self, spec: NodeSpec) -> None:
        here_value = [pod.request for pod in self.world.running() if pod.node == spec.name]
        view = self.books.snapshot()
        row = view.row[spec.name]
        assert view.cpu_free[row] == 1000 - sum(request.cpu for request in here_value)
        assert view.memory_free[row] == 1000 - sum(request.memory for request in here_value)
        assert view.cpu_only[row] == sum(
            request.cpu for request in here_value if not request.devices
        )

    def _come_to_rest(self) -> None:
        self.time_passes(61)
        self.time_passes(61)
        while self.world.cursor < len(self.world.log):
            self.show_the_next_event()
        self.read_the_overdue()
        while self.reads:
            self.settle(0)

    def _post(self, n: int, which: Callable[[Post], bool]) -> Post | None:
        return _pick(n, [post for post in self.world.posts if which(post)])


def _pins(books: NodeBooks) -> list[Pinned]:
    """The pods that make equal pods wait, by the books."""
    return [
        (entry.request.sizes, tuple(device for device, _ in entry.cover.written))
        for entry in books.entries
        if entry.cover.written is not None and not entry.running
        if not (entry.assigned and entry.started)
    ]


def _pick(n: int, some: Sequence[_T]) -> _T | None:
    return some[n % len(some)] if some else None
