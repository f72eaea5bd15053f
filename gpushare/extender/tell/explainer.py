"""Explanations of pods from the ledgers of this process, and the holds, for the health listener.

Reads one pod from the API server for each explanation, and changes nothing. Callers that ask all
the time must not cost the verbs more than a share of the interpreter: one explanation is made at a
time, and after each there is a rest.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

from gpushare.core.snapshot import Snapshot
from gpushare.errors import ApiError, ApiNotFound, GpuShareError, MessageError, NotReady
from gpushare.explain.claims import by_claims, explain_claims
from gpushare.explain.document import document
from gpushare.explain.pod import NodeAsk, Outstanding, PodExplanation, explain_pod
from gpushare.extender.claims.view import ClaimsView
from gpushare.extender.door.document_cache import DocumentCache
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.tell.group_progress import progress_of
from gpushare.extender.verbs.answer import NOT_READY
from gpushare.extender.verbs.group_room import group_need, group_needs
from gpushare.extender.verbs.offers import held_place, held_places, offers_of
from gpushare.kube.api import Api
from gpushare.wire.demands import demands_of
from gpushare.wire.fields import NAME
from gpushare.wire.groups import group_of
from gpushare.wire.held import encode_held
from gpushare.wire.objects import PODS, Pod
from gpushare.wire.pods import Claimant, claimant, scheduler_of

_TIMEOUT = 5.0
"""Seconds to read the pod."""
_MAX_WAITING = 4
_REST = 9.0
"""A rest is this many times as long as the CPU time of the last explanation."""
_MAX_REST = 1.0
_STATUS: tuple[tuple[type[GpuShareError], int], ...] = (
    (ApiNotFound, 404),
    (MessageError, 422),
    (NotReady, 503),
    (ApiError, 503),
)


@dataclass(eq=False)
class Explainer:
    """Explains pods; any thread may call any method.

    unit: the memory unit of the cluster. not_ready: the reason not to answer now, or "". called:
    whether filter was called for the pod of that uid. claims: the view of claims, None if claims
    are not followed. ask_for: returns the request to an autoscaler for a node for the pod.
    """

    api: Api
    resources: ManagedResources
    unit: str
    _: KW_ONLY
    not_ready: Callable[[], str]
    called: Callable[[str], bool]
    claims: ClaimsView | None = None
    ask_for: Callable[[str], NodeAsk | None] = lambda _: None

    def __post_init__(self) -> None:
        self._slots = threading.BoundedSemaphore(_MAX_WAITING)
        self._making = threading.Lock()
        self._rested_at = 0.0
        self._documents = DocumentCache()

    def answer(self, namespace: str, name: str) -> tuple[int, bytes]:
        """Return (HTTP status, JSON): the document about a pod, or the error."""
        return self._answered(lambda: self._in_turn(namespace, name))

    def held(self) -> tuple[int, bytes]:
        """Return (HTTP status, JSON): the holds by pod, or the error."""
        return self._answered(lambda: self._documents.get("held", self._held))

    def _answered(self, make: Callable[[], bytes]) -> tuple[int, bytes]:
        try:
            if reason := self.not_ready():
                raise NotReady(NOT_READY + reason)
            return 200, make()
        except GpuShareError as error:
            status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
            return status, json.dumps({"error": str(error)}).encode()

    def _held(self) -> bytes:
        return encode_held(
            self.unit,
            {resource.names.resource: held_places(resource.holds) for resource in self.resources},
        )

    def _in_turn(self, namespace: str, name: str) -> bytes:
        if not self._slots.acquire(blocking=False):
            raise NotReady("gpushare: too many ask for explanations; ask again in a second")
        try:
            pod = self._read(namespace, name)
            with self._making:
                time.sleep(max(0.0, self._rested_at - time.monotonic()))
                begin = time.thread_time()
                body = self._explain(pod)
                cost = time.thread_time() - begin
                self._rested_at = time.monotonic() + min(_MAX_REST, cost * _REST)
                return body
        finally:
            self._slots.release()

    def _read(self, namespace: str, name: str) -> Pod:
        for text in (namespace, name):
            if NAME.fullmatch(text) is None:
                raise MessageError(f"{text[:80]!r} is no name of a namespace or pod")
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        try:
            body = self.api.request("GET", path, timeout=_TIMEOUT)
        except ApiNotFound as error:
            raise ApiNotFound(f"there is no pod {namespace}/{name}", 404) from error
        return PODS.decode_answer(body, namespace, name)

    def _explain(self, pod: Pod) -> bytes:
        schedulers = self.resources.scope.schedulers
        uid = (pod.metadata and pod.metadata.uid) or ""
        served = scheduler_of(pod) in schedulers if schedulers else None
        resources = [resource.names.resource for resource in self.resources]
        claims = self.claims
        if claims is not None and by_claims(pod, resources, claims.books.resources):
            filters = claims.source.filters
            about = explain_claims(pod, claims.books, filters, claims.matches, self.unit)
            return json.dumps(document(about)).encode()
        explained = explain_pod(
            pod,
            self.resources.resources,
            self.unit,
            served=served,
            was_called=self.called(uid),
            now=time.time(),
            offer=lambda resource, request: _offered(resource, claimant(pod, request)),
        )
        if explained.state == "pending":
            fits = explained.explanation is not None and bool(explained.explanation.fit)
            ask = None if fits else self.ask_for(uid)
            explained = replace(
                explained, outstanding=self._outstanding(pod, explained), node_ask=ask
            )
        if explained.state in ("pending", "binding"):
            group = progress_of(self.resources.gate, group_of(pod))
            explained = replace(explained, group=group)
        return json.dumps(document(explained)).encode()

    def _outstanding(self, pod: Pod, explained: PodExplanation) -> Outstanding:
        """Return the holds against this pod, and whether the group of the pod fits."""
        resource, request = self.resources.find(explained.resource), explained.request
        if resource is None or request is None:
            return Outstanding()
        claim = claimant(pod, request)
        needs = group_needs(resource, self.resources.gate, claim, demands_of(pod))
        group = group_need(_offered(resource, claim), needs)
        holds = resource.holds
        places = held_places(holds, against=claim)
        own = [held_place(holds, hold) for hold in holds.reservations() if hold.is_for(claim)]
        return Outstanding(places, group, next(iter(own), None))


def _offered(resource: ManagedResource, claim: Claimant) -> Snapshot:
    """Return the snapshot of filter, so that explanations and filter name the same numbers."""
    return offers_of(resource).to(claim, resource.ledger.snapshot(), time.monotonic())
