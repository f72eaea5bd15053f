"""The cost of a step away from the plain case, as a ratio to the plain case of the same run.

Each row calls filter for a pod of one device at 5,000 nodes, in one process, in turn with the plain
case: after a change of a node, with nodes that pairing limits, with many kinds of pods. The last
rows are no calls of filter: a heartbeat of a node, documents, the scale-down guard, the help of
commands. Only ratios are worth anything. Beside each stands the figure that landed last
(cliffs.json).

Run as `python -m tests.bench.cliffs`; two minutes. `--land` writes the figures to that file;
`--nodes N` takes another number of nodes.
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from gpushare.core.decide import place
from gpushare.core.model import Allocation, NodeSpec, PodRef, Request
from gpushare.core.node_filters import OwnFilters
from gpushare.core.pairing import Pairing
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.core.trial import FALLBACK_POLICY
from gpushare.core.workload import PodClass, Workload
from gpushare.daemon.representations import Representations
from gpushare.explain.autoscalers import Books, must_stay
from gpushare.extender.follow.watch_handlers import NodeEventHandler
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.tell.events.mistaken_pods import MistakenPods
from gpushare.extender.tell.node_values import NodeValues
from gpushare.extender.tell.page.document import Documents
from gpushare.extender.tell.page.last_hour import LastHour
from gpushare.extender.tell.written_metrics import DeviceMetrics
from gpushare.extender.verbs.filter import FilterOptions, FilterVerb
from gpushare.extender.verbs.tickets import BindSlots, Tickets
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.extender import NameLists
from gpushare.wire.inspect import encode_node, inspect_of
from gpushare.wire.objects import NODES

LANDED = Path(__file__).with_suffix(".json")
SHAPES = ((16,) * 8, (24,) * 4, (80,) * 8)
ROUNDS = 45
HELP = ("explain", "doctor", "serve", "whatif", "inspect", "simulate", "device-plugin")

WORKLOAD = Workload(
    classes=tuple(
        sorted(
            (PodClass(units=units, devices=devices, cpu=cpu, memory=1 << 30), pods)
            for units, devices, cpu, pods in (
                (4, 1, 2000, 40),
                (8, 1, 4000, 20),
                (12, 1, 8000, 10),
                (16, 2, 8000, 5),
                (80, 4, 16_000, 5),
            )
        )
    ),
    capacities=((16, 13_000), (24, 6_600), (80, 13_000)),
    turnover=0.5,
)


def spec(number: int) -> NodeSpec:
    """Return the node of that number."""
    shape = SHAPES[number % len(SHAPES)]
    return NodeSpec(
        f"node-{number:06}",
        shape,
        healthy=(True,) * len(shape),
        models=("A100",) * len(shape),
        uuids=tuple(f"GPU-{number}-{device}" for device in range(len(shape))),
        cpu=64_000,
        memory=1 << 38,
    )


class CliffSide:
    """A filter over as many nodes, and pods that are bound one after the other."""

    def __init__(self, policy: str, nodes: int, pairing: Pairing = Pairing.OFF) -> None:
        self.ledger = Ledger(pairing)
        self.ledger.replace_nodes([spec(number) for number in range(nodes)])
        ranking = Ranking(load_policy(policy, WORKLOAD))
        self.managed = ManagedResource(ALIYUN, self.ledger, {policy: ranking}, policy)
        self.verb = FilterVerb(
            ManagedResources((self.managed,)),
            Tickets(),
            FilterOptions(best_only=True),
            not_ready=str,
            bind_slots=BindSlots(8),
            lists=NameLists(),
        )
        self._names = [f"node-{number:06}" for number in range(nodes)]
        self._numbers = count()

    def call(self, units: int = 3, cpu: str = "1") -> float:
        """Return the seconds of CPU of filter for a new pod, which is then bound."""
        name = f"pod-{next(self._numbers)}"
        random.Random(name).shuffle(self._names)
        amounts = {"limits": {ALIYUN.resource: str(units)}, "requests": {"cpu": cpu}}
        pod = {
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"containers": [{"name": "c", "resources": amounts}]},
        }
        arguments = {"Pod": pod, "NodeNames": self._names}
        body = json.dumps(arguments, separators=(",", ":")).encode()
        began = time.thread_time()
        answer = self.verb.answer(body)
        seconds = time.thread_time() - began
        ref, request = PodRef("default", name, name), Request(units, 1, cpu=1000)
        node = json.loads(answer.body)["NodeNames"][0]
        scorer = self.managed.scorer(request)
        allocation = place(self.ledger.snapshot(), node, request, scorer)
        self.ledger.assume(ref, request, allocation, 0.0)
        self.managed.holds.end_after_bind(name)
        return seconds


def changes(side: CliffSide) -> dict[str, Callable[[int], object]]:
    """Return by name functions that change one node; the argument is the number of the round."""
    changed_spec, ledger = spec(7), side.ledger
    return {
        "a card closes or opens": lambda number: ledger.node_changed(
            replace(changed_spec, healthy=(number % 2 == 0, *changed_spec.healthy[1:]))
        ),
        "a node joins": lambda number: ledger.node_changed(spec(100_001 + 3 * number)),
        "a node leaves": lambda number: ledger.node_gone(spec(20 + number).name),
        "a node has other CPU": lambda number: ledger.node_changed(
            replace(spec(11), cpu=64_000 + 1000 * (number % 2))
        ),
        "a node has another model": lambda number: ledger.node_changed(
            replace(spec(13), models=(f"M{number}",) * len(spec(13).models))
        ),
    }


def of_changes(policy: str, nodes: int) -> dict[str, float]:
    """Return the ratio of a call after each change of a node, whose new snapshot counts, and of
    taking over the changes.
    """
    side = CliffSide(policy, nodes)
    steps = changes(side)
    plain, after = list[float](), {name: list[float]() for name in steps}
    after["a change of a node itself"] = []
    for _ in range(5):
        side.call()
    for number in range(ROUNDS):
        for name, change in steps.items():
            plain.append(side.call())
            began = time.thread_time()
            change(number)
            side.ledger.make_layout()  # as the handler of nodes does
            after["a change of a node itself"].append(time.thread_time() - began)
            after[name].append(side.call())
    middle = statistics.median(plain)
    return {f"{name}, {policy}": statistics.median(times) / middle for name, times in after.items()}


def of_pins(nodes: int) -> dict[str, float]:
    """Return the ratio with pods that wait for the plug-in on a fifth of the nodes, and on all.

    First the waiting pods have another size than the pod; then the same size.
    """
    plain = CliffSide("binpack", nodes)
    sides = {}
    for share, step in (("a fifth", 5), ("all", 1)):
        for size, units in (("another size", 5), ("the same size", 3)):
            side = CliffSide("binpack", nodes, Pairing.ON)
            for number in range(0, nodes, step):
                ref = PodRef("default", f"pin-{number}", f"pin-{number}")
                request = Request(units, 1, containers=((0, units),))
                allocation = Allocation(spec(number).name, ((0, units),), ("",))
                side.ledger.assume(ref, request, allocation, 0.0)
            sides[f"pins of {size} on {share} of the nodes"] = side
    times = {name: list[float]() for name in sides}
    bare = []
    for _ in range(ROUNDS):
        bare.append(plain.call())
        for name, side in sides.items():
            times[name].append(side.call())
    middle = statistics.median(bare[2:])
    return {name: statistics.median(calls[2:]) / middle for name, calls in times.items()}


def of_kinds(policy: str, nodes: int) -> dict[str, float]:
    """Return the ratio with 100 kinds of pods in turn, which differ in CPU, to one kind."""
    plain, many = CliffSide(policy, nodes), CliffSide(policy, nodes)
    bare, times = list[float](), list[float]()
    for number in range(250):
        calls = many.call(cpu=str(1 + number % 100))
        if number >= 150:
            times.append(calls)
            bare.append(plain.call())
    return {f"100 kinds of pods, {policy}": statistics.median(times) / statistics.median(bare)}


def of_heartbeats() -> dict[str, float]:
    """Return the cost of a heartbeat without news, as a ratio to decoding it."""
    ranking = Ranking(load_policy("binpack"))
    managed = ManagedResource(ALIYUN, Ledger(Pairing.OFF), {"binpack": ranking}, "binpack")
    handler = NodeEventHandler(ManagedResources((managed,)), "GiB")
    cards = [{"uuid": f"GPU-{at}", "model": "NVIDIA A100-SXM4-80GB", "mem": 80} for at in range(8)]
    inventory = json.dumps({"v": 1, "unit": "GiB", "devices": cards})
    amounts = {"cpu": "64", "memory": "263907860Ki", "pods": "110", ALIYUN.resource: "640"}
    node = {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": "a",
            "resourceVersion": "1",
            "annotations": {ALIYUN.inventory: inventory},
            "labels": {f"example.com/{at}": "x" for at in range(20)},
        },
        "status": {"capacity": amounts, "allocatable": amounts},
    }
    line = json.dumps({"type": "MODIFIED", "object": node}).encode()
    decoding, whole = list[float](), list[float]()
    for _ in range(500):
        began = time.thread_time()
        event = NODES.decode_event(line)
        decoding.append(time.thread_time() - began)
        handler.apply(event)
        whole.append(time.thread_time() - began)
    ratio = statistics.median(whole) / statistics.median(decoding)
    return {"a heartbeat, to decoding it": ratio}


def of_documents(nodes: int) -> dict[str, float]:
    """Return the bytes of documents with gzip, as a ratio to those without; and the CPU of reading
    each document once a second, as a share of a core, while ten pods a second are bound.
    """
    side = CliffSide("binpack", nodes)
    texts, metrics = NodeValues(partial(encode_node, None)), DeviceMetrics(1 << 30)
    resources = ManagedResources((side.managed,))
    page = Documents(
        resources,
        "GiB",
        LastHour(),
        not_ready=str,
        called=lambda _uid: False,
        mistaken_pods=MistakenPods(resources, "GiB", time.monotonic),
    )
    makers: dict[str, Callable[[], bytes]] = {
        "inspect": lambda: inspect_of(texts.all(side.ledger, "")).encode(),
        "page": page.body,
        "metrics": lambda: metrics.text((side.managed,)),
    }
    rows = {}
    for name, make in makers.items():
        make()
        for _ in range(10):
            side.call()
        began = time.thread_time()
        body = make()
        made = time.thread_time()
        compressed, _ = Representations().encoded(name, body, "gzip")
        rows[f"bytes of {name} with gzip"] = len(compressed) / len(body)
        rows[f"{name} made once a second, share of a core"] = made - began
        rows[f"gzip of {name} once a second, share of a core"] = time.thread_time() - made
    return rows


def of_guard() -> dict[str, float]:
    """Return the CPU of a judgement of the scale-down guard once a minute, as a share of a core.

    2,000 nodes with 8,000 pods, which all differ in CPU.
    """
    nodes, rng = 2000, random.Random(7)
    ledger = Ledger(Pairing.OFF)
    ledger.replace_nodes([spec(number) for number in range(nodes)])
    for number in range(4 * nodes):
        shape, device = SHAPES[number % nodes % len(SHAPES)], number // nodes
        request = Request(rng.randint(1, shape[device]), 1, cpu=1000 + number)
        name = f"pod-{number}"
        allocation = Allocation(spec(number % nodes).name, ((device, request.units),), ("",))
        ledger.assume(PodRef("default", name, name), request, allocation, 0.0)
    books = Books.of_pods(ledger.view(), OwnFilters(), {})
    began = time.thread_time()
    must_stay([books], load_policy(FALLBACK_POLICY))
    return {"the guard's judgement once a minute": (time.thread_time() - began) / 60}


def of_help() -> dict[str, float]:
    """Return the CPU of commands' help, as a ratio to a bare Python."""

    def cpu(*words: str) -> float:
        costs = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *words], capture_output=True, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(costs)

    bare = cpu("-c", "pass")
    command = ("-m", "gpushare.cli.main")
    return {
        f"{name} --help, to a bare Python": cpu(*command, name, "--help") / bare for name in HELP
    }


def main() -> None:
    """Print a row for each step, beside the figure that landed last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--land", action="store_true", help=f"write the figures to {LANDED.name}")
    options = parser.parse_args()
    landed = json.loads(LANDED.read_text()) if LANDED.exists() else {}
    ratios: dict[str, float] = {}
    print(f"ratios to the plain case at {options.nodes} nodes; beside them what landed last")
    measures: tuple[Callable[[], dict[str, float]], ...] = (
        partial(of_changes, "device-bestfit", options.nodes),
        partial(of_changes, "shadow-price", options.nodes),
        partial(of_pins, options.nodes),
        partial(of_kinds, "binpack", options.nodes),
        partial(of_kinds, "fgd", options.nodes),
        of_heartbeats,
        partial(of_documents, options.nodes),
        of_guard,
        of_help,
    )
    for rows in measures:
        for name, ratio in rows().items():
            ratios[name] = round(ratio, 3)
            before = landed.get(name)
            print(
                f"{name:52} {ratio:7.2f} {'' if before is None else f'{before:7.2f}'}", flush=True
            )
    if options.land:
        LANDED.write_text(json.dumps(ratios, indent=2) + "\n")


if __name__ == "__main__":
    main()
