"""An API server, its watch and its clients as plain dictionaries: what the books are held against.

Slow and obvious. Events are shown late, lists are older than they look, answers are lost, bindings
land after their client has given up.
"""

from dataclasses import dataclass, field, replace

from gpushare.core.model import Allocation, NodeSpec, ObservedPod, PodRef, Request, Shares

REQUEST_TIMEOUT = 60.0
"""Seconds after which kube-apiserver ends a request: a binding sent earlier lands no more."""

READ_TIMEOUT = 5.0
"""Seconds a client takes at most from sending a read to settling by it."""


@dataclass
class Pod:
    """A pod as it is: `held` is where it truly runs, `placement` what its annotations say."""

    ref: PodRef
    request: Request
    node: str = ""
    held: Shares = ()
    placement: Shares | None = None
    assigned: bool = False
    ended: bool = False
    ours: bool = False
    started: float = 0.0
    running: bool = False

    def seen(self) -> ObservedPod:
        return ObservedPod(
            self.ref,
            self.request,
            self.node,
            self.placement,
            self.assigned,
            self.ended,
            1.0,
            self.started,
            running=self.running,
        )


@dataclass
class Post:
    """A binding under way to the API server, and its answer once there is one."""

    uid: str
    allocation: Allocation
    sent: float
    status: int = 0
    told: bool = False


@dataclass
class World:
    """Everything that is true, and how much of it the watch has shown."""

    now: float = 0.0
    nodes: dict[str, NodeSpec] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    posts: list[Post] = field(default_factory=list)
    log: list[ObservedPod | str] = field(default_factory=list)
    cursor: int = 0
    shown: set[str] = field(default_factory=set)
    listing: tuple[list[ObservedPod], int] | None = None

    def create(self, uid: str, request: Request) -> None:
        self.pods[uid] = Pod(PodRef("default", uid, uid), request)
        self.log.append(self.pods[uid].seen())

    def change(self, uid: str, **fields: object) -> None:
        pod = replace(self.pods[uid], **fields)  # type: ignore[arg-type]  # fields of Pod
        self.pods[uid] = pod
        self.log.append(pod.seen())

    def delete(self, uid: str) -> None:
        del self.pods[uid]
        self.log.append(uid)

    def land(self, post: Post) -> None:
        """The API server takes the binding or refuses it: 404, 409, or 504 when it is too late."""
        pod = self.pods.get(post.uid)
        if self.now >= post.sent + REQUEST_TIMEOUT:
            post.status = 504
        elif pod is None:
            post.status = 404
        elif pod.node or pod.ended:
            post.status = 409
        else:
            post.status = 201
            where = post.allocation
            self.change(
                post.uid, node=where.node, held=where.shares, placement=where.shares, ours=True
            )

    def may_land(self, post: Post) -> bool:
        pod = self.pods.get(post.uid)
        on_its_way = not post.status and self.now < post.sent + REQUEST_TIMEOUT
        return on_its_way and pod is not None and not pod.node and not pod.ended

    def read(self, uid: str) -> ObservedPod | None:
        return self.pods[uid].seen() if uid in self.pods else None

    def list_pods(self) -> None:
        self.listing = ([pod.seen() for pod in self.pods.values()], len(self.log))

    def note_shown(self, pod: ObservedPod) -> None:
        if pod.node:
            self.shown.add(pod.ref.uid)

    def waiting(self) -> list[str]:
        return [uid for uid, pod in self.pods.items() if not pod.node and not pod.ended]

    def running(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.node and not pod.ended]

    def held(self, node: str) -> list[int]:
        """Units by device that are taken, or may yet be: what no book may take for free.

        Pods bound by others count from the moment the watch has shown them.
        """
        shares = [
            pod.held
            for pod in self.running()
            if pod.node == node and (pod.ours or pod.ref.uid in self.shown)
        ]
        landing = {
            post.uid: post.allocation.shares
            for post in self.posts
            if post.allocation.node == node and self.may_land(post)
        }
        taken = [0] * len(self.nodes[node].capacity)
        for device, units in (share for some in (*shares, *landing.values()) for share in some):
            if device < len(taken):
                taken[device] += units
        return taken

    def charged(self, node: str) -> tuple[int, ...]:
        """Units by device that right books charge once everything has been shown."""
        count = len(self.nodes[node].capacity)
        taken = [0] * count
        for pod in self.running():
            if pod.node != node or not pod.request.devices:
                continue
            if pod.placement is None or any(device >= count for device, _ in pod.placement):
                taken = [units + pod.request.total for units in taken]
                continue
            for device, units in pod.placement:
                taken[device] += units
        return tuple(taken)
