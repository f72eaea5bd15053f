"""What `gpushare demo --keep` prints last: how to reach the cluster, what to try, what is missing.

Tested in `tests/integration/test_demo_doctor.py` and `tests/pages/test_first_hour.py`, which
run the commands as they are printed.
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
"""Commands, and what each is for; node: one of the cluster; doctor: its options."""

_MISSING = """\
not there: programs (containers only report that they run; exec, attach and port-forward are
refused), GPUs, networks behind Services, CronJobs, autoscalers of pods, quotas, tokens. Nothing is
kept: when this ends the cluster is gone."""


def kept_lines(kubeconfig: Path, node: str, doctor: str) -> Iterator[str]:
    """Yield what to print of a cluster that keeps running.

    node: one of its nodes; doctor: the options with which `gpushare doctor` finds its parts.
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
