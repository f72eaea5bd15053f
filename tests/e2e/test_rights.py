"""Each command with the rights of a tenant, a viewer and an operator, on a real kube-apiserver.

docs/tenants.md has the table of what each command needs.
"""

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout

import pytest

from gpushare.cli.main import main
from tests.e2e.binaries import needed
from tests.e2e.conftest import MakeWorld
from tests.e2e.processes import until
from tests.e2e.world import World, account_token
from tests.support.odd_clusters import outcome

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ACCOUNTS = "/api/v1/namespaces/kube-system/serviceaccounts"
_TENANT = "no right to list nodes of the whole cluster (the ClusterRole gpushare-viewer has it)"
_RIGHTS = {"viewer": "gpushare-viewer", "reader": "view", "operator": "cluster-admin"}
"""ClusterRoles of the users with rights in the whole cluster; view has ours by aggregation."""

_REMEDY = re.compile(r"on gpu-1 once default/first \(16 GiB\) ends")
Answer = tuple[int, str, str]
Ask = Callable[..., Answer]


@pytest.fixture
def world(make_world: MakeWorld) -> Iterator[World]:
    """A cluster with a pod on its full node, and another that kube-scheduler alone refuses."""
    world = make_world()
    world.start()
    controllers = world.plane.start_controllers(
        needed("kube-controller-manager"), "clusterrole-aggregation-controller"
    )
    world.objects.node(devices=1, units=16, name="gpu-1")
    assert outcome(world.objects, world.objects.pod(16, name="first")) == "gpu-1"
    assert not outcome(world.objects, world.objects.pod(8, name="late"))
    yield world
    controllers.kill()


@pytest.fixture
def ask(world: World, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Call a command as a user; the answer is its exit code, output and errors."""
    monkeypatch.setenv("KUBECTL", str(needed("kubectl")))
    api = world.api
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    role = {"metadata": {"name": "everything"}, "rules": rules}
    api.create(f"{_RBAC}/namespaces/default/roles", role)
    _bind(world, "tenant", "Role", "everything", "namespaces/default/rolebindings")
    for user, cluster_role in _RIGHTS.items():
        _bind(world, user, "ClusterRole", cluster_role, "clusterrolebindings")
    until(
        lambda: world.plane.api(account_token(api, "reader")).get("/api/v1/nodes").status == 200,
        "view has the rights of viewers",
    )

    def answer(user: str, *words: str) -> Answer:
        config = world.plane.kubeconfig(user, account_token(api, user))
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main([*words, "--kubeconfig", str(config)])
        return code, out.getvalue(), err.getvalue()

    return answer


def _bind(world: World, user: str, kind: str, role: str, bindings: str) -> None:
    world.api.create(_ACCOUNTS, {"metadata": {"name": user}})
    subject = {"kind": "ServiceAccount", "name": user, "namespace": "kube-system"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    binding = {"metadata": {"name": user}, "roleRef": reference, "subjects": [subject]}
    world.api.create(f"{_RBAC}/{bindings}", binding)


def shown(answer: Answer) -> str:
    """The output without line breaks."""
    return " ".join(answer[1].split())


def test_each_command_answers_by_the_rights_of_its_user(world: World, ask: Ask) -> None:
    explain = ("explain", "late", "-n", "default")
    # The events of the tenant's own pod say what would help.
    until(lambda: bool(_REMEDY.search(shown(ask("tenant", *explain)))), world.told)
    code, out, _ = ask("tenant", *explain)
    assert code == 0
    assert _TENANT in " ".join(out.split()), out
    code, out, err = ask("tenant", "inspect", "-n", "default")
    assert (code, _TENANT in err) == (0, True), err
    assert "first" in out
    for words, ending in (
        (("whatif", "--pods", "4GiB"), 2),
        (("defrag", "--for", "pod", "late", "-n", "default"), 2),
        (("simulate", "churn", "--from-cluster", "--policy", "binpack"), 1),
    ):
        code, out, err = ask("tenant", *words)
        assert (code, out, err.count("\n")) == (ending, "", 1), err
        assert _TENANT in err
    code, out, _ = ask("tenant", "doctor", "-o", "json")
    unread = [item["what"] for item in json.loads(out)["findings"] if item["level"] == "fail"]
    assert code == 1
    assert any("cannot list resource" in what and "nodes" in what for what in unread), unread

    for user in _RIGHTS:
        code, out, err = ask(user, *explain)
        assert code == 0, err
        assert _REMEDY.search(shown((code, out, err))), (out, err)
        code, out, err = ask(user, "inspect")
        assert (code, "gpu-1" in out) == (0, True), (out, err)
        code, out, err = ask(user, "whatif", "--pods", "8GiB")
        assert (code, "0 fit" in out) == (1, True), (out, err)
        code, out, err = ask(user, "defrag", "--for", "pod", "late", "-n", "default")
        assert (code, "default/first" in out) == (1, True), (out, err)
        code, out, err = ask(user, "simulate", "churn", "--from-cluster", "--policy", "binpack")
        assert "no right" not in err, err
        # Without the right to read ConfigMaps of kube-system closed devices count as open.
        assert ("ConfigMap" in ask(user, "explain", "late", "-n", "default")[2]) == (
            user == "viewer"
        )
