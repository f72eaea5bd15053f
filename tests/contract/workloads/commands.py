"""`python -m tests.contract.workloads.commands`: a newcomer's kubectl commands, as a table.

Runs the commands on the local cluster and, if its programs are built, on a real control plane, and
writes a table of those that fail somewhere into docs/local-cluster.md. The test in this folder
compares the table.
"""

import re
import subprocess
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

from gpushare_localcluster.kubelet import RUN_SECONDS
from tests.contract.kubectl import Kubectl, Server
from tests.contract.workloads.manifests import changed, workload
from tests.e2e.binaries import program
from tests.support.figures import ROOT, renew

DOCUMENT = ROOT / "docs" / "local-cluster.md"
OF = "kubectl's commands"
SERVERS = {"localcluster": "the local cluster", "kube-apiserver": "kube-apiserver"}
NAMESPACE = "newcomer"
DONE, NOT_RUN = "done", "-"
TRIES = 5
"""Upper bound on the tries of a command after conflicting writes."""

_LENGTH = 60
"""Upper bound on the characters of a message in the table."""

_WEB = workload("Deployment", replicas=2)
_ENDS = {"spec": {"template": {"metadata": {"annotations": {RUN_SECONDS: "0"}}}}}
FILES = {
    "web.yaml": _WEB,
    "typo.yaml": _WEB.replace('"limits"', '"limit"'),
    "job.yaml": changed(workload("Job", "train"), _ENDS),
    "db.yaml": workload("StatefulSet", "db", replicas=2),
}

COMMANDS = """
version
cluster-info
api-resources
api-versions
config get-contexts
auth can-i create pods
auth whoami
get nodes -o wide
describe node node-1
top nodes
create namespace team
get namespaces
explain deployment.spec.strategy
apply -f web.yaml
rollout status deploy/web --timeout=50s
get all
get deploy,rs,pods -o wide
get deploy web -o yaml
get pods -o jsonpath={.items[*].metadata.name}
get pods --sort-by=.metadata.creationTimestamp
get pods --show-labels -l app=web
describe deploy web
describe pods -l app=web
get events
events
top pods
* logs deploy/web
* logs -l app=web --prefix
* exec deploy/web -- ls
* attach deploy/web
* port-forward deploy/web 8080
diff -f web.yaml
apply -f web.yaml
apply -f web.yaml --dry-run=server
apply -f typo.yaml
apply --server-side -f web.yaml
scale deploy/web --replicas=3
set image deploy/web main=app:2
rollout history deploy/web
rollout undo deploy/web
rollout restart deploy/web
rollout pause deploy/web
rollout resume deploy/web
rollout status deploy/web --timeout=50s
set env deploy/web COLOUR=blue
set resources deploy/web --limits=aliyun.com/gpu-mem=2
edit deploy web
label deploy web tier=front
annotate deploy web note=x
patch deploy web -p {"spec":{"replicas":1}}
expose deploy web --port=80
get services
autoscale deploy web --min=1 --max=3
replace -f web.yaml
run one --image=app:1
wait --for=condition=Ready pod/one --timeout=50s
get pod one -o wide
* debug one --image=busybox
* cp web.yaml one:/tmp/web.yaml
delete pod one --now
create deployment made --image=app:1
create job once --image=app:1
create cronjob often --image=app:1 --schedule=@hourly
apply -f job.yaml
wait --for=condition=complete job/train --timeout=50s
apply -f db.yaml
rollout status sts/db --timeout=50s
get jobs,sts
create configmap settings --from-literal=a=b
create secret generic hidden --from-literal=a=b
create serviceaccount robot
create role reader --verb=get --resource=pods
create rolebinding readers --role=reader --serviceaccount=newcomer:robot
create token robot
create service clusterip plain --tcp=80:8080
create priorityclass newcomer-high --value=10
create quota limit --hard=pods=10
create ingress front --rule=a.example/=web:80
apply -k config/extender/second-scheduler
apply -k config/extender/placements
apply -k config/extender/admission
cordon node-1
drain node-1 --delete-emptydir-data --force --timeout=50s
uncordon node-1
create poddisruptionbudget guard --selector=app=web --min-available=1
taint node node-1 gpu=yes:NoSchedule
taint node node-1 gpu-
delete -k config/extender/admission
delete deploy web made
delete namespace team
"""
"""In this order; those with a star need containers that are processes, or a kubelet to ask."""


@dataclass(frozen=True)
class Outcome:
    """A command and its result: DONE, NOT_RUN, or the last line of kubectl."""

    command: str
    told: str


def outcomes(server: Server, home: Path) -> list[Outcome]:
    """Run all commands in a new namespace."""
    kubectl = Kubectl(server, home)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            (Path(folder) / name).write_text(text)
        (Path(folder) / "config").symlink_to(ROOT / "config")
        return [_run(line, kubectl, Path(folder), server) for line in COMMANDS.split("\n") if line]


def _run(line: str, kubectl: Kubectl, folder: Path, server: Server) -> Outcome:
    command = line.removeprefix("* ")
    if line.startswith("* ") and server.local is None:
        return Outcome(command, NOT_RUN)
    # `kubectl replace` reads and then writes: after a write of a controller in between, as after
    # each change of a Deployment, the server refuses, and a person repeats the command.
    for _ in range(TRIES):
        finished = subprocess.run(
            ["kubectl", *command.split(" ")],
            env={**kubectl.env, "KUBE_EDITOR": "sed -i s/app:1/app:3/"},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        if "(Conflict)" not in finished.stderr:
            break
    if finished.returncode == 0:
        return Outcome(command, DONE)
    output = (finished.stderr.strip() or finished.stdout.strip()).splitlines()
    return Outcome(
        command, _without_chance(output[-1] if output else f"exit {finished.returncode}")
    )


def _without_chance(text: str) -> str:
    """The first words of the text, without parts that differ from run to run.

    These are the object that a real server repeats, and the words of kubectl before a refused
    stream, which depend on the last protocol tried.
    """
    text = re.sub(r"^.*?(?=the local cluster has no)", "", text)
    text = re.sub(r'"map\[.*\]"', '"..."', text).replace("|", "/")
    return textwrap.shorten(text, _LENGTH, placeholder=" ...")


def told(name: str) -> dict[str, str]:
    """The results of a server in the document, by command; without a row a command is done."""
    rows = [line.split(" | ") for line in DOCUMENT.read_text().splitlines() if "`kubectl" in line]
    column = 1 + list(SERVERS).index(name)
    cells = {row[0].removeprefix("| ").strip("`"): row for row in rows if len(row) == 3}
    result = {}
    for line in filter(None, COMMANDS.split("\n")):
        command = "kubectl " + line.removeprefix("* ")
        result[command] = NOT_RUN if line.startswith("* ") and name != "localcluster" else DONE
        if command in cells:
            result[command] = cells[command][column].removesuffix(" |")
    return result


def table(result: dict[str, list[Outcome]]) -> str:
    """The table of the commands that fail somewhere.

    Servers without a new result keep the column of the document.
    """
    columns = {
        name: {f"kubectl {item.command}": item.told for item in result[name]}
        if name in result
        else told(name)
        for name in SERVERS
    }
    lines = [f"| | {' | '.join(SERVERS.values())} |", "| --- | --- | --- |"]
    for line in dict.fromkeys(COMMANDS.strip().split("\n")):
        command = "kubectl " + line.removeprefix("* ")
        cells = [columns[name].get(command, NOT_RUN) for name in SERVERS]
        if not {*cells} <= {DONE, NOT_RUN}:
            lines.append(f"| `{command}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the commands on all available servers, and write the table."""
    from tests.contract.workloads.clusters import KINDS, shared

    result: dict[str, list[Outcome]] = {}
    for name in SERVERS:
        if name != "localcluster" and program("kube-controller-manager") is None:
            continue
        with tempfile.TemporaryDirectory() as folder, KINDS[name](Path(folder)) as cluster:
            result[name] = outcomes(shared(cluster, NAMESPACE), Path(folder))
    renew(DOCUMENT, OF, table(result))


if __name__ == "__main__":
    main()
