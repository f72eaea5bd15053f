"""The last lines of `gpushare demo`: what to do next; with --keep the access to the cluster,
commands to try, limits.

Tested in `tests/integration/test_demo_doctor.py` and `tests/pages/test_first_hour.py`, which run
the printed commands.
"""

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

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
