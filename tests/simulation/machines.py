"""The nodes: the cards of each, the order of the device plug-in, and the node objects.

A card is identified by uuid. The index is the plug-in's position: when a card dies or
comes back, and after a reboot, other cards have the index. The node object follows the plug-in
counts, at once or some time later, and may for a while say less than there is.
"""

import json
from dataclasses import dataclass, field, replace
from random import Random

from gpushare_localcluster.api.deletion import DeleteOptions
from gpushare_localcluster.api.objects import with_metadata
from gpushare_localcluster.api.resources import NODES, find
from gpushare_localcluster.api.status import StatusError
from tests.simulation.chance import Chance
from tests.simulation.kubelets import Kubelets
from tests.simulation.oracle import Oracle
from tests.simulation.replica import NAMESPACE as OURS
from tests.simulation.server import Server
from tests.simulation.truth import (
    ANY_SHARERS,
    COUNT,
    INVENTORY,
    MAX_SIZES,
    RESOURCE,
    SHARERS,
    UNHEALTHY,
    Cards,
    Json,
)

NODE_NAMES = ("n0", "n1", "n2")
LIAR = NODE_NAMES[-1]
"""The node that may report anything about cards."""

CPU, MEMORY = 8000, 65536
"""Of every node: thousandths of a CPU, MiB."""
_CONFIG_MAPS = find("", "v1", "configmaps")


@dataclass(repr=False)
class Machines:
    """Changes nodes. shapes: each node in the healthy state. unsaid: nodes whose plug-in
    counts other cards than the object says.
    """

    server: Server
    oracle: Oracle
    kubelets: Kubelets
    shapes: dict[str, Cards]
    unsaid: set[str] = field(default_factory=set)

    def change(self, chance: Chance) -> str:
        """A node loses or gets devices, memory, health; the plug-in restarts; the node goes or
        comes.
        """
        name = chance.pick(NODE_NAMES)
        if name not in self.kubelets.cards:
            return self.put(name, self.shapes[name])
        cards, action = self._now(name), chance.below(8)
        if action == 0:
            return self._remove(name)
        units, healthy = list(cards.units), list(cards.healthy)
        if action == 1 and len(units) > 1:
            units.pop()
        elif action == 2:
            units = [max(1, size - 2) for size in units]
        elif action == 3:
            units = []
        elif action == 5 and units and cards.plugin == "aliyun":
            units[0] += 1
        elif action == 4 and units:
            sick = chance.below(len(units))
            healthy[sick] = not healthy[sick]
        else:
            return self.put(name, self.shapes[name])
        count = len(units)
        ids, healthy = cards.ids[:count], healthy[:count]
        return self.put(name, replace(cards, units=tuple(units), healthy=tuple(healthy), ids=ids))

    def flap(self) -> str:
        """A node goes that is there, or comes back: always the same one."""
        name = NODE_NAMES[0]
        if name in self.kubelets.cards:
            return self._remove(name)
        return self.put(name, self.shapes[name])

    def shake(self, chance: Chance) -> str:
        """A card dies or returns, or two change places in a reboot; the object may change later."""
        several = [name for name in self.kubelets.cards if len(self.shapes[name].ids) > 1]
        if not several:
            return ""
        name = chance.pick(sorted(several))
        slots, whole = list(self.kubelets.slots[name]), self.shapes[name].ids
        lost = [card for card in whole if card not in slots]
        action = chance.below(4)
        if lost and action in (0, 1):
            card = chance.pick(lost)
            slots.insert(whole.index(card), card)
        elif action == 0 and len(slots) > 1:
            first = chance.below(len(slots) - 1)
            slots[first], slots[first + 1] = slots[first + 1], slots[first]
            self.kubelets.reboot(name, chance)
        elif slots:
            slots.pop(0 if action == 2 else chance.below(len(slots)))
        self.kubelets.slots[name] = tuple(slots)
        self.unsaid.add(name)
        text = self.put(name, self._now(name)) if chance.below(2) else "not said yet"
        return f"{name} counts {slots}, {text}"

    def say(self, chance: Chance) -> str:
        """An object catches up with the plug-in."""
        return self.put(name, self._now(name)) if (name := self._some_unsaid(chance)) else ""

    def hush(self, chance: Chance) -> str:
        """An object shows less of the cards for a while, or more again; uuids may be new to it."""
        name = chance.pick(sorted(self.kubelets.cards) or [""])
        if not name:
            return ""
        if self.shapes[name].plugin == "aliyun":
            tells = chance.pick(("memory", "totals", "memory"))
        else:
            tells = chance.pick(("uuids", "totals", "devices", "uuids", "memory"))
        if tells == "uuids":
            self.shapes[name] = replace(self.shapes[name], tells=tells)
        return self.put(name, replace(self._now(name), tells=tells))

    def lie(self, chance: Chance) -> str:
        """One node reports wrong cards, is gone for a while, or reports the truth."""
        if LIAR not in self.kubelets.cards:
            return self.put(LIAR, self.shapes[LIAR])
        action = chance.below(7)
        if action == 0:
            return self._remove(LIAR)
        if action == 1:
            return self.put(LIAR, self._now(LIAR))
        units = (
            (*range(1, 65),),
            (2**31 - 1,),
            (),
            tuple(1 + at % MAX_SIZES for at in range(64)),
            (7,) * len(self.kubelets.slots[LIAR]),
        )[action - 2]
        story = chance.pick("abc")
        ids = tuple(f"GPU-{LIAR}-{story}-{at}" for at in range(len(units)))
        tells = chance.pick(("uuids", "devices"))
        plugin = self.shapes[LIAR].plugin
        sharers = self.shapes[LIAR].sharers
        cards = Cards(units, (True,) * len(units), False, plugin, ids, tells, sharers)
        # The plug-in's order stays, and the amount that the kubelet counts.
        text = self._write(LIAR, cards)
        self.unsaid.add(LIAR)
        return f"{LIAR} lies: {text[:200]}"

    def exchange_plugin(self, chance: Chance) -> str:
        """A device plug-in makes way for another, while pods run: one that guesses, or not."""
        node_names = [
            name for name, cards in self.kubelets.cards.items() if cards.plugin != "aliyun"
        ]
        if not node_names:
            return ""
        name = chance.pick(sorted(node_names))
        plugin = "own" if self.shapes[name].plugin == "exact" else chance.pick(("own", "exact"))
        tells = "uuids" if plugin == "exact" else self.shapes[name].tells
        self.shapes[name] = replace(self.shapes[name], plugin=plugin, tells=tells)
        return self.put(name, replace(self._now(name), plugin=plugin, tells=tells))

    def calm(self) -> None:
        """All nodes exist, and the objects are right."""
        for name in NODE_NAMES:
            if name not in self.kubelets.cards:
                self.put(name, self.shapes[name])
            elif name in self.unsaid or self.kubelets.cards[name].tells in ("totals", "memory"):
                self.put(name, replace(self._now(name), tells=self.shapes[name].tells))

    def put(self, name: str, cards: Cards) -> str:
        """Write the node by the plug-in's order."""
        self.kubelets.count(name, cards)
        self.unsaid.discard(name)
        return self._write(name, cards)

    def _write(self, name: str, cards: Cards) -> str:
        """Write these cards to the node's object."""
        body: Json = {"metadata": {"name": name}, **_node_body(cards)}
        if cards.sharers < ANY_SHARERS:
            body["metadata"]["labels"] = {SHARERS: str(cards.sharers)}
        inventory = _inventory(cards)
        cards = _as_advertised(cards)
        if cards.tells in ("uuids", "devices"):
            body["metadata"]["annotations"] = {INVENTORY: inventory}
        try:
            if name in self.kubelets.cards:
                store = self.server.store
                record = store.update(NODES.table, "", name, lambda held: _changed(held, body))
            else:
                record = self.server.registry.create(NODES, "", body)
        except StatusError as error:
            raise AssertionError(name) from error
        self.oracle.cards[name, record.body["metadata"]["resourceVersion"]] = cards
        self.kubelets.cards[name] = self.oracle.latest[name] = cards
        return f"{name} {cards}"

    def close_devices(self, chance: Chance) -> str:
        """An operator names unhealthy devices in a ConfigMap, not always in a way to be read."""
        assert _CONFIG_MAPS is not None
        name = UNHEALTHY + chance.pick(NODE_NAMES)
        text = chance.pick(("", "0", "1", "0,1", "0,x", " 1 , -"))
        if chance.once_in(4):
            return self._open_devices(name)
        body: Json = {"metadata": {"name": name}, "data": {"gpus": text}}
        registry = self.server.registry
        try:
            registry.revise(_CONFIG_MAPS, OURS, name, lambda held: {**held, "data": body["data"]})
        except StatusError:
            registry.create(_CONFIG_MAPS, OURS, body)
        return f"{name} {text!r}"

    def _open_devices(self, name: str) -> str:
        assert _CONFIG_MAPS is not None
        try:
            self.server.registry.delete(_CONFIG_MAPS, OURS, name, DeleteOptions())
        except StatusError:
            return ""
        return f"{name} deleted"

    def _remove(self, name: str) -> str:
        self.server.store.delete(NODES.table, "", name)
        del self.kubelets.cards[name]
        self.unsaid.discard(name)
        return f"{name} is gone"

    def _some_unsaid(self, chance: Chance) -> str:
        return chance.pick(sorted(self.unsaid)) if self.unsaid else ""

    def _now(self, name: str) -> Cards:
        """The node's cards in the plug-in's order."""
        reported, whole = self.kubelets.cards[name], self.shapes[name]
        slots = self.kubelets.slots[name]
        if slots == reported.ids and reported.tells in ("uuids", "devices"):
            return reported
        size = dict(zip(whole.ids, whole.units, strict=True))
        units = tuple(size[card] for card in slots)
        healthy = (True,) * len(slots)
        return Cards(units, healthy, False, reported.plugin, slots, whole.tells, whole.sharers)


def first_shapes(chance: Chance) -> dict[str, Cards]:
    """The healthy nodes of a story."""
    shapes = {}
    for name in NODE_NAMES[: 1 + chance.below(3)]:
        count = 1 + chance.below(3)
        same = 3 + chance.below(4)
        plugin = chance.pick(("own", "blind", "aliyun", "own"))
        units = tuple(same + (chance.below(3) if plugin != "aliyun" else 0) for _ in range(count))
        shapes[name] = _well(name, units, plugin)
    for name in NODE_NAMES:
        shapes.setdefault(name, _well(name, (4,), "blind"))
    for name, cards in shapes.items():
        if cards.plugin != "aliyun":
            exact = chance.once_in(3) and chance.below(2)
            plugin = "exact" if exact else cards.plugin
            tells = "uuids" if exact else chance.pick(("devices", "uuids", "uuids"))
            shapes[name] = replace(cards, plugin=plugin, tells=tells)
    return shapes


def with_sharers(shapes: dict[str, Cards], chances: Random) -> dict[str, Cards]:
    """The nodes with the most pods of a device, some of them."""
    return {
        name: replace(cards, sharers=chances.choice((1, 2, 3, ANY_SHARERS)))
        for name, cards in shapes.items()
    }


def with_ours(shapes: dict[str, Cards]) -> dict[str, Cards]:
    """The nodes with our own device plug-in; those of the original's stay."""
    return {
        name: cards if cards.plugin == "aliyun" else replace(cards, plugin="exact", tells="uuids")
        for name, cards in shapes.items()
    }


def _well(name: str, units: tuple[int, ...], plugin: str) -> Cards:
    ids = tuple(f"GPU-{name}-{device}" for device in range(len(units)))
    tells = "totals" if plugin == "aliyun" else "devices"
    return Cards(units, (True,) * len(units), False, plugin, ids, tells)


def _as_advertised(cards: Cards) -> Cards:
    """The reported devices: without an inventory only a total and a count.

    Of an inventory with too many sizes nothing is known.
    """
    if len({*cards.units}) > MAX_SIZES:
        return replace(cards, units=(), healthy=(), closed=True, ids=())
    if cards.tells in ("uuids", "devices") or not cards.units:
        return cards
    if cards.tells == "memory":
        return replace(cards, units=(), healthy=(), closed=True, ids=())
    total, count = sum(cards.units), len(cards.units)
    equal, healthy = (total // count,) * count, (True,) * count
    return replace(cards, units=equal, healthy=healthy, closed=bool(total % count))


def _node_body(cards: Cards) -> Json:
    total, count = str(sum(cards.units)), str(len(cards.units))
    amounts = {"cpu": f"{CPU}m", "memory": f"{MEMORY}Mi", RESOURCE: total, COUNT: count}
    if cards.tells == "memory":
        del amounts[COUNT]
    return {"status": {"capacity": amounts, "allocatable": amounts}}


def _inventory(cards: Cards) -> str:
    devices = [
        {"mem": units, "healthy": healthy} | ({"uuid": card} if cards.named else {})
        for units, healthy, card in zip(cards.units, cards.healthy, cards.ids, strict=True)
    ]
    exact = cards.plugin == "exact"
    return json.dumps({"v": 1, "unit": "GiB", "devices": devices, "servesByIdentity": exact})


def _changed(document: Json, body: Json) -> Json:
    annotations = body["metadata"].get("annotations")
    return with_metadata({**document, "status": body["status"]}, annotations=annotations)
