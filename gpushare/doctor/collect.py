"""Read the input of the checks: objects and rights at the API server, and the extender's answers.

The only part of doctor that sends requests: lists, gets and SelfSubjectAccessReviews, which store
nothing. Every failure becomes an `Unread`.

Tested in `tests/integration/test_doctor.py`.
"""

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from gpushare.doctor import facts, objects
from gpushare.doctor.checks.autoscalers import placeholder_rights
from gpushare.doctor.checks.claims import CLAIMS_RIGHTS
from gpushare.doctor.checks.kueue import KUEUE_RIGHTS
from gpushare.doctor.checks.scheduler_file import minor_of
from gpushare.doctor.checks.server import rights_to_review
from gpushare.doctor.objects import Fields
from gpushare.errors import ApiError, ApiNotFound, MessageError, WireError
from gpushare.kube.api import pages
from gpushare.kube.client import ServerTimeClient
from gpushare.wire.annotations import Names
from gpushare.wire.kept import LEASE
from gpushare.wire.kueue import API as KUEUE
from gpushare.wire.kueue import GROUP as KUEUE_GROUP
from gpushare.wire.metrics import read_samples
from gpushare.wire.scheduler.config import ExtenderConfig
from gpushare.wire.scheduler.entry import endpoint

_T = TypeVar("_T")
_TIMEOUT = 10.0
_FORBIDDEN = 403
_LARGEST = 16 * 1024 * 1024
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_DRA = "/apis/resource.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_ADMISSION_KINDS = tuple(
    f"{effect}admission{kind}"
    for effect in ("validating", "mutating")
    for kind in ("policies", "policybindings")
)
CLAIMS_LABEL = "gpushare.io/dra=true"
"""Label of a namespace: a MutatingAdmissionPolicy sends pods with claims there to our scheduler."""
_LEASES = "/apis/coordination.k8s.io/v1"


class Collector:
    """Reads one cluster, by one account. namespace: of the extender."""

    def __init__(self, client: ServerTimeClient, names: Names, unit: str, namespace: str) -> None:
        self._client = client
        self._names = names
        self._unit = unit
        self._namespace = namespace

    def collect(
        self, scheduler: facts.SchedulerFile | facts.Unread | None, asks: str
    ) -> facts.Facts:
        """Return the facts from the API server, after one request if it does not answer.

        asks: the namespace of placeholders, "" if there is none.
        """
        todo = "look at --kubeconfig, --context and the network"
        api = _read_or_unread(self._server, "the API server", todo)
        now = time.time()
        if isinstance(api, facts.Unread):
            return facts_without(api, now, "not read: the API server does not answer")
        todo = "let this account list the kinds of resource.k8s.io"
        claims = _read_or_unread(self._claims, "claims", todo, "warn")
        rights = [*rights_to_review(self._namespace, scheduler)]
        if isinstance(claims, facts.ListedClaims) and claims != facts.ListedClaims():
            rights += CLAIMS_RIGHTS
        todo = "let this account list admissionchecks, resourceflavors and topologies of Kueue"
        kueue = _read_or_unread(self._kueue, "Kueue's checks", todo, "skip")
        if isinstance(kueue, facts.ListedKueue) and kueue.checks:
            rights += KUEUE_RIGHTS
        asks_seen = None
        if asks:
            rights += placeholder_rights(asks)
            subject, todo = f"the namespace {asks}", "let this account get namespaces"
            phase = _read_or_unread(lambda: self._phase(asks), subject, todo, "skip")
            asks_seen = facts.PlaceholderNamespace(asks, phase)
        return facts.Facts(
            now,
            api,
            _read_or_unread(self._nodes, "nodes", "let this account list nodes"),
            # Times of objects are by the API server's clock.
            _read_or_unread(
                lambda: self._pods(now + (api.ahead or 0.0), asks),
                "pods",
                "let this account list pods",
            ),
            _read_or_unread(
                self._leases, "Leases", f"let this account get Leases in {self._namespace}", "warn"
            ),
            _read_or_unread(
                lambda: {right: self._allowed(right) for right in rights},
                "rights",
                "let this account create selfsubjectaccessreviews, as every account may by default",
            ),
            _read_or_unread(
                self._closed,
                "ConfigMaps",
                f"let this account list configmaps in {self._namespace}",
                "warn",
            ),
            claims=claims,
            asks=asks_seen,
            kueue=kueue,
        )

    def _server(self) -> facts.ApiServer:
        try:
            version = self._get("/version")
        except ApiError as error:
            if error.refusal != _FORBIDDEN:
                raise
            version = {"gitVersion": "but may not tell its version"}
        git, minor = str(version.get("gitVersion")), str(version.get("minor")).rstrip("+")
        number = int(minor) if minor.isascii() and minor.isdigit() else minor_of(git)
        date = self._client.server_time
        ahead = None if date is None else date - time.time()
        return facts.ApiServer(git[:80], number, ahead)

    def _nodes(self) -> tuple[facts.ListedNode, ...]:
        items = self._items("/api/v1/nodes")
        return tuple(objects.read_node(item, self._names, self._unit) for item in items)

    def _pods(self, now: float, asks: str) -> facts.ListedPods:
        """Return the pods that have not ended."""
        query = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        return objects.read_pods(self._items("/api/v1/pods", query), self._names, now, asks)

    def _phase(self, namespace: str) -> str:
        """Return the phase of the namespace; "" if there is none."""
        try:
            document = self._get(f"/api/v1/namespaces/{namespace}")
        except ApiNotFound:
            return ""
        status = document.get("status")
        return str(status.get("phase") if isinstance(status, dict) else "")

    def _leases(self) -> tuple[facts.ListedLease, ...]:
        """Return the extenders' Leases: of all namespaces if these may be listed, else of one."""
        try:
            query = {"fieldSelector": f"metadata.name={LEASE}"}
            return tuple(map(objects.read_lease, self._items(f"{_LEASES}/leases", query)))
        except ApiError as error:
            if error.refusal != _FORBIDDEN:
                raise
        try:
            path = f"{_LEASES}/namespaces/{self._namespace}/leases/{LEASE}"
            return (objects.read_lease(self._get(path)),)
        except ApiNotFound:
            return ()

    def _closed(self) -> tuple[facts.UnhealthyConfigMap, ...]:
        """Return the ConfigMaps that close devices."""
        items = self._items(f"/api/v1/namespaces/{self._namespace}/configmaps")
        config_maps = (objects.read_closed(item, self._names) for item in items)
        return tuple(config_map for config_map in config_maps if config_map is not None)

    def _claims(self) -> facts.ListedClaims:
        """Return the facts about claims; none without resource.k8s.io/v1."""
        try:
            classes = [*self._items(f"{_DRA}/deviceclasses")]
        except ApiNotFound:
            return facts.ListedClaims()
        forbidden: list[str] = []
        left_over = [*objects.read_left_over("deviceclasses", classes)]
        for kind in _ADMISSION_KINDS:
            policies = self._items_if_allowed(f"{_ADMISSION}/{kind}", forbidden)
            left_over += objects.read_left_over(kind, policies)
        query = {"labelSelector": CLAIMS_LABEL}
        namespaces = self._items_if_allowed("/api/v1/namespaces", forbidden, query)
        return facts.ListedClaims(
            selectors=objects.read_selectors(classes),
            drivers=objects.read_drivers(self._items(f"{_DRA}/resourceslices")),
            claims=objects.read_claims(self._items(f"{_DRA}/resourceclaims")),
            namespaces=frozenset(str(item["metadata"]["name"]) for item in namespaces),
            left_over=tuple(sorted(left_over)),
            forbidden=tuple(forbidden),
        )

    def _kueue(self) -> facts.ListedKueue:
        """Return the facts about Kueue; none without an AdmissionCheck of the extender."""
        try:
            checks = [*self._items(f"{KUEUE}/admissionchecks")]
        except ApiNotFound:
            # Releases before 0.15 serve this version alone.
            older = f"/apis/{KUEUE_GROUP}/v1beta1/admissionchecks"
            kueue = objects.read_kueue(self._items_if_allowed(older, []))
            return replace(kueue, is_too_old=bool(kueue.checks))
        if not objects.read_kueue(checks).checks:
            return facts.ListedKueue()
        # The extender's own account may not list topologies.
        flavors, topologies = (
            self._items_if_allowed(f"{KUEUE}/{kind}", [])
            for kind in ("resourceflavors", "topologies")
        )
        return objects.read_kueue(checks, flavors, topologies)

    def _items_if_allowed(
        self, path: str, forbidden: list[str], query: Mapping[str, str] | None = None
    ) -> list[Fields]:
        """Return the objects of a list; none for an unknown kind, or for a forbidden kind, which is
        added to `forbidden`.
        """
        try:
            return [*self._items(path, query)]
        except ApiNotFound:
            return []
        except ApiError as error:
            if error.refusal != _FORBIDDEN:
                raise
            forbidden.append(path.rpartition("/")[2])
            return []

    def _allowed(self, right: facts.Right) -> bool:
        resource, _, below = right.resource.partition("/")
        attributes = {
            "verb": right.verb,
            "group": right.group,
            "resource": resource,
            "subresource": below,
            "namespace": right.namespace,
            "name": right.name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {k: v for k, v in attributes.items() if v}},
        }
        body = json.dumps(review).encode()
        answer = self._client.request("POST", _REVIEWS, body=body, timeout=_TIMEOUT)
        status = _document(answer).get("status")
        return isinstance(status, dict) and status.get("allowed") is True

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> Fields:
        return _document(self._client.request("GET", path, query=query, timeout=_TIMEOUT))

    def _items(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[Fields]:
        for page in pages(self._client, path, _page, query, timeout=_TIMEOUT):
            yield from page.items


@dataclass(frozen=True, slots=True)
class _ListPage:
    items: Sequence[Fields]
    continue_token: str


def _page(body: bytes) -> _ListPage:
    page = _document(body)
    if not str(page.get("kind")).endswith("List") or "items" not in page:
        raise MessageError("the answer is no list")
    metadata = page.get("metadata")
    more = str(metadata.get("continue") or "") if isinstance(metadata, dict) else ""
    return _ListPage([item for item in page["items"] or () if isinstance(item, dict)], more)


def _document(body: bytes) -> Fields:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MessageError("the answer is no JSON") from error
    if not isinstance(document, dict):
        raise MessageError("the answer is no JSON object")
    return document


def _read_or_unread(
    reader: Callable[[], _T],
    subject: str,
    todo: str,
    level: Any = "fail",  # noqa: ANN401 -- Level, which a default cannot narrow to
) -> _T | facts.Unread:
    try:
        return reader()
    except (ApiError, WireError) as error:
        return facts.Unread(
            f"{subject} cannot be read: {' '.join(str(error).split())}", todo, level
        )


def facts_without(api: facts.Unread, now: float, reason: str) -> facts.Facts:
    """Return the facts if the API server cannot be read."""
    off = facts.Unread(reason, "", "skip")
    return facts.Facts(now, api, off, off, off, off, off)


def read_extender(url: str) -> facts.ExtenderAnswers | facts.Unread:
    """Return the health listener's answers."""
    try:
        live, _, _ = _http_get(f"{url}/livez")
        ready, text, ahead = _http_get(f"{url}/readyz?verbose")
        _, metrics, _ = _http_get(f"{url}/metrics")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return facts.Unread(
            f"{url} does not answer: {_error_text(error)}",
            "look whether the extender runs, and give its --health-listen (by default port 32767)",
        )
    return facts.ExtenderAnswers(live, ready, text, ahead, read_samples(metrics))


def read_route(entry: ExtenderConfig, extender: str) -> int | facts.Unread | None:
    """Return the status of a GET of the filter verb on the machine that --extender names.

    None if the entry names another machine, or https, which requires a client certificate.
    """
    place = endpoint(entry)
    asked_host = urlsplit(extender).hostname or ""
    is_local = place.loopback and replace(place, host=asked_host).loopback
    if place.https or not (is_local or asked_host == place.host):
        return None
    url = f"http://{place.listen}{place.path}/{entry.filter_verb}"
    try:
        return _http_get(url)[0]
    except (OSError, http.client.HTTPException, ValueError) as error:
        return facts.Unread(
            f"{url} does not answer: {_error_text(error)}",
            "start the extender with the same file, or correct urlPrefix; all is well if"
            " kube-scheduler runs on another machine and --extender was forwarded to here",
            "warn",
        )


def _http_get(url: str) -> tuple[int, str, float | None]:
    """Return (status, text, seconds that the server's clock is ahead of ours)."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path)
        answer = connection.getresponse()
        text = answer.read(_LARGEST).decode("utf-8", "replace")
        try:
            date = parsedate_to_datetime(answer.getheader("Date") or "").timestamp()
            ahead = date - time.time()
        except (ValueError, TypeError):
            ahead = None
        return answer.status, text, ahead
    finally:
        connection.close()


def _error_text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
