"""Those who make, change and delete pods and nodes: users, operators, other schedulers.

Some of them mean no good: they name nodes and devices in their pods, and edit annotations that are
not theirs. What they do goes straight into the API server; nobody asks them to be consistent.
"""

import json
from dataclasses import dataclass, field, replace

from gpushare.localcluster.api.deletion import DeleteOptions
from gpushare.localcluster.api.objects import with_metadata
from gpushare.localcluster.api.resources import NODES, PODS, find
from gpushare.localcluster.api.status import StatusError
from tests.simulation.chance import Chance
from tests.simulation.kubelets import NAMESPACE, Kubelets
from tests.simulation.oracle import Oracle
from tests.simulation.replica import NAMESPACE as OURS
from tests.simulation.server import Server
from tests.simulation.truth import (
    ALLOCATION,
    ASSIGNED,
    ASSUMED,
    COUNT,
    IDX,
    INVENTORY,
    POD,
    RESOURCE,
    UNHEALTHY,
    Asked,
    Cards,
    Json,
    PodTruth,
)

NODE_NAMES = ("n0", "n1", "n2")
CPU, MEMORY = 8000, 65536
"""Of every node: thousandths of a CPU, MiB."""
_FORGED = ("0", "1", "0,1", "7", "-1", "2147483648", " 0", "x", "")
_CONFIG_MAPS = find("", "v1", "configmaps")


@dataclass(repr=False)
class Users:
    """Everybody who writes to the API server besides us and the kubelets.

    small: pods ask for little. names: those that pods may have, each one at a time.
    """

    server: Server
    oracle: Oracle
    kubelets: Kubelets
    small: bool
    names: tuple[str, ...]
    shapes: dict[str, Cards] = field(default_factory=dict)

    # -- pods -----------------------------------------------------------------------------------

    def alive(self) -> list[PodTruth]:
        """The pods whose objects are there."""
        return [pod for pod in self.oracle.pods.values() if not pod.gone]

    def waiting(self) -> list[PodTruth]:
        """The pods that a scheduler looks at."""
        return [
            pod
            for pod in self.oracle.pods.values()
            if not (pod.node or pod.ended or pod.terminating)
        ]

    def create(self, chance: Chance, forge: bool = False) -> str:
        """Create a pod under a name that is free; recreation is nothing else."""
        taken = {pod.name for pod in self.alive()}
        free = [name for name in self.names if name not in taken]
        if not free:
            return ""
        asked = Asked(0, 0, ()) if chance.once_in(12) else self._asked(chance)
        annotations = {COUNT: str(asked.devices)} if asked.devices > 1 else {}
        node = ""
        if forge:
            annotations |= self._forgery(chance, asked)
            if asked.devices and chance.once_in(3):
                # No number of devices: the pod makes no sense, and holds all it asks for somewhere.
                asked = Asked(asked.total, 1, asked.containers, asked.inits)
                annotations[COUNT] = "x"
            node = chance.pick(("", *NODE_NAMES))
            self.kubelets.forged.add(node)
        name, cpu = chance.pick(free), chance.pick((0, 0, 100, 2000))
        return self._create(name, asked, node, annotations, cpu)

    def bind(self, chance: Chance) -> str:
        """Another scheduler binds a pod, and knows nothing of devices."""
        pods = self.waiting()
        nodes = sorted(self.kubelets.cards)
        if not (pods and nodes):
            return ""
        pod, node = chance.pick(pods), chance.pick(nodes)
        body = {"metadata": {"name": pod.name, "uid": pod.uid}, "target": {"name": node}}
        try:
            self.server.registry.bind(NAMESPACE, pod.name, body)
        except StatusError:
            return ""
        return f"{pod.name} ({pod.uid}) to {node}"

    def delete(self, chance: Chance, grace: int | None) -> str:
        """Delete a pod; with no grace it is gone at once."""
        pods = self.alive()
        if not pods:
            return ""
        pod = chance.pick(pods)
        self.kubelets.delete(pod, grace)
        return f"{pod.name} ({pod.uid}) grace {grace}"

    def edit(self, chance: Chance) -> str:
        """Edit the annotations of a pod that runs, or has not been bound yet."""
        pods = [pod for pod in self.alive() if not pod.node or pod.uid in self.kubelets.running]
        if not pods:
            return ""
        pod = chance.pick(pods)
        forged = self._forgery(chance, pod.asked)
        if not pod.node and chance.once_in(3):
            # The pod makes no sense from now on, though a bind of it may be under way.
            forged = {COUNT: "x"}

        def change(body: Json) -> Json:
            kept = body["metadata"].get("annotations", {})
            return with_metadata(body, annotations={**kept, **forged})

        if not self.kubelets.revise(pod, change):
            return ""
        pod.forged = True
        if pod.node:
            pod.edited = pod.edited or self.server.store.version
            pod.unstamped |= ASSUMED in forged
            self.kubelets.forged.add(pod.node)
        return f"{pod.name} ({pod.uid}) {forged}"

    def resize(self, chance: Chance) -> str:
        """Resize what a pod on a node asks of the host, in place."""
        pods = [pod for pod in self.alive() if pod.node and pod.cpu]
        if not pods:
            return ""
        pod, cpu = chance.pick(pods), 100 * (1 + chance.below(30))

        def change(body: Json) -> Json:
            return {**body, "spec": _with_requests(body["spec"], cpu)}

        record = self.server.store.update(PODS.table, NAMESPACE, pod.name, change)
        pod.cpu = cpu * len(record.body["spec"]["containers"])
        return f"{pod.name} ({pod.uid}) {cpu}m"

    def _asked(self, chance: Chance) -> Asked:
        units = 1 + chance.below(3 if self.small else 6)
        devices = 2 if chance.once_in(5) else 1
        total = units * devices
        if chance.once_in(12):
            return Asked(units, devices, (), ((total, False),))
        if total == 1 or not chance.once_in(3):
            return Asked(units, devices, (total,))
        first = 1 + chance.below(total - 1)
        rest = total - first
        return chance.pick(
            (
                Asked(units, devices, (first, rest)),
                Asked(units, devices, (first, rest)),
                Asked(units, devices, (total,), ((first, False),)),
                Asked(units, devices, (rest,), ((total, False),)),
                Asked(units, devices, (rest,), ((first, True),)),
                Asked(units, devices, (rest,), ((rest, False), (first, True), (rest, False))),
            )
        )

    def _forgery(self, chance: Chance, asked: Asked) -> dict[str, str]:
        forged = {IDX: chance.pick(_FORGED)}
        if chance.below(2):
            forged[POD] = str(chance.pick((0, 1, asked.total, 99)))
        if chance.below(2):
            forged[ASSIGNED] = chance.pick(("true", "false"))
        if chance.below(2):
            forged[ALLOCATION] = chance.pick(("{}", "[]", '{"0":{"0":1000}}'))
        if chance.below(2):
            forged[ASSUMED] = chance.pick(("1", "99999999999999999999", "soon"))
        return forged

    def _create(
        self, name: str, asked: Asked, node: str, annotations: dict[str, str], cpu: int
    ) -> str:
        def container(name: str, units: int, sidecar: bool = False) -> Json:
            limits = {"limits": {RESOURCE: str(units)}} if units else {}
            restarts = {"restartPolicy": "Always"} if sidecar else {}
            return {"name": name, "image": "i", "resources": limits, **restarts}

        regular = asked.containers or (0,)
        spec: Json = {
            "containers": [container(f"c{index}", units) for index, units in enumerate(regular)]
        }
        inits = enumerate(asked.inits)
        spec["initContainers"] = [container(f"i{index}", *each) for index, each in inits]
        if node:
            spec["nodeName"] = node
        spec = _with_requests(spec, cpu)
        body = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
        forged = IDX in annotations
        record = self.server.registry.create(PODS, NAMESPACE, body)
        uid = record.body["metadata"]["uid"]
        cpus = cpu * len(regular)
        self.oracle.pods[uid] = PodTruth(uid, name, asked, forged=forged, cpu=cpus)
        return f"{name} ({uid}) {asked} {annotations or ''} {node}"

    # -- nodes ----------------------------------------------------------------------------------

    def change_node(self, chance: Chance) -> str:
        """A node loses or gets devices, memory, health; its plug-in restarts; it goes or comes."""
        name = chance.pick(NODE_NAMES)
        cards = self.kubelets.cards.get(name)
        if cards is None:
            return self.put_node(name, self.shapes[name])
        what = chance.below(8)
        if what == 0:
            return self._remove_node(name)
        units, healthy = list(cards.units), list(cards.healthy)
        if what == 1 and len(units) > 1:
            units.pop()
        elif what == 2:
            units = [max(1, each - 2) for each in units]
        elif what == 3:
            units = []
        elif what == 5 and units and cards.plugin == "aliyun":
            units[0] += 1
        elif what == 4 and units:
            sick = chance.below(len(units))
            healthy[sick] = not healthy[sick]
        else:
            return self.put_node(name, self.shapes[name])
        healthy = healthy[: len(units)]
        return self.put_node(name, Cards(tuple(units), tuple(healthy), False, cards.plugin))

    def flap(self) -> str:
        """A node goes that is there, or comes back: always the same one."""
        name = NODE_NAMES[0]
        if name in self.kubelets.cards:
            return self._remove_node(name)
        return self.put_node(name, self.shapes[name])

    def exchange_plugin(self, chance: Chance) -> str:
        """A device plug-in that serves by identity makes way for one that guesses."""
        blind = [name for name, cards in self.kubelets.cards.items() if cards.plugin == "blind"]
        if not blind:
            return ""
        name = chance.pick(sorted(blind))
        self.shapes[name] = replace(self.shapes[name], plugin="own")
        return self.put_node(name, replace(self.kubelets.cards[name], plugin="own"))

    def put_node(self, name: str, cards: Cards) -> str:
        """Write the node as it is now."""
        body = {"metadata": {"name": name}, **_node_body(cards)}
        cards = _as_advertised(cards)
        if cards.plugin != "aliyun":
            body["metadata"] = {"name": name, "annotations": {INVENTORY: _inventory(cards)}}
        try:
            if name in self.kubelets.cards:
                store = self.server.store
                record = store.update(NODES.table, "", name, lambda held: _changed(held, body))
            else:
                record = self.server.registry.create(NODES, "", body)
        except StatusError as error:
            raise AssertionError(name) from error
        self.oracle.cards[name, record.body["metadata"]["resourceVersion"]] = cards
        self.kubelets.cards[name] = cards
        return f"{name} {cards}"

    def collect(self) -> str:
        """The garbage collector removes the pods of nodes that are gone."""
        lost = [pod for pod in self.alive() if pod.node and pod.node not in self.kubelets.cards]
        for pod in lost:
            self.kubelets.delete(pod, 0)
        return ", ".join(pod.uid for pod in lost)

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

    def _remove_node(self, name: str) -> str:
        self.server.store.delete(NODES.table, "", name)
        del self.kubelets.cards[name]
        return f"{name} is gone"


def first_shapes(chance: Chance) -> dict[str, Cards]:
    """How the nodes of a story are when they are well."""
    shapes = {}
    for name in NODE_NAMES[: 1 + chance.below(3)]:
        count = 1 + chance.below(3)
        same = 3 + chance.below(4)
        plugin = chance.pick(("own", "blind", "aliyun", "own"))
        units = tuple(same + (chance.below(3) if plugin != "aliyun" else 0) for _ in range(count))
        shapes[name] = Cards(units, (True,) * count, False, plugin)
    for name in NODE_NAMES:
        shapes.setdefault(name, Cards((4,), (True,), False, "blind"))
    return shapes


def _with_requests(spec: Json, cpu: int) -> Json:
    """The pod's spec with so much asked of the host by each container; 0: nothing."""
    requests = {"requests": {"cpu": f"{cpu}m", "memory": f"{cpu}Mi"}} if cpu else {}
    containers = [
        {**each, "resources": {**each["resources"], **requests}} for each in spec["containers"]
    ]
    return {**spec, "containers": containers}


def _as_advertised(cards: Cards) -> Cards:
    """What can be known of the devices: the original's plug-in tells a total and a count."""
    if cards.plugin != "aliyun" or not cards.units:
        return cards
    total, count = sum(cards.units), len(cards.units)
    return Cards((total // count,) * count, (True,) * count, bool(total % count), cards.plugin)


def _node_body(cards: Cards) -> Json:
    total, count = str(sum(cards.units)), str(len(cards.units))
    amounts = {"cpu": f"{CPU}m", "memory": f"{MEMORY}Mi", RESOURCE: total, COUNT: count}
    return {"status": {"capacity": amounts, "allocatable": amounts}}


def _inventory(cards: Cards) -> str:
    devices = [
        {"mem": units, "healthy": healthy}
        for units, healthy in zip(cards.units, cards.healthy, strict=True)
    ]
    surely = cards.plugin == "blind"
    return json.dumps({"v": 1, "unit": "GiB", "devices": devices, "servesByIdentity": surely})


def _changed(held: Json, body: Json) -> Json:
    annotations = body["metadata"].get("annotations")
    return with_metadata({**held, "status": body["status"]}, annotations=annotations)
