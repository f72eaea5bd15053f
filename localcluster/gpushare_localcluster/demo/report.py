"""The output of the demo: live decisions, the devices with pods, expectations; and what to do next.

Knows the states of pods and the inspect document; decides nothing. The printed commands run in
`tests/integration/test_demo_doctor.py` and `tests/pages/test_first_hour.py`.
"""

import os
import re
import shlex
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from gpushare_localcluster.demo.board import Json, PodState
from gpushare_localcluster.pod_status import granted
from gpushare_localcluster.scheduler.cycle import Decision
from gpushare_localcluster.scheduler.trace import CycleTrace

_COLOURS = {"good": "32", "bad": "31", "wait": "33", "head": "1", "dim": "2"}
_BAR = 16
_LONGEST_LIST = 60
_MOST_ROWS = 40
_MOST_TOLD = 3
_TOLD = ("NVIDIA_VISIBLE_DEVICES", "ALIYUN_COM_GPU_MEM_CONTAINER")


class Report:
    """Prints line by line, from any thread."""

    def __init__(self, out: TextIO, *, colours: bool = False, brief: bool = False) -> None:
        """brief: whether to print a line for each part whose expectations hold."""
        self._out = out
        self._brief = brief
        self._kept: list[str] | None = None
        self._unfinished = ""
        self._colours = colours
        self._lock = threading.Lock()
        self._used: Counter[tuple[str, int]] = Counter()
        self._sizes: dict[tuple[str, int], int] = {}
        self._decisions: dict[str, Decision] = {}
        self._told: dict[str, str] = {}
        self._muted = False
        self._held: dict[str, Mapping[int, int]] = {}
        self.claimed: Callable[[Json], Mapping[int, int]] = lambda _pod: {}
        """The units by device that a bound pod has by claims."""

    def title(self, text: str) -> None:
        """Print the title of a part; with `brief`, keep all lines until the end of the part."""
        self._kept = [] if self._brief else None
        self._print(self._painted("head", f"\n== {text}"))

    def end(self, text: str, *, held: bool) -> None:
        """End the part with this title; with `brief`, print one line, or all lines if not held."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is None:
            return
        if held:
            self._print(f"{self._painted('good', '✓')} {text}")
        else:
            self._print("\n".join(kept))

    def say(self, text: str) -> None:
        """Print a line of the scenario."""
        self._print(self._painted("dim", f"   {text}"))

    def line(self, text: str) -> None:
        """Print a plain line."""
        self._print(text)

    def write(self, text: str) -> int:
        """Print the whole lines of what a program writes, for `redirect_stdout`."""
        *whole, self._unfinished = f"{self._unfinished}{text}".split("\n")
        for line in whole:
            self._print(line)
        return len(text)

    def flush(self) -> None:
        """Do nothing: a line is out when `write` returns."""

    def expectation(self, words: str, complaint: str | None) -> None:
        """Print an expectation that held, or the complaint."""
        if complaint is None:
            self._print(f"   {self._painted('good', '✓')} {words}")
        else:
            self._print(f"   {self._painted('bad', '✗')} {words}: {complaint}")

    def sizes(self, books: Iterable[Json]) -> None:
        """Store the sizes of devices, for the live lines."""
        with self._lock:
            for node in books:
                for device in node["devs"]:
                    self._sizes[node["name"], device["id"]] = device["totalGPU"]

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Count changes of pods without printing while the context is open."""
        self._muted = True
        try:
            yield
        finally:
            self._muted = False

    def on_decision(self, decision: Decision) -> None:
        """Store how the node of a pod was chosen, until the pod is bound."""
        with self._lock:
            self._decisions[decision.pod.uid] = decision

    def on_cycle(self, cycle: CycleTrace) -> None:
        """Print a scheduling cycle."""
        if not self._muted:
            self._print("\n".join(self._painted("dim", f"   {line}") for line in cycle.lines()))

    def on_pod(self, before: PodState | None, after: PodState | None) -> None:
        """Print the news in a change of a pod, if any."""
        for text in self._news(before, after):
            if not self._muted:
                self._print(f"{time.strftime('%H:%M:%S')} {text}")

    def on_autoscaler(self, text: str) -> None:
        """Print an action of the autoscaler."""
        if not self._muted:
            self._print(f"{time.strftime('%H:%M:%S')} autoscaler: {text}")

    def devices(self, books: Sequence[Json]) -> None:
        """Print the table of devices with pods; for a large cluster one line per node."""
        if not any(node["devs"] or node.get("unplaced") for node in books):
            return
        rows = [("NODE", "DEVICE", "USED", "", "PODS")]
        short = sum(len(node["devs"]) for node in books) > _MOST_ROWS
        for node in sorted(books, key=lambda item: natural(str(item["name"]))):
            rows += _node_rows(node, short=short)
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for number, row in enumerate(rows):
            cells = [cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)]
            text = f"   {'  '.join(cells)}  {row[4]}".rstrip()
            self._print(self._painted("head", text) if number == 0 else text)

    def told(self, containers: Sequence[tuple[str, str, Mapping[str, str]]]) -> None:
        """Print the variables of the first of these (pod, container, variables)."""
        for pod, container, variables in containers[:_MOST_TOLD]:
            variables_text = " ".join(f"{name}={variables.get(name)}" for name in _TOLD)
            self._print(f"   {pod}, container {container}: {variables_text}")
        if len(containers) > _MOST_TOLD:
            self._print(f"   and {len(containers) - _MOST_TOLD} containers more (kubectl logs)")

    def _news(self, before: PodState | None, after: PodState | None) -> list[str]:
        with self._lock:
            if after is None:
                return [] if before is None else [self._gone(before)]
            if after.ended and (before is None or not before.ended):
                reason = (after.raw.get("status") or {}).get("reason")
                phase = f"{after.phase} ({reason})" if reason else after.phase
                return [f"pod {after.name} ended: {phase}{self._freed(after)}"]
            if after.node and not after.ended and (before is None or not before.node):
                return [self._bound(after)]
            return self._waiting(after)

    def _bound(self, pod: PodState) -> str:
        uid = str(pod.raw["metadata"]["uid"])
        self._told.pop(uid, None)
        decision = self._decisions.pop(uid, None)
        places = []
        self._held[uid] = granted(pod.raw) or self.claimed(pod.raw)
        for device, units in self._held[uid].items():
            key = (pod.node, device)
            size = self._sizes.get(key)
            of = f" of {size}" if size else ""
            places.append(f"device {device} (+{units}; {self._used[key]}{of} used before)")
            self._used[key] += units
        more = f" and {len(places) - 2} devices more" if len(places) > 2 else ""
        place = ", ".join(places[:2]) + more if places else "no device"
        nodes = f"  [{decision.feasible} of {decision.evaluated} nodes fit]" if decision else ""
        arrow = self._painted("good", f"pod {pod.name} -> node {pod.node}")
        return f"{arrow} {place}{self._painted('dim', nodes)}"

    def _waiting(self, pod: PodState) -> list[str]:
        uid = str(pod.raw["metadata"]["uid"])
        if pod.node or not pod.reason or self._told.get(uid) == pod.reason:
            return []
        self._told[uid] = pod.reason
        return [f"{self._painted('wait', f'pod {pod.name} waits:')} {pod.why}"]

    def _gone(self, pod: PodState) -> str:
        self._told.pop(str(pod.raw["metadata"]["uid"]), None)
        return f"pod {pod.name} deleted{'' if pod.ended or not pod.node else self._freed(pod)}"

    def _freed(self, pod: PodState) -> str:
        shares = self._held.pop(str(pod.raw["metadata"]["uid"]), None) or granted(pod.raw)
        for device, units in shares.items():
            self._used[pod.node, device] -= units
        if not shares:
            return ""
        shares_text = ", ".join(
            f"{units} units of device {index}" for index, units in shares.items()
        )
        return f", which frees {shares_text} of node {pod.node}"

    def _painted(self, colour: str, text: str) -> str:
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self._colours and text else text

    def _print(self, text: str) -> None:
        with self._lock:
            if self._kept is not None:
                self._kept.append(text)
                return
        try:
            # In one write, as other threads print too.
            self._out.write(f"{text}\n")
            self._out.flush()
        except BrokenPipeError:
            # The reader (head, a pager) has closed the pipe; the scenarios run on to the exit code.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())


def natural(name: str) -> list[tuple[int, str]]:
    """Return a natural sort key, with n2 before n10."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


_Row = tuple[str, str, str, str, str]


def _node_rows(node: Json, *, short: bool) -> list[_Row]:
    """Return a row per device; a single row for an idle node, or if `short`."""
    name, devices = str(node["name"]), node["devs"]
    used = sum(int(device["usedGPU"]) for device in devices)
    rows: list[_Row] = []
    if devices and (short or not used) and len(devices) > 1:
        indices = f"{devices[0]['id']}-{devices[-1]['id']}"
        names = {pod["name"] for device in devices for pod in device["pods"]}
        pod_count = f"{len(names)} pods" if names else ""
        rows.append((name, indices, *_amount(used, int(node["totalGPU"])), pod_count))
    else:
        rows += [_device_row(name, device) for device in devices]
    for pod in node.get("unplaced") or ():
        rows.append((name, "?", str(pod["usedGPU"]), "", str(pod["name"])))
    return rows


def _device_row(node: str, device: Json) -> _Row:
    pods = ", ".join(f"{pod['name']} ({pod['usedGPU']})" for pod in device["pods"])
    pod_names = pods if len(pods) <= _LONGEST_LIST else f"{pods[:_LONGEST_LIST]}..."
    amounts = _amount(int(device["usedGPU"]), int(device["totalGPU"]))
    return (node, str(device["id"]), *amounts, pod_names)


def _amount(used: int, total: int) -> tuple[str, str]:
    filled = min(round(used * _BAR / total), _BAR) if total else 0
    return f"{used}/{total}", "#" * filled + "." * (_BAR - filled)


_TRY = (
    ("kubectl get nodes,pods -o wide", ""),
    ("kubectl inspect gpushare", "who holds what"),
    ("gpushare doctor {doctor}", "is all well?"),
    ("kubectl create deployment web --image=web:1 --replicas=0", ""),
    ("kubectl set resources deployment web --limits=aliyun.com/gpu-mem=6", "6 GiB for each pod"),
    ("kubectl scale deployment web --replicas=50", "more than fit"),
    ("kubectl inspect gpushare", "who waits, and why"),
    ("kubectl describe pods -l app=web", "the same in the events"),
    ("kubectl scale deployment web --replicas=2", "memory is free again"),
    ("kubectl -n kube-system create configmap unhealthy-gpu-{node} --from-literal=gpus=0", ""),
    ("kubectl inspect gpushare -d", "device 0 of {node} is closed, its pods stay"),
    ("kubectl -n kube-system delete configmap unhealthy-gpu-{node}", ""),
    ("kubectl delete deployment web", ""),
)
"""Commands with remarks; {node}: a node of the cluster; {doctor}: options of doctor."""

_MISSING = """\
not there: programs (containers only report that they run; exec, attach and port-forward are
refused), GPUs, networks behind Services, CronJobs, autoscalers of pods, quotas, tokens. Nothing is
kept: when this ends the cluster is gone."""


_NEXT = (
    ("{demo} 2", "what happens in a scenario, line by line; -v: in all"),
    ("{demo} --keep", "a cluster for kubectl, and commands to try"),
    ("{demo} --ui", "the same, with a page for a browser"),
)


def next_lines() -> Iterator[str]:
    """Yield what to do after all scenarios, by the command as the user can write it."""
    program = Path(sys.prefix) / "bin" / "gpushare"
    if shutil.which("gpushare") is not None:
        program = Path("gpushare")
    elif program.is_relative_to(Path.cwd()):
        program = program.relative_to(Path.cwd())
    yield "\nnext:"
    for command, remark in _NEXT:
        yield f"  {command.format(demo=f'{shlex.quote(str(program))} demo')}  # {remark}"
    yield "then docs/start.md, a first hour, and docs/install.md, on your own cluster"


def kept_lines(kubeconfig: Path, node: str, doctor: str) -> Iterator[str]:
    """Yield the lines about a cluster that keeps running.

    node: a node of the cluster; doctor: the options with which `gpushare doctor` finds its parts.
    """
    yield "the cluster keeps running until Ctrl-C; in another terminal:"
    yield f"export KUBECONFIG={shlex.quote(str(kubeconfig))}"
    programs = Path(sys.prefix) / "bin"
    plugin = "kubectl-inspect-gpushare"
    if shutil.which(plugin) is None and (programs / plugin).exists():
        yield f"export PATH={shlex.quote(str(programs))}:$PATH"
    if shutil.which("kubectl") is None:
        yield "(kubectl is not on PATH: https://kubernetes.io/docs/tasks/tools/)"
    yield "\nthen, for example:"
    for command, remark in _TRY:
        yield f"  {command}{f'  # {remark}' if remark else ''}".format(node=node, doctor=doctor)
    yield f"\n{_MISSING}"
