"""What `gpushare whatif` is asked, by resource: of nodes that share by annotation, and of the cards
of a DRA driver.

A node is of one mode, so the two are answered one by one.

Tested in `tests/unit/cli/test_whatif_claims.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpushare.cli.listed_claims import ListedCards
from gpushare.cli.listed_cluster import ListedResource
from gpushare.cli.shapes import nodes_added, shape_of_words
from gpushare.core.model import NodeSpec
from gpushare.errors import SettingsError
from gpushare.explain.placer import Wanted
from gpushare.explain.shapes import Shape, new_names


@dataclass
class Plan:
    """What is asked of one resource: pods and groups that come, nodes that go and come.

    left_out: by node what keeps kube-scheduler from it, whoever asks. shapes: of nodes that may
    come; none: like those that are there.
    """

    books: ListedResource
    wanted: list[Wanted] = field(default_factory=list)
    gangs: list[list[Wanted]] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    added: list[NodeSpec] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def is_asked(self) -> bool:
        """Whether anything is."""
        return bool(self.wanted or self.gangs or self.without or self.added or self.shapes)


class Plans:
    """The plan by annotation, and the one of cards, if there are any that count.

    claims_first: what is told in words is of the cards.
    """

    def __init__(
        self, host: ListedResource, cards: ListedCards | None, *, claims_first: bool
    ) -> None:
        self.host = Plan(host)
        self.cards = Plan(cards) if cards is not None else None
        self.first = self.cards if claims_first and self.cards is not None else self.host
        names = {*host.ledger.entries_and_specs()[1]}
        self._new = new_names(names | ({*cards.ledger.entries_and_specs()[1]} if cards else set()))

    @property
    def every(self) -> list[Plan]:
        """All of them, the one that words are of first."""
        others = [plan for plan in (self.host, self.cards) if plan is not None]
        return sorted(others, key=lambda plan: plan is not self.first)

    def of_node(self, name: str) -> Plan:
        """Return the plan of the node; of one that is not there the first plan."""
        for plan in (self.cards, self.host):
            if plan is not None and plan.books.ledger.has_node(name):
                return plan
        return self.first

    def change_nodes(self, without: Sequence[str], add: Sequence[str]) -> None:
        """Say which nodes go, and which come. Raises SettingsError for words that say nothing."""
        for name in without:
            plan = self.of_node(name)
            plan.without.append(name)
            if plan is not self.host and self.host.books.ledger.serves(name):
                self.host.without.append(name)
        for word in add:
            plan = self.of_node(_node_of(word.partition(":")[2]))
            for spec, state in nodes_added([word], plan.books, self._new):
                plan.books.states.put(state)
                plan.added.append(spec)
        for plan in self.every:
            plan.left_out = _left_out(plan.books, plan.without)

    def may_come(self, words: Sequence[str]) -> None:
        """Say of which shapes nodes may come."""
        for word in words:
            plan = self.of_node(_node_of(word))
            plan.shapes.append(shape_of_words(word, "--shape", plan.books))

    def add_pods(self, pods: tuple[list[Wanted], list[Wanted]]) -> None:
        """Take pods that come: those by annotation, and those by claims."""
        for plan, wanted in self._each(pods):
            plan.wanted += wanted

    def add_gang(self, pods: tuple[list[Wanted], list[Wanted]], word: str) -> None:
        """Take a group that comes. Raises SettingsError if it is of both kinds."""
        if all(pods):
            raise SettingsError(
                f"--gang: {word!r}: some pods ask by annotation and some by claims, and nothing"
                " starts them at once: say them as two groups"
            )
        for plan, wanted in self._each(pods):
            plan.gangs.append(wanted)

    def _each(self, pods: tuple[list[Wanted], list[Wanted]]) -> list[tuple[Plan, list[Wanted]]]:
        found = zip((self.host, self.cards), pods, strict=True)
        return [(plan, wanted) for plan, wanted in found if plan is not None and wanted]


def _node_of(shape: str) -> str:
    """Return what is a node if the shape is like one."""
    return shape.partition(",")[0].strip()


def _left_out(books: ListedResource, without: Sequence[str]) -> dict[str, str]:
    specs = books.ledger.entries_and_specs()[1]
    units = {name: sum(spec.capacity) for name, spec in specs.items() if spec.capacity}
    names = (name for name in sorted(units) if name not in without)
    labels = ((name, books.left_out(name, units[name])) for name in names)
    return {name: label for name, label in labels if label}
