"""Build the plans of `gpushare whatif` from words: pods and groups to add, nodes to add and remove.

There is a plan for nodes that share by annotation, and one for the cards of a DRA driver: a node
has one mode, so each plan gets its own answer. A shape is `8x80GiB`, with amounts after commas, or
the name of an existing node. A SettingsError names a wrong word and a correct one.

Tested in `tests/unit/cli/test_whatif.py`, `tests/unit/cli/test_need.py` and
`tests/unit/cli/test_whatif_claims.py`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from gpushare.cli.listed_cluster import ListedCards, ListedResource
from gpushare.cli.pod_specs import host_amount, units_of_words, values_of_words
from gpushare.core.model import NodeSpec
from gpushare.core.node_filters import CPU, MEMORY, NodeState
from gpushare.core.selectors import HARD_EFFECTS, Demands, Taint, Toleration
from gpushare.errors import SettingsError
from gpushare.explain.placer import PodBatch
from gpushare.explain.whatif import OF_CONTROLLERS, Shape, bare, new_names, state_like
from gpushare.wire.gpu_models import label_value
from gpushare.wire.inventory import MAX_DEVICES
from gpushare.wire.nodes import SHAPE

_ADDED = re.compile(r"(\d{1,4}):(.+)")
_TOLERATION = re.compile(r"([^=:\s]+)(?:=([^=:\s]*))?(?::(NoSchedule|NoExecute))?")
_OF_AKS = Taint("sku", "gpu", "NoSchedule")
"""The taint of GPU nodes in the guides of AKS; other clouds name the taint after the resource."""
_SHAPE_KEYS = ("cpu", "memory", "model")

_SHOWN = 82
"""The most characters of a wrong word in an error, with quotes and escapes."""
_MOST_SHAPES = 6
"""The most shapes of a cluster without --shape; an answer with more takes minutes."""


@dataclass
class ResourcePlan:
    """The question about one resource: pods and groups that come, nodes that go and come."""

    books: ListedResource
    pods: list[PodBatch] = field(default_factory=list)
    gangs: list[list[PodBatch]] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    added: list[NodeSpec] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    """Shapes of possible new nodes; []: the shapes of existing nodes."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Why kube-scheduler's filters keep all pods out, by node name."""
    tolerated: tuple[Taint, ...] = ()
    """Taints of nodes that pods in words tolerate."""


class Plans:
    """The plan of nodes by annotation, and the plan of a DRA driver's cards if there are any.

    claims_first: pods and shapes in words are of the cards.
    """

    def __init__(
        self, host: ListedResource, cards: ListedCards | None, *, claims_first: bool
    ) -> None:
        self.host = ResourcePlan(host)
        self.cards = ResourcePlan(cards) if cards is not None else None
        self.first = self.cards if claims_first and self.cards is not None else self.host
        names = {*host.ledger.entries_and_specs()[1]}
        self._new = new_names(names | ({*cards.ledger.entries_and_specs()[1]} if cards else set()))

    @property
    def every(self) -> list[ResourcePlan]:
        """All plans, the plan of pods and shapes in words first."""
        plans = [plan for plan in (self.host, self.cards) if plan is not None]
        return sorted(plans, key=lambda plan: plan is not self.first)

    def nodes(self) -> list[NodeState]:
        """Return the nodes that are there after the change."""
        books, names = self.host.books, [spec.name for spec in self.host.added]
        names += [
            name for name in books.ledger.entries_and_specs()[1] if name not in self.host.without
        ]
        return [books.states[name] for name in sorted(names)]

    def of_node(self, shape: str) -> ResourcePlan:
        """Return the plan of the existing node that a shape names, or the first plan."""
        name = shape.partition(",")[0].strip()
        for plan in (self.cards, self.host):
            if plan is not None and plan.books.ledger.has_node(name):
                return plan
        return self.first

    def change_nodes(self, without: Sequence[str], add: Sequence[str]) -> None:
        """Plan the nodes that go and come. Raises SettingsError for a wrong word."""
        for name in without:
            plan = self.of_node(name)
            plan.without.append(name)
            if plan is not self.host and self.host.books.ledger.serves(name):
                self.host.without.append(name)
        for word in add:
            plan = self.of_node(word.partition(":")[2])
            for spec, state in nodes_added([word], plan.books, self._new):
                plan.books.states.put(state)
                plan.added.append(spec)
                if isinstance(plan.books, ListedCards):
                    plan.books.like[spec.name] = word.partition(":")[2].strip()

    def leave_out(self, tolerated: Collection[Taint]) -> None:
        """Say which nodes kube-scheduler leaves out. tolerated: taints that pods tolerate."""
        for plan in self.every:
            specs = plan.books.ledger.entries_and_specs()[1]
            labels = {
                name: plan.books.left_out(spec, tolerated)
                for name, spec in sorted(specs.items())
                if spec.capacity and name not in plan.without
            }
            plan.tolerated = tuple(tolerated)
            plan.left_out = {name: label for name, label in labels.items() if label}

    def may_come(self, words: Sequence[str]) -> None:
        """Add the shapes of possible new nodes. Raises SettingsError for a wrong word."""
        for word in words:
            plan = self.of_node(word)
            plan.shapes.append(shape_of_words(word, "--shape", plan.books))

    def add_pods(self, pods: tuple[list[PodBatch], list[PodBatch]]) -> None:
        """Add pods that come. pods: by annotation, and by claims."""
        for plan, batches in self._by_plan(pods):
            plan.pods += batches

    def add_gang(self, pods: tuple[list[PodBatch], list[PodBatch]], word: str) -> None:
        """Add a group that comes. Raises SettingsError for a group of both kinds of pods."""
        if all(pods):
            raise SettingsError(
                f"--gang: {word!r}: some pods ask by annotation and some by claims, and nothing"
                " starts them at once: say them as two groups"
            )
        for plan, batches in self._by_plan(pods):
            plan.gangs.append(batches)

    def _by_plan(
        self, pods: tuple[list[PodBatch], list[PodBatch]]
    ) -> list[tuple[ResourcePlan, list[PodBatch]]]:
        pairs = zip((self.host, self.cards), pods, strict=True)
        return [(plan, batches) for plan, batches in pairs if plan is not None and batches]


def tolerated_taints(books: ListedResource, words: Sequence[str]) -> tuple[Taint, ...]:
    """Return the taints of nodes with devices that pods in words tolerate.

    words: `none`, `all`, or KEY[=VALUE][:EFFECT]. Without words these are the taints that clouds
    put on GPU nodes, and those that running pods with devices tolerate by name. A taint of the
    state of a node, such as a cordon, never counts. Raises SettingsError for a word that fits none.
    """
    taints = sorted(
        {
            taint
            for name, spec in books.ledger.entries_and_specs()[1].items()
            if spec.capacity and name in books.states
            for taint in books.states[name].taints
            if taint.effect in HARD_EFFECTS and not taint.key.startswith(OF_CONTROLLERS)
        },
        key=str,
    )
    if words:
        if {"none", "all"} & set(words):
            if len(words) > 1:
                raise SettingsError("--tolerate: none and all go alone")
            return tuple(taints) if words[0] == "all" else ()
        tolerations = [_toleration(word) for word in words]
        for word, toleration in zip(words, tolerations, strict=True):
            if not any(map(toleration.tolerates, taints)):
                others = ", ".join(map(str, taints)) or "none"
                wrong = f"--tolerate: {word!r:.{_SHOWN}}: no node with devices has such a taint"
                raise SettingsError(f"{wrong}; their taints: {others}")
    else:
        tolerations = [
            toleration
            for demands in {pod.demands for pods in books.current_pods.on.values() for pod in pods}
            for toleration in demands.tolerations
            if toleration.key
        ]
        own_names = (books.names.resource, books.names.count)
        tolerations += [
            Toleration(taint.key, "Exists")
            for taint in taints
            if taint.key.endswith("/gpu") or taint.key in own_names or taint == _OF_AKS
        ]
    return tuple(
        taint for taint in taints if any(toleration.tolerates(taint) for toleration in tolerations)
    )


def _toleration(word: str) -> Toleration:
    match = _TOLERATION.fullmatch(word.strip())
    if match is None:
        raise SettingsError(f"--tolerate: {word!r:.{_SHOWN}} is not KEY[=VALUE][:EFFECT]")
    key, value, effect = match.groups()
    return Toleration(key, "Exists" if value is None else "Equal", value or "", effect or "")


def shape_of_words(text: str, flag: str, books: ListedResource) -> Shape:
    """Return the shape that `8x80GiB,cpu=96,memory=768Gi,model=A100` or an existing node names.

    flag: the option, for errors. Raises SettingsError for words that name no shape.
    """
    first, *parts = text.split(",")
    first = first.strip()
    wrong = f"{flag}: {text!r:.{_SHOWN}}"
    if books.ledger.has_node(first):
        if parts:
            raise SettingsError(f"{wrong}: nothing goes after the name of a node")
        return shape_like(first, books)
    more = values_of_words(parts, _SHAPE_KEYS, wrong)
    words = SHAPE.fullmatch(first)
    if isinstance(books, ListedCards):
        raise SettingsError(
            f"{wrong}: nodes for claims are named by a node with the same devices, as 3:gpu-a"
        )
    if words is None:
        raise SettingsError(
            f"{wrong}: there is no node {first!r:.{_SHOWN // 2}}, nor is it as 8x80GiB"
        )
    devices, size = int(words[1]), units_of_words(int(words[2]), words[3], books.unit, first)
    if not 0 < devices <= MAX_DEVICES:
        raise SettingsError(f"{wrong}: a node has from 1 to {MAX_DEVICES} devices")
    model = label_value(more.get("model", ""))
    spec = NodeSpec(
        "",
        (size,) * devices,
        (True,) * devices,
        (model,) * devices,
        ("",) * devices,
        cpu=host_amount(CPU, more, wrong, minimum=1, of="a node has"),
        memory=host_amount(MEMORY, more, wrong, minimum=1, of="a node has"),
    )
    name = ",".join([first, *(f"{key}={more[key]}" for key in _SHAPE_KEYS if key in more)])
    return Shape(name, spec)


def shape_like(node: str, books: ListedResource) -> Shape:
    """Return the shape of an existing node, less the amounts of its DaemonSet pods."""
    spec, state = books.ledger.entries_and_specs()[1][node], books.states.get(node)
    daemon_amounts = books.daemons.get(node, Counter[str]())
    cpu = None if spec.cpu is None else max(spec.cpu - daemon_amounts[CPU], 0)
    memory = None if spec.memory is None else max(spec.memory - daemon_amounts[MEMORY], 0)
    if state is not None and state.allocatable is not None:
        allocatable = {
            name: max(units - daemon_amounts[name], 0) for name, units in state.allocatable.items()
        }
        state = replace(state, allocatable=allocatable)
    return Shape(f"like {node}", replace(bare(spec), name="", cpu=cpu, memory=memory), state)


def nodes_added(
    words: Iterable[str], books: ListedResource, names: Iterator[str]
) -> Iterator[tuple[NodeSpec, NodeState]]:
    """Yield the nodes of each word N:SHAPE. names: of the nodes."""
    for text in words:
        match = _ADDED.fullmatch(text.strip())
        if match is None or not int(match[1]):
            raise SettingsError(
                f"--add: {text!r:.{_SHOWN}} is not N:8x80GiB, or N:NODE for nodes like that one"
            )
        shape = shape_of_words(match[2], "--add", books)
        for name in islice(names, int(match[1])):
            yield shape.node(name, books.names.resource)


def shapes_of_cluster(books: ListedResource, demands: Iterable[Demands]) -> list[Shape]:
    """Return the shapes of the nodes, the commonest first; a note tells of left-out shapes.

    Nodes have one shape if they are alike for pods with these demands: in devices, models, CPU,
    memory, taints, and the labels of these demands.
    """
    keys = set[str]()
    for pod_demands in demands:
        keys.update(key for key, _ in pod_demands.node_selector)
        keys.update(label.key for term in pod_demands.terms or () for label in term.labels)
    alike: defaultdict[object, list[str]] = defaultdict(list)
    for name, spec in sorted(books.ledger.entries_and_specs()[1].items()):
        if not any(spec.capacity):
            continue
        look: tuple[object, ...] = (spec.capacity, spec.models, spec.cpu)
        look += ((spec.memory or 0) >> 30,)
        if state := books.states.get(name):
            like = state_like(spec, state, books.names.resource)
            labels = tuple((key, (like.labels or {}).get(key)) for key in sorted(keys))
            look += (frozenset(like.taints), labels)
        alike[look].append(name)
    groups = sorted(alike.values(), key=lambda names: (-len(names), names[0]))
    if not groups:
        raise SettingsError("no node can be one to be like: say --shape 8x80GiB")
    if len(groups) > _MOST_SHAPES:
        books.notes.append(
            f"{len(groups) - _MOST_SHAPES} rarer shapes of nodes are not looked at: name them by"
            " --shape NODE"
        )
    return [shape_like(names[0], books) for names in groups[:_MOST_SHAPES]]
