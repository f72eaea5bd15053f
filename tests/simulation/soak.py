"""`python -m tests.simulation.soak --seconds 3600 [--record]`: the real process, for an hour.

`gpushare serve` on an API server of this process, with all that can be switched on: pods of random
sizes come, are filtered, bound, and go; nodes of new names come and go; nodes and lists of
unhealthy devices change; odd objects, bad input, probes, metrics and `inspect` run together, at
bounded rates. Ends with 1 if memory, descriptors or threads of the process still rise in the second
half, or the books are not those of a fresh reading at the end. Times of filter are printed for
both halves; other work on the machine counts in them.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from gpushare_localcluster.api.status import StatusError
from tests.badinput import odd
from tests.badinput.attempt import Targets
from tests.badinput.inputs import attempt
from tests.badinput.sender import Sender
from tests.integration.cluster import NODES, PODS, Cluster, Json, fresh
from tests.integration.process import Extender
from tests.simulation.usage import Sample, growth, sample
from tests.support.figures import PROOF_FIGURES, commit, record, renew
from tests.support.waiting import poll

NODES_THERE, DEVICES, UNITS = 12, 4, 64
MAX_PODS = 150
"""At least; in large clusters a pod for two nodes."""
FEATURES = (
    *("--ui-listen", "127.0.0.1:0", "--metrics-detail", "pods", "--shadow", "binpack"),
    *("--neighbours", "2", "--scale-down-guard", "--placeholders", "default", "--kueue"),
    *("--defrag-moves-per-hour", "600", "--defrag-after", "20", "--reserve-after", "20"),
    *("--claims", "gpu.nvidia.com"),
)
WISHES: tuple[dict[str, str], ...] = (
    *({},) * 8,
    {"gpushare.io/policy": "spread"},
    {"gpushare.io/neighbours": "1"},
    {"gpushare.io/apart": "required"},
)
"""The annotations of pods, chosen at random."""
EVERY = 5.0
"""Seconds from one sample to the next."""
MAX_GROWTH = Sample(mb=4.0, descriptors=4.0, threads=4.0)
"""The allowed growth in the second half of a run, by the trend."""

_TOLD_EVERY = 30.0
_RUNS = Path(__file__).parent / "soak_runs.json"


@dataclass
class SoakRun:
    """The results of a run. done: number of actions by name; samples: (seconds, usage)."""

    commit: str
    when: str
    seconds: float
    done: dict[str, int] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    middle: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    growth: dict[str, float] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)


class Soak:
    """The cluster, the process, and all callers of the process."""

    def __init__(
        self, folder: Path, seed: int, node_count: int, program: str = "gpushare.cli.main"
    ) -> None:
        self.cluster = Cluster()
        # As in the image.
        environment = {"MALLOC_ARENA_MAX": "1"}
        kubeconfig = self.cluster.kubeconfig(folder)
        self.extender = Extender(
            folder, kubeconfig, *FEATURES, program=(program,), environment=environment
        )
        self.filter_times: list[tuple[float, float]] = []
        """(when, seconds of a filter), the first in seconds of the monotonic clock."""
        self._node_count = node_count
        self._max_pods = max(MAX_PODS, node_count // 2)
        self.done: Counter[str] = Counter()
        self.raised: list[BaseException] = []
        self.samples: list[tuple[float, Sample]] = []
        self._seed = seed
        self._ended = threading.Event()
        self._nodes: list[str] = []
        self._pods: list[Json] = []

    def run(self, seconds: float) -> None:
        """Let everybody loose for so long, and take samples. Raises AssertionError."""
        self.extender.wait_ready()
        self._nodes += [self._node() for _ in range(self._node_count)]
        self.extender.knows(self._nodes[0], self._nodes[-1])
        actors = (
            (self._pod, 0.25),
            (self._change_node, 2.0),
            (self._odd_object, 1.0),
            (self._bad_input, 0.2),
            (self._look, 1.0),
        )
        threads = [
            threading.Thread(target=self._guarded, args=(act, interval, number))
            for number, (act, interval) in enumerate(actors)
        ]
        for thread in threads:
            thread.start()
        try:
            self._watch(seconds)
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()
        assert self.raised == [], self.raised[:3]

    def judge(self) -> list[str]:
        """The mistakes at the end."""
        findings = []
        grown = growth(self.samples)
        for name, bound in asdict(MAX_GROWTH).items():
            if asdict(grown)[name] > bound:
                findings.append(f"{name} grew by {asdict(grown)[name]:.1f} in the second half")
        try:
            self.extender.agrees(self.cluster)
        except AssertionError as error:
            findings.append(str(error))
        if "Traceback" in self.extender.log:
            at = self.extender.log.index("Traceback")
            findings.append(f"a traceback in the log: {self.extender.log[at : at + 2000]}")
        return findings

    def close(self) -> None:
        """End the process and the cluster."""
        self.extender.stop()
        self.cluster.stop()

    def _watch(self, seconds: float) -> None:
        begin = time.monotonic()
        (worker,) = self.extender.children()
        last_report = 0.0
        while (now := time.monotonic() - begin) < seconds and not self.raised:
            assert not self.extender.ended(), "the process has ended"
            assert self.extender.children() == [worker], "the worker has been exchanged"
            self.samples.append((now, sample(worker)))
            if now >= last_report:
                last_report = now + _TOLD_EVERY
                self._tell(now)
            self._ended.wait(EVERY)

    def _tell(self, now: float) -> None:
        used = self.samples[-1][1]
        did = ", ".join(f"{name} {count:,}" for name, count in sorted(self.done.items()))
        figures = (
            f"{used.mb:6.1f} MB, {used.descriptors:.0f} descriptors, {used.threads:.0f} threads"
        )
        print(f"{now:6.0f} s  {figures}; {did}", flush=True)

    def filter_text(self) -> str:
        """Return median and 99th percentile of filter in both halves."""
        half = (self.filter_times[0][0] + self.filter_times[-1][0]) / 2
        halves = (
            [taken for at, taken in self.filter_times if at < half],
            [taken for at, taken in self.filter_times if at >= half],
        )
        texts = []
        for times in halves:
            cuts = statistics.quantiles(times, n=100)
            texts.append(f"{cuts[49] * 1000:.1f} and {cuts[98] * 1000:.1f}")
        return f"filter, median and 99th percentile in ms: {', then '.join(texts)}"

    def _guarded(self, act: Callable[[Random], None], interval: float, number: int) -> None:
        chance = Random(f"{self._seed}:{number}")
        try:
            while not self._ended.wait(chance.uniform(0, 2 * interval)):
                act(chance)
        except BaseException as error:
            self.raised.append(error)

    # -- actors -------------------------------------------------------------------------------

    def _pod(self, chance: Random) -> None:
        """One pod comes, placed like by kube-scheduler; and some pods go."""
        units = [chance.randint(1, 12) for _ in range(chance.choice((1, 1, 1, 2)))]
        created: Json = {}
        if chance.random() < 0.05:  # bound past the extender
            created = {"nodeName": chance.choice(self._nodes)}
        pod = self.cluster.pod(*units, spec=created, annotations=chance.choice(WISHES))
        self.done["pods"] += 1
        self._pods.append(pod)
        if not created:
            self._place(chance, pod)
        while len(self._pods) > chance.randint(self._max_pods // 2, self._max_pods):
            removed = self._pods.pop(chance.randrange(len(self._pods)))
            with contextlib.suppress(StatusError):  # evicted, or its node has left
                if chance.random() < 0.5:
                    self.cluster.set_phase(removed, "Succeeded")
                self.cluster.delete_pod(removed)

    def _place(self, chance: Random, pod: Json) -> None:
        for _ in range(2):
            nodes = list(self._nodes)
            begin = time.monotonic()
            fit = self.extender.fit(pod, nodes)
            self.filter_times.append((begin, time.monotonic() - begin))
            self.done["filters"] += 1
            if not fit:
                return
            scores = self.extender.prioritize(pod, fit)
            best = max(fit, key=lambda name: scores[name])
            node = best if chance.random() < 0.9 else chance.choice(fit)
            if not self.extender.bind(pod, node):
                self.done["binds"] += 1
                return

    def _change_node(self, chance: Random) -> None:
        self.done["changes of nodes"] += 1
        act = chance.randrange(4)
        if act == 0:
            self.cluster.annotate_node(chance.choice(self._nodes), "turn", str(chance.random()))
        elif act == 1:
            closed_devices = chance.choice(("", "0", "1,2", "nonsense"))
            self.cluster.unhealthy(chance.choice(self._nodes), closed_devices)
        elif act == 2:
            # The first node stays, since others resize it.
            left, self._nodes[-1] = self._nodes[-1], self._node()
            chance.shuffle(self._nodes)
            for pod in self.cluster.all(PODS):
                if pod["spec"].get("nodeName") == left:
                    with contextlib.suppress(StatusError):  # deleted by the thread of pods
                        self.cluster.delete_pod(pod)
            self.cluster.delete(NODES, "", left)
        else:
            self.cluster.resize(self._nodes[0], mem=chance.choice(("256", "512")))

    def _odd_object(self, chance: Random) -> None:
        """An invalid object, for long enough to be seen."""
        body = odd.spoiled(chance, odd.POD)
        name = fresh("odd")
        if not isinstance(body, dict):
            return
        meta = body.get("metadata")
        body["metadata"] = {**(meta if isinstance(meta, dict) else {}), "name": name, "uid": name}
        with contextlib.suppress(StatusError, TypeError, ValueError, AttributeError, KeyError):
            self.cluster.create(PODS, "default", body)
            self.done["odd objects"] += 1
            self.cluster.delete(PODS, "default", name)

    def _bad_input(self, chance: Random) -> None:
        sender = Sender(self.extender.port, self.extender.health_port)
        targets = Targets(self._nodes, [odd.POD])
        with contextlib.closing(sender):
            _, wrong = sender.send(attempt(chance.randrange(10**9), self._seed, targets))
        self.done["bad inputs"] += 1
        assert not wrong, wrong

    def _look(self, _: Random) -> None:
        for path in ("/livez", "/readyz", "/metrics"):
            assert self.extender.probe(path).status == 200, path
        assert self.extender.inspect_reply().status == 200
        self.done["looks"] += 1

    def _node(self) -> str:
        return self.cluster.node(devices=DEVICES, total=DEVICES * UNITS)


def _figures(run: SoakRun) -> str:
    """The run as a table."""
    points = [run.first, run.middle, run.last]
    mb, descriptors, threads = (
        ", ".join(f"{point[name]:.{digits}f}" for point in points)
        for name, digits in (("mb", 1), ("descriptors", 0), ("threads", 0))
    )
    trend = ", ".join(f"{value:+.1f}" for value in run.growth.values())
    did = ", ".join(f"{name} {count:,}" for name, count in sorted(run.done.items()))
    return "\n".join(
        (
            "| seconds | MB at first, in the middle, at the end | descriptors | threads"
            " | trend of the second half: MB, descriptors, threads | done | findings | commit"
            " | when |",
            "| --- " * 9 + "|",
            f"| {run.seconds:.0f} | {mb} | {descriptors} | {threads} | {trend} | {did}"
            f" | {len(run.findings)} | {run.commit} | {run.when} |",
        )
    )


def main() -> int:
    """The exit code: 1 where something was found."""
    parser = argparse.ArgumentParser(prog="tests.simulation.soak")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=NODES_THERE)
    parser.add_argument(
        "--small-bounds",
        dest="program",
        action="store_const",
        const="tests.simulation.small_bounds",
        default="gpushare.cli.main",
        help="the process keeps little of what fills slowly",
    )
    parser.add_argument("--record", action="store_true", help="keep what came of it")
    options = parser.parse_args()
    when = datetime.now(UTC).isoformat(timespec="minutes")
    with (
        tempfile.TemporaryDirectory(prefix="gpushare-soak-") as folder,
        contextlib.closing(
            Soak(Path(folder), options.seed, options.nodes, options.program)
        ) as soak,
    ):
        soak.run(options.seconds)
        poll(soak.extender.ready, "it is ready at the end")
        findings = soak.judge()
    samples = [used for _, used in soak.samples]
    first, middle, last = (asdict(samples[at]) for at in (0, len(samples) // 2, -1))
    grown = asdict(growth(soak.samples))
    counts = dict(soak.done)
    run = SoakRun(commit(), when, options.seconds, counts, first, middle, last, grown, findings)
    print(soak.filter_text())
    print(f"the second half by its trend: {grown}; {len(findings)} findings")
    for finding in findings:
        print(f"  FOUND {finding}")
    if options.record:
        record(_RUNS, asdict(run))
        renew(PROOF_FIGURES, "the soak", _figures(run))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
