"""The nodes: which cards each has, how its device plug-in counts them, and what its object says.

A card is a thing, known by its uuid. Its index is where the plug-in counts it: when one dies or
comes back, and after a reboot, others have its index. The node's object says what the plug-in
counts, at once or some time later, and may for a while say less than there is.
"""

import json
from dataclasses import dataclass, field, replace

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
    COUNT,
    INVENTORY,
    MOST_SIZES,
    RESOURCE,
    UNHEALTHY,
    Cards,
    Json,
)

NODE_NAMES = ("n0", "n1", "n2")
LIAR = NODE_NAMES[-1]
"""The node that may say anything of its cards."""

CPU, MEMORY = 8000, 65536
"""Of every node: thousandths of a CPU, MiB."""
_CONFIG_MAPS = find("", "v1", "configmaps")


@dataclass(repr=False)
class Machines:
    """Whoever changes nodes. shapes: how each is when it is well. unsaid: nodes whose plug-in
    counts other cards than the object says.
    """

    server: Server
    oracle: Oracle
    kubelets: Kubelets
    shapes: dict[str, Cards]
    unsaid: set[str] = field(default_factory=set)

    def change(self, chance: Chance) -> str:
        """A node loses or gets devices, memory, health; its plug-in restarts; it goes or comes."""
        name = chance.pick(NODE_NAMES)
        if name not in self.kubelets.cards:
            return self.put(name, self.shapes[name])
        cards, below_result = self._now(name), chance.below(8)
        if below_result == 0:
            return self._remove(name)
        units, healthy = list(cards.units), list(cards.healthy)
        if below_result == 1 and len(units) > 1:
            units.pop()
        elif below_result == 2:
            units = [max(1, unit - 2) for unit in units]
        elif below_result == 3:
            units = []
        elif below_result == 5 and units and cards.plugin == "aliyun":
            units[0] += 1
        elif below_result == 4 and units:
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
        """A card dies or comes back, or two change places in a reboot; it may be said later."""
        several = [name for name in self.kubelets.cards if len(self.shapes[name].ids) > 1]
        if not several:
            return ""
        name = chance.pick(sorted(several))
        slots, whole = list(self.kubelets.slots[name]), self.shapes[name].ids
        lost = [card for card in whole if card not in slots]
        below_result = chance.below(4)
        if lost and below_result in (0, 1):
            card = chance.pick(lost)
            slots.insert(whole.index(card), card)
        elif below_result == 0 and len(slots) > 1:
            first = chance.below(len(slots) - 1)
            slots[first], slots[first + 1] = slots[first + 1], slots[first]
            self.kubelets.reboot(name, chance)
        elif slots:
            slots.pop(0 if below_result == 2 else chance.below(len(slots)))
        self.kubelets.slots[name] = tuple(slots)
        self.unsaid.add(name)
        output = self.put(name, self._now(name)) if chance.below(2) else "not said yet"
        return f"{name} counts {slots}, {output}"

    def say(self, chance: Chance) -> str:
        """An object comes to say what the plug-in counts."""
        return self.put(name, self._now(name)) if (name := self._some_unsaid(chance)) else ""

    def hush(self, chance: Chance) -> str:
        """An object says less of its cards for a while, or more again; uuids may be new to it."""
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
        """One node says of its cards what is not so, is gone for a while, or says the truth."""
        if LIAR not in self.kubelets.cards:
            return self.put(LIAR, self.shapes[LIAR])
        below_result = chance.below(7)
        if below_result == 0:
            return self._remove(LIAR)
        if below_result == 1:
            return self.put(LIAR, self._now(LIAR))
        units = (
            (*range(1, 65),),
            (2**31 - 1,),
            (),
            tuple(1 + at % MOST_SIZES for at in range(64)),
            (7,) * len(self.kubelets.slots[LIAR]),
        )[below_result - 2]
        story = chance.pick("abc")
        ids = tuple(f"GPU-{LIAR}-{story}-{at}" for at in range(len(units)))
        tells = chance.pick(("uuids", "devices"))
        plugin = self.shapes[LIAR].plugin
        cards = Cards(units, (True,) * len(units), False, plugin, ids, tells)
        # What its plug-in counts stays as it is, and what its kubelet has been told.
        write_result = self._write(LIAR, cards)
        self.unsaid.add(LIAR)
        return f"{LIAR} lies: {write_result[:200]}"

    def exchange_plugin(self, chance: Chance) -> str:
        """A device plug-in makes way for another, while pods run: one that guesses, or not."""
        names = [name for name, cards in self.kubelets.cards.items() if cards.plugin != "aliyun"]
        if not names:
            return ""
        name = chance.pick(sorted(names))
        plugin = "own" if self.shapes[name].plugin == "exact" else chance.pick(("own", "exact"))
        tells = "uuids" if plugin == "exact" else self.shapes[name].tells
        self.shapes[name] = replace(self.shapes[name], plugin=plugin, tells=tells)
        return self.put(name, replace(self._now(name), plugin=plugin, tells=tells))

    def calm(self) -> None:
        """All nodes are there, and their objects say what is true."""
        for name in NODE_NAMES:
            if name not in self.kubelets.cards:
                self.put(name, self.shapes[name])
            elif name in self.unsaid or self.kubelets.cards[name].tells in ("totals", "memory"):
                self.put(name, replace(self._now(name), tells=self.shapes[name].tells))

    def put(self, name: str, cards: Cards) -> str:
        """Write the node as its plug-in counts it."""
        self.kubelets.count(name, cards)
        self.unsaid.discard(name)
        return self._write(name, cards)

    def _write(self, name: str, cards: Cards) -> str:
        """Have the node's object say that it has these cards."""
        body: Json = {"metadata": {"name": name}, **_node_body(cards)}
        inventory = _inventory(cards)
        cards = _as_advertised(cards)
        if cards.tells in ("uuids", "devices"):
            body["metadata"] = {"name": name, "annotations": {INVENTORY: inventory}}
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
        """The node's cards as its plug-in counts them."""
        message, whole = self.kubelets.cards[name], self.shapes[name]
        slots = self.kubelets.slots[name]
        if slots == message.ids and message.tells in ("uuids", "devices"):
            return message
        size = dict(zip(whole.ids, whole.units, strict=True))
        units = tuple(size[card] for card in slots)
        healthy = (True,) * len(slots)
        return Cards(units, healthy, False, message.plugin, slots, whole.tells)


def first_shapes(chance: Chance) -> dict[str, Cards]:
    """How the nodes of a story are when they are well."""
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
    """What can be known of the devices: without an inventory there are a total and a count.

    Of an inventory with too many sizes nothing is known.
    """
    if len({*cards.units}) > MOST_SIZES:
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


def _changed(held: Json, body: Json) -> Json:
    annotations = body["metadata"].get("annotations")
    return with_metadata({**held, "status": body["status"]}, annotations=annotations)
