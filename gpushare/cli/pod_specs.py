"""Read the pods of `gpushare whatif` from words, manifests and tables.

Knows the grammar of the words, units of memory, the pods of a DaemonSet, and where pod templates
stand in an object. An object of any kind is read: wherever a list `containers` is, there is the
spec of a pod. Each number of copies on the way to the spec (`replicas`, `parallelism`,
`numOfHosts`) multiplies the pods. Two kinds need more: a LeaderWorkerSet counts the leader among
`size`, and an InferenceService of KServe has the containers of a predictor under names such as
`model`. A SettingsError names a wrong word and a correct one.

Tested in `tests/unit/cli/test_whatif.py` and `tests/unit/cli/test_pod_templates.py`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from gpushare.cli.claims import Claims
from gpushare.cli.facts import Fields, elements, mapping, text
from gpushare.cli.listed_cluster import ListedCards, ListedResource, Priorities
from gpushare.core.amounts import compute
from gpushare.core.model import ALL_CORES, HOST_BOUND, MAX_UNITS, Request
from gpushare.core.node_filters import CORDON, CPU, NodeState
from gpushare.core.selectors import (
    Demands,
    NodeSelectorTerm,
    Requirement,
    Toleration,
    untolerated,
)
from gpushare.errors import MessageError, QuantityError, SettingsError, WireError
from gpushare.explain.claim_pods import ClaimsUser, user_of, wanted_of
from gpushare.explain.placer import PodBatch
from gpushare.explain.text import NO_UNIT
from gpushare.trace.nodes_and_pods import read_pods, request_of
from gpushare.wire.annotations import MAX_DEVICES_PER_POD, Names
from gpushare.wire.demands import demands_of
from gpushare.wire.dra.objects import CLAIM_TEMPLATES, CLASS, RESOURCE_CLAIMS
from gpushare.wire.inventory import units_of
from gpushare.wire.near_misses import near_miss
from gpushare.wire.objects import PODS, Owner, Pod, own
from gpushare.wire.pods import request_among
from gpushare.wire.quantity import to_bytes, to_milli
from gpushare.wire.request_mistakes import foreign_name, misplaced, resources_of
from gpushare.yamlfile import MAX_BYTES, read_documents, read_text

_MOST_PODS = 10**6
_COMPONENTS = ("predictor", "transformer", "explainer")
"""The parts of an InferenceService that have pods."""
_WRAPPERS = frozenset({"spec", "template", "jobTemplate", "podSpec"})
"""Fields that give a part of an object no name of its own."""
_WITHOUT_PODS = frozenset({"metadata", "status"})


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """Equal pods that an object makes. part: the part of the object that makes them, or ""."""

    part: str
    pod: Fields
    """Metadata and spec."""
    count: int


def pod_templates(item: Fields) -> list[PodTemplate]:
    """Return the pods that an object makes; [] for an object without pods.

    Of a CronJob one run counts, of a DaemonSet one pod. Raises SettingsError for a number of copies
    that is none.
    """
    if item.get("kind") == "Pod":
        return [PodTemplate("", item, 1)]
    if item.get("kind") == "InferenceService":
        components = mapping(item.get("spec"))
        return [
            _of_component(item, name, mapping(components[name]))
            for name in _COMPONENTS
            if name in components
        ]
    return [*_templates(item, "", [])]


def _of_component(item: Fields, name: str, component: Fields) -> PodTemplate:
    """Return the pods of a part of an InferenceService, which has the object's annotations."""
    named = [value for value in component.values() if "resources" in mapping(value)]
    metadata: dict[str, Any] = {}
    for key in ("annotations", "labels"):
        metadata[key] = {
            **mapping(mapping(item.get("metadata")).get(key)),
            **mapping(component.get(key)),
        }
    spec = {**component, "containers": [*elements(component.get("containers")), *named]}
    return PodTemplate(name, {"metadata": metadata, "spec": spec}, _copies([component]))


def _templates(fields: Fields, part: str, above: Sequence[Fields]) -> Iterator[PodTemplate]:
    """Yield the templates in some fields. above: the fields around these."""
    around, spec = [*above, fields], mapping(fields.get("spec"))
    if elements(fields.get("containers")):
        yield PodTemplate(part, {"spec": fields}, _copies(around))
        return
    if elements(spec.get("containers")):
        yield PodTemplate(part, fields, _copies([*around, spec]))
        return
    for key, value in fields.items():
        if key in _WITHOUT_PODS:
            continue
        name = part if key in _WRAPPERS else key
        if isinstance(value, dict):
            workers: list[Fields] = []
            if key == "workerTemplate" and "size" in fields:
                size, leaders = fields["size"], int("leaderTemplate" in fields)
                workers = [{"replicas": size - leaders if type(size) is int else size}]
            yield from _templates(value, name, [*around, *workers])
        for element in map(mapping, elements(value)):
            own_name = text(element.get("name")) or text(element.get("groupName"))
            yield from _templates(element, own_name or name, around)


def _copies(around: Sequence[Fields]) -> int:
    """Return the product of the numbers of copies in these fields."""
    numbers = [number for fields in around for number in _numbers(fields)]
    wrong = [number for number in numbers if type(number) is not int or number < 0]
    if not wrong and (count := prod(int(str(number)) for number in numbers)) < _MOST_PODS:
        return count
    raise SettingsError(f"{(wrong or numbers)[0]!r:.80} is no number of pods")


def _numbers(fields: Mapping[str, object]) -> Iterator[object]:
    if fields.get("replicas") is not None:
        yield fields["replicas"]
    elif fields.get("minReplicas") is not None:  # 0 are as many as there are without requests
        yield fields["minReplicas"] or 1
    number, completions = fields.get("parallelism"), fields.get("completions")
    if isinstance(number, int) and isinstance(completions, int):
        number = min(number, completions)
    if number is not None:
        yield number
    if fields.get("numOfHosts") is not None:
        yield fields["numOfHosts"]


_PODS = re.compile(
    r"(\d{1,9})\s*(GiB|MiB)?(?:\s*\+\s*(\d{1,3})\s*%)?(?:\s+on\s+(\d{1,3}))?(?:\s*x\s*(\d{1,6}))?"
)
_OF_DAEMONS = (
    Toleration("node.kubernetes.io/not-ready", "Exists", "", "NoExecute"),
    Toleration("node.kubernetes.io/unreachable", "Exists", "", "NoExecute"),
    Toleration(CORDON.key, "Exists", "", CORDON.effect),
)
"""Tolerations that the DaemonSet controller adds to each pod (pkg/controller/daemon/util)."""


@dataclass
class PodReader:
    """Reads pods from words and files."""

    books: ListedResource
    """For words and tables."""
    manifests: "ManifestReader"
    claims: Claims
    """For words."""
    priority: int
    """Of pods in words and tables."""
    demands: Demands
    """Of pods in words and tables."""
    has_words: bool = False
    """Whether pods in words or of tables were read."""

    def wanted(self, flag: str, word: str) -> tuple[list[PodBatch], list[PodBatch]]:
        """Return the pods of one --pods or --gang: (by annotation, by claims)."""
        unit, resource = self.books.unit, self.books.names.resource
        pods = pods_of_words(word, unit, resource, self.priority)
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
        # A table of pods for `gpushare simulate`, by its suffix or as a JSON list.
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
                rows.append(PodBatch(pod.name, request, 1, priority=self.priority))
            return self._of_books(rows, word)
        batches, users = self.manifests.pods(read_documents(word), word)
        return batches, wanted_of(users, self.claims.books.unit)

    def _of_books(self, pods: list[PodBatch], source: str) -> tuple[list[PodBatch], list[PodBatch]]:
        self.has_words = True
        pods = [replace(batch, demands=self.demands) for batch in pods]
        if not isinstance(self.books, ListedCards):
            return pods, []
        try:
            return [], [self.claims.in_words(batch) for batch in pods]
        except MessageError as error:
            raise SettingsError(f"{source}: {error}") from error


def pods_of_words(text: str, unit: str, resource: str, priority: int = 0) -> PodBatch | None:
    """Return the pods of words like `8GiB`, `8GiB x 3` or `8GiB + 30% on 2 x 3` (8 GiB and 30 % of
    the compute on each of two devices); None for other words, which may name a file.

    resource: of the request; the class of claims for one claim a pod.
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


@dataclass
class ManifestReader:
    """Reads the pods of manifests."""

    names: Sequence[Names]
    """Of the managed resources; pods by annotation must ask for the first."""
    priorities: Callable[[], Priorities]
    claims: Claims
    """Claims and templates of the manifests are added."""
    nodes: Sequence[NodeState] = ()
    """For the pods of DaemonSets."""
    workloads: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of existing pods by (namespace, KIND/NAME)."""
    warnings: list[str] = field(default_factory=list)
    """Objects without pods that count, and remarks on pods that count."""

    def pods(
        self, documents: Iterable[object], source: str
    ) -> tuple[list[PodBatch], list[ClaimsUser]]:
        """Return (pods by annotation, pods by claims).

        Raises SettingsError that begins with `source`, also if no pod asks for devices.
        """
        items = [
            (item, f"{source}: document {number}")
            for number, document in enumerate(documents, 1)
            for item in _items(document, f"{source}: document {number}")
        ]
        pods = []
        for item, at in items:
            kind, metadata = item.get("kind"), mapping(item.get("metadata"))
            if kind not in ("ResourceClaim", "ResourceClaimTemplate"):
                pods.append((item, at))
                continue
            name = str(metadata.get("name") or "")[:253]
            namespace = str(metadata.get("namespace") or self.claims.namespace())
            body = json.dumps(item, default=str).encode()
            try:
                if kind == "ResourceClaim":
                    # A claim of the cluster wins over a claim of a manifest.
                    self.claims.claims.setdefault((namespace, name), RESOURCE_CLAIMS.decode(body))
                else:
                    self.claims.templates[namespace, name] = CLAIM_TEMPLATES.decode(body).claim()
            except WireError as error:
                raise SettingsError(f"{at}: {kind} {name}: {error}") from error
        batches: list[PodBatch] = []
        users: list[ClaimsUser] = []
        passed_over: list[str] = []
        for item, at in pods:
            wanted = self._wanted(item, at)
            if item.get("kind") == "DaemonSet":
                wanted = [pod for batch in wanted for pod in _of_daemons(batch, self.nodes)]
            own_batches = [pod for pod in wanted if isinstance(pod, PodBatch)]
            self._note_existing(item, own_batches)
            batches += own_batches
            users += [pod for pod in wanted if not isinstance(pod, PodBatch)]
            if not wanted:
                name = str(mapping(item.get("metadata")).get("name") or "")[:253]
                templates = pod_templates(item)
                why_not = "makes no pods"
                if templates:
                    why_not = _without_request(templates, self.names[0])
                passed_over.append(f"{str(item.get('kind'))[:80]} {name} {why_not}")
        text = "; ".join(passed_over)
        if not (batches or users):
            raise SettingsError(f"{source}: has no pods that count{f': {text}' if text else ''}")
        if text:
            self.warnings.append(f"Passed over: {text}")
        return batches, users

    def _wanted(self, item: dict[str, Any], source: str) -> list[PodBatch | ClaimsUser]:
        """Return the pods of an object that ask for devices, a batch for each template.

        Mistakes in requests that count become warnings.
        """
        kind, metadata = str(item.get("kind"))[:80], mapping(item.get("metadata"))
        name = str(metadata.get("name") or metadata.get("generateName") or "")[:253]
        source = f"{source}: {kind} {name}"
        try:
            templates = pod_templates(item)
        except SettingsError as error:
            raise SettingsError(f"{source}: {error}") from error
        wanted: list[PodBatch | ClaimsUser] = []
        for template in templates:
            part = f" {template.part}"[:80] if len(templates) > 1 else ""
            label = f"{kind.lower()}/{name}{part}"
            try:
                decoded = PODS.decode(json.dumps(template.pod, default=str).encode())
                if kind != "Pod":
                    own(decoded, Owner(kind=kind, name=name, uid=label, controller=True))
                match = request_among(decoded, self.names)
            except WireError as error:
                raise SettingsError(f"{source}: {error}") from error
            if match is None and decoded.spec and decoded.spec.resource_claims:
                namespace = str(metadata.get("namespace") or self.claims.namespace())
                user = self._user(decoded, namespace, source)
                if user is not None:
                    priority = self._priority(template.pod, source)
                    wanted.append(
                        replace(user, name=label, count=template.count, priority=priority)
                    )
            elif match is not None and match[0] == 0:
                batch = PodBatch(
                    label,
                    match[1],
                    template.count,
                    demands=demands_of(decoded),
                    priority=self._priority(template.pod, source),
                )
                wanted.append(batch)
                if mistake := misplaced(decoded, batch.request, self.names[0]):
                    self.warnings.append(f"Warning: {label}: {mistake}")
        return wanted

    def _note_existing(self, item: Mapping[str, object], batches: Sequence[PodBatch]) -> None:
        """Warn of an object that has pods in the cluster already, which keep their devices."""
        if batches and self.workloads:
            metadata, kind = mapping(item.get("metadata")), item.get("kind")
            namespace = str(metadata.get("namespace") or self.claims.namespace())
            existing = self.workloads.get((namespace, f"{kind}/{metadata.get('name')}"))
            if existing:
                count = sum(batch.count or 0 for batch in batches)
                self.warnings.append(
                    f"Warning: {kind} {metadata.get('name')} has {existing} pods already, which"
                    f" keep their devices: the answer is about {count} more"
                )

    def _user(self, pod: Pod, namespace: str, source: str) -> ClaimsUser | None:
        """Return the claims of the pod; None for claims of other devices.

        Raises SettingsError for a pod with claims that do not count here.
        """
        if self.claims.why_not:
            raise SettingsError(
                f"{source}: asks by claims, which do not count here: {self.claims.why_not}; say"
                " their sizes in words, such as '8GiB x 3'"
            )
        try:
            user = user_of(pod, self.names[0], self.claims, name="", namespace=namespace)
        except WireError as error:
            raise SettingsError(f"{source}: {error}") from error
        if user is not None and not user.claims:
            raise SettingsError(f"{source}: all its claims have devices already, so it needs none")
        return user

    def _priority(self, pod: Mapping[str, object], source: str) -> int:
        """Return the priority that the API server would give the pod."""
        spec, priorities = mapping(pod.get("spec")), self.priorities()
        name, number = spec.get("priorityClassName"), spec.get("priority")
        if name:
            if str(name) not in priorities.classes:
                raise SettingsError(f"{source}: there is no PriorityClass {str(name)[:253]!r}")
            return priorities.classes[str(name)]
        return number if type(number) is int else priorities.default


def units_of_words(size: int, size_unit: str | None, unit: str, text: str) -> int:
    """Return the size in units of the cluster. size_unit: None for units of the cluster."""
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


def values_of_words(parts: Iterable[str], keys: Sequence[str], wrong: str) -> dict[str, str]:
    """Return the values of words like `cpu=8`, by key. wrong: the start of an error.

    Raises SettingsError for an unknown key, a key without a value, or a repeated key.
    """
    pairs = [part.strip().partition("=")[::2] for part in parts]
    unknown = next((key for key, value in pairs if key not in keys or not value), None)
    if unknown is not None or len(dict(pairs)) < len(pairs):
        mistake = f"{unknown!r:.42} is not" if unknown is not None else "has something twice; write"
        raise SettingsError(f"{wrong}: {mistake} one of {', '.join(f'{key}=...' for key in keys)}")
    return dict(pairs)


def host_amount(
    key: str, values: Mapping[str, str], wrong: str, *, minimum: int, of: str
) -> int | None:
    """Return the CPU in millicores or the memory in bytes; None without the key.

    wrong: the start of an error. of: the end of an error for an amount below the minimum, such as
    "a node has".
    """
    if key not in values:
        return None
    try:
        amount = (to_milli if key == CPU else to_bytes)(values[key])
    except QuantityError as error:
        raise SettingsError(f"{wrong}: {key}: {error}") from error
    if not minimum <= amount < HOST_BOUND:
        raise SettingsError(f"{wrong}: {key}={values[key][:40]} is no amount that {of}")
    return amount


def _items(document: object, source: str) -> Iterator[dict[str, Any]]:
    if document is None:  # between two lines of ---
        return
    if not isinstance(document, dict):
        raise SettingsError(f"{source}: is no object of Kubernetes")
    if str(document.get("kind")).endswith("List"):
        elements = document.get("items")
        yield from (item for element in elements or () for item in _items(element, source))
    else:
        yield document


def _without_request(templates: Iterable[PodTemplate], names: Names) -> str:
    """Return that pods ask for nothing that counts, with names of resources that are mistakes."""
    text = f"asks for no {names.resource}, and by no claim"
    for template in templates:
        pod = PODS.decode(json.dumps(template.pod, default=str).encode())
        annotations = (pod.metadata and pod.metadata.annotations) or {}
        resources = resources_of(pod)
        mistake = near_miss(resources, annotations, names)
        if mistake := mistake or foreign_name(resources, annotations, names):
            return f"{text} ({mistake})"
    return text


def _of_daemons(
    batch: PodBatch | ClaimsUser, nodes: Iterable[NodeState]
) -> Iterator[PodBatch | ClaimsUser]:
    """Yield the pods of a DaemonSet: one for each node that the demands allow, and for that node.

    The controller looks at selectors and taints, and not at amounts.
    """
    tolerations = (*batch.demands.tolerations, *_OF_DAEMONS)
    for node in nodes:
        is_selected = batch.demands.selects(node.name, node.labels)
        if is_selected and untolerated(node.taints, tolerations) is None:
            only = NodeSelectorTerm(fields=(Requirement("metadata.name", "In", (node.name,)),))
            demands = replace(batch.demands, terms=(only,), tolerations=tolerations)
            yield replace(batch, name=f"{batch.name} on {node.name}", demands=demands)


def _resources(request: Request, resource: str) -> tuple[tuple[str, int], ...]:
    """Return the extended resources that kube-scheduler counts; none for claims."""
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
