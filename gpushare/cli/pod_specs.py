"""What `gpushare whatif` is asked: pods as words, as manifests and as rows of a table.

Knows the grammar of the words, the kinds that make pods, and units of memory; not what is made of
it. Every wrong word is a SettingsError that says what to write.

Tested in `tests/unit/cli/test_whatif.py`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from gpushare.cli.claims import Claims, no_claims
from gpushare.cli.facts import mapping
from gpushare.cli.listed_cluster import ListedCards, ListedResource, Priorities
from gpushare.core.amounts import compute
from gpushare.core.model import ALL_CORES, HOST_BOUND, MAX_UNITS, Request
from gpushare.core.node_filters import CPU
from gpushare.errors import MessageError, QuantityError, SettingsError, WireError
from gpushare.explain.claim_pods import ClaimsUser, user_of, wanted_of
from gpushare.explain.placer import PodBatch
from gpushare.explain.text import NO_UNIT
from gpushare.trace.nodes_and_pods import read_pods, request_of
from gpushare.wire.annotations import MAX_DEVICES_PER_POD, Names
from gpushare.wire.demands import demands_of
from gpushare.wire.dra.objects import (
    CLAIM_TEMPLATES,
    CLAIMS_PODS,
    CLASS,
    RESOURCE_CLAIMS,
    ClaimsPod,
)
from gpushare.wire.inventory import units_of
from gpushare.wire.pods import request_among
from gpushare.wire.quantity import to_bytes, to_milli
from gpushare.yamlfile import MAX_BYTES, read_documents, read_text

_PODS = re.compile(
    r"(\d{1,9})\s*(GiB|MiB)?(?:\s*\+\s*(\d{1,3})\s*%)?(?:\s+on\s+(\d{1,3}))?(?:\s*x\s*(\d{1,6}))?"
)
_TEMPLATED = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "ReplicationController", "Job"})


_NO_CLASSES = Priorities()


class PodReader:
    """Reads which pods are wanted, from words and from files.

    books: those that words and tables are of. every: the managed resources, the one of the books by
    annotation first. claims: those that manifests may name. priority: of pods in words and tables.
    priorities: returns those of PriorityClasses, for manifests.
    """

    def __init__(
        self,
        books: ListedResource,
        every: Sequence[Names],
        claims: Claims,
        priority: int,
        priorities: Callable[[], Priorities],
    ) -> None:
        self._books = books
        self._every = every
        self._claims = claims
        self._priority = priority
        self._priorities = cache(priorities)

    def wanted(self, flag: str, word: str) -> tuple[list[PodBatch], list[PodBatch]]:
        """Return the pods of one --pods or --gang: those by annotation, and those by claims."""
        unit, resource = self._books.unit, self._books.names.resource
        pods = pods_of_words(word, unit, resource, self._priority)
        if pods is not None:
            if flag == "--gang" and pods.count is None:
                text = f"{word!r}: how many at once? write '{word.strip()} x 3'"
                raise SettingsError(f"--gang: {text}")
            return self._of_books([pods], f"{flag}: {word!r}")
        path = Path(word)
        if word != "-" and not path.exists():
            raise SettingsError(
                f"{flag}: {word!r} is no file, nor is it as '8GiB x 3' (see --help)"
            )
        # A table of pods, as `gpushare simulate` reads it: by its name or, of JSON, as a list.
        is_table = bool({".csv", ".xz", ".gz"} & set(path.suffixes))
        if path.suffix == ".json" and not is_table:
            is_table = read_text(str(path), MAX_BYTES).lstrip()[:1] == "["
        if is_table:
            rows = []
            for pod in read_pods(path):
                request = request_of(pod)
                if request.percents:
                    _check_no_claims(resource, f"{path}: {pod.name}")
                request = replace(request, resources=_resources(request, resource))
                rows.append(PodBatch(pod.name, request, 1, priority=self._priority))
            return self._of_books(rows, word)
        documents = read_documents(word)
        specs = pods_of_documents(documents, word, self._every, self._priorities(), self._claims)
        return specs.pods, wanted_of(specs.users, self._claims.books.unit)

    def _of_books(self, pods: list[PodBatch], where: str) -> tuple[list[PodBatch], list[PodBatch]]:
        if not isinstance(self._books, ListedCards):
            return pods, []
        try:
            return [], [self._claims.in_words(each) for each in pods]
        except MessageError as error:
            raise SettingsError(f"{where}: {error}") from error


def pods_of_words(text: str, unit: str, resource: str, priority: int = 0) -> PodBatch | None:
    """Return the pods of words like `8GiB`, `8GiB x 3` or `8GiB + 30% on 2 x 3` (8 GiB and 30 % of
    the compute on each of two devices); None if these are no such words, but may name a file.

    resource: the one that they ask for; the class of claims: each asks by one claim.
    """
    match = _PODS.fullmatch(text.strip())
    if match is None:
        return None
    size, size_unit, percent, devices, count = match.groups()
    request = Request(units_of_words(int(size), size_unit, unit, text), int(devices or 1))
    if not 0 < request.devices <= MAX_DEVICES_PER_POD:
        raise SettingsError(f"{text!r}: a pod may have from 1 to {MAX_DEVICES_PER_POD} devices")
    request = replace(request, containers=((0, request.total),))
    if percent is not None:
        _check_no_claims(resource, text)
        if not 0 < int(percent) <= ALL_CORES:
            raise SettingsError(f"{text!r}: a device gives from 1% to {ALL_CORES}% of its compute")
        percents = compute(int(percent))
        request = replace(
            request,
            percents=percents,
            percent_containers=tuple(
                ((0, part * request.devices),) if part else () for part in percents
            ),
        )
    request = replace(request, resources=_resources(request, resource))
    number = int(count) if count else None
    return PodBatch(" ".join(text.split()), request, number, priority=priority)


@dataclass(frozen=True)
class Specs:
    """The pods of manifests, by annotation and by claims."""

    pods: list[PodBatch] = field(default_factory=list)
    users: list[ClaimsUser] = field(default_factory=list)


def pods_of_documents(
    documents: Sequence[object],
    where: str,
    every: Sequence[Names],
    priorities: Priorities = _NO_CLASSES,
    claims: Claims | None = None,
) -> Specs:
    """Return the pods of manifests, as a YAML file has them, which may have claims and templates.

    every: the managed resources, of which pods by annotation must ask for the first. Raises
    SettingsError that begins with `where`.
    """
    claims = claims or no_claims("there is no cluster")
    specs = Specs()
    items = [
        (item, f"{where}: document {number}")
        for number, document in enumerate(documents, 1)
        for item in _items(document, f"{where}: document {number}")
    ]
    pods = []
    for item, at in items:
        kind, metadata = item.get("kind"), mapping(item.get("metadata"))
        if kind not in ("ResourceClaim", "ResourceClaimTemplate"):
            pods.append((item, at))
            continue
        name = str(metadata.get("name") or "")[:253]
        namespace = str(metadata.get("namespace") or claims.namespace())
        body = json.dumps(item, default=str).encode()
        try:
            if kind == "ResourceClaim":
                # One that the cluster has stays as it is there.
                claims.claims.setdefault((namespace, name), RESOURCE_CLAIMS.decode(body))
            else:
                claims.templates[namespace, name] = CLAIM_TEMPLATES.decode(body).claim()
        except WireError as error:
            raise SettingsError(f"{at}: {kind} {name}: {error}") from error
    for item, at in pods:
        pod = _wanted(item, at, every, priorities, claims)
        if isinstance(pod, PodBatch):
            specs.pods.append(pod)
        else:
            specs.users.append(pod)
    if not pods:
        raise SettingsError(f"{where}: has no pods")
    return specs


def units_of_words(size: int, size_unit: str | None, unit: str, text: str) -> int:
    """Return the size in units of the cluster. size_unit None: it is in these already."""
    amount: int | None = size if size <= MAX_UNITS else None
    if size_unit is not None:
        if unit == NO_UNIT:
            raise SettingsError(
                f"{text!r}: the file of nodes counts in units of its own: leave out {size_unit}, or"
                " say --unit"
            )
        amount = units_of(size, size_unit, unit)
    if not amount:
        raise SettingsError(f"{text!r}: {size}{size_unit or ''} is no number of units of {unit}")
    return amount


def values_of_words(parts: Iterable[str], known: Sequence[str], wrong: str) -> dict[str, str]:
    """Return the values of words like `cpu=8`, by key. wrong: how an error begins.

    Raises SettingsError for a key that is not known, has no value, or stands twice.
    """
    pairs = [part.strip().partition("=")[::2] for part in parts]
    unknown = next((key for key, value in pairs if key not in known or not value), None)
    if unknown is not None or len(dict(pairs)) < len(pairs):
        mistake = f"{unknown!r:.42} is not" if unknown is not None else "has something twice; write"
        raise SettingsError(f"{wrong}: {mistake} one of {', '.join(f'{key}=...' for key in known)}")
    return dict(pairs)


def host_amount(
    key: str, values: Mapping[str, str], wrong: str, *, least: int, of: str
) -> int | None:
    """Return the CPU or the memory that words say, None if they do not.

    wrong: how an error begins. of: what may have it, from `least` on.
    """
    if key not in values:
        return None
    try:
        amount = (to_milli if key == CPU else to_bytes)(values[key])
    except QuantityError as error:
        raise SettingsError(f"{wrong}: {key}: {error}") from error
    if not least <= amount < HOST_BOUND:
        raise SettingsError(f"{wrong}: {key}={values[key][:40]} is no amount that {of}")
    return amount


def _items(document: object, where: str) -> Iterator[dict[str, Any]]:
    if document is None:  # between two lines of ---
        return
    if not isinstance(document, dict):
        raise SettingsError(f"{where}: is no object of Kubernetes")
    if str(document.get("kind")).endswith("List"):
        listed = document.get("items")
        yield from (item for element in listed or () for item in _items(element, where))
    else:
        yield document


def _wanted(
    item: dict[str, Any],
    where: str,
    every: Sequence[Names],
    priorities: Priorities,
    claims: Claims,
) -> PodBatch | ClaimsUser:
    kind = str(item.get("kind"))[:80]
    metadata, spec = mapping(item.get("metadata")), mapping(item.get("spec"))
    name = str(metadata.get("name") or metadata.get("generateName") or "")[:253]
    where = f"{where}: {kind} {name}"
    pod: Mapping[str, object] = item
    count = 1
    if kind in _TEMPLATED:
        pod = mapping(spec.get("template"))
        told = spec.get("parallelism" if kind == "Job" else "replicas")
        if told is not None:
            if not isinstance(told, int) or isinstance(told, bool) or not 0 <= told < 10**6:
                raise SettingsError(f"{where}: {told!r} is no number of pods")
            count = told
    elif kind != "Pod":
        raise SettingsError(
            f"{where}: makes no pods that whatif knows: {', '.join(sorted(_TEMPLATED))}, Pod"
        )
    try:
        read = CLAIMS_PODS.decode(json.dumps(pod, default=str).encode())
        asked = request_among(read, every)
    except WireError as error:
        raise SettingsError(f"{where}: {error}") from error
    name, priority = f"{kind.lower()}/{name}", _priority(pod, priorities, where)
    if asked is None and read.spec and read.spec.resource_claims:
        namespace = str(metadata.get("namespace") or claims.namespace())
        user = replace(_user(read, namespace, every[0], claims, where), name=name)
        return replace(user, count=count, priority=priority)
    if asked is None or asked[0] is not every[0]:
        raise SettingsError(f"{where}: asks for no {every[0].resource}, so nothing is known of it")
    return PodBatch(name, asked[1], count, demands_of(read), priority)


def _user(pod: ClaimsPod, namespace: str, names: Names, claims: Claims, where: str) -> ClaimsUser:
    """Return what the pod asks for by claims."""
    if claims.why_not:
        raise SettingsError(
            f"{where}: asks by claims, which do not count here: {claims.why_not}; say their sizes"
            " in words, such as '8GiB x 3'"
        )
    try:
        user = user_of(pod, names, claims, name="", namespace=namespace)
    except WireError as error:
        raise SettingsError(f"{where}: {error}") from error
    if user is None:
        raise SettingsError(
            f"{where}: asks for no {names.resource}, and by no claim, so nothing is known of it"
        )
    if not user.claims:
        raise SettingsError(f"{where}: all its claims have devices already, so it needs none")
    return user


def _priority(pod: Mapping[str, object], priorities: Priorities, where: str) -> int:
    """Return the priority that the API server would give the pod."""
    spec = mapping(pod.get("spec"))
    name, number = spec.get("priorityClassName"), spec.get("priority")
    if name:
        if str(name) not in priorities.classes:
            raise SettingsError(f"{where}: there is no PriorityClass {str(name)[:253]!r}")
        return priorities.classes[str(name)]
    return number if type(number) is int else priorities.default


def _resources(request: Request, resource: str) -> tuple[tuple[str, int], ...]:
    """Return what kube-scheduler counts of the devices; of claims that is nothing."""
    if resource == CLASS:
        return ()
    amounts = {
        of_amount.resource: percent * request.devices
        for of_amount, percent in zip(
            Names.for_resource(resource).percents, request.percents, strict=False
        )
    }
    amounts[resource] = request.total
    return tuple((name, amount) for name, amount in amounts.items() if amount)


def _check_no_claims(resource: str, text: str) -> None:
    if resource == CLASS:
        raise SettingsError(f"{text!r}: claims ask for memory, and for no part of the compute")
