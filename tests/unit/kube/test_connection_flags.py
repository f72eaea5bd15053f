"""kubectl's flags that name a cluster and an account, in the calls of the client."""

import json
from pathlib import Path

import pytest

from gpushare.errors import ApiError, SettingsError
from gpushare.kube.client import KubeClient
from gpushare.kube.session import ConnectionFlags
from tests.unit.kube.scripted_server import ScriptedServer, Seen, scripted_server


@pytest.fixture
def kubeconfig(server: ScriptedServer, tmp_path: Path) -> str:
    """Two clusters and two users; the current context is of the cluster that is away."""
    document = {
        "clusters": [
            {"name": "away", "cluster": {"server": "http://127.0.0.1:1"}},
            {"name": "here", "cluster": {"server": server.url}},
        ],
        "users": [{"name": name, "user": {"token": name}} for name in ("jane", "joe")],
        "contexts": [{"name": "main", "context": {"cluster": "away", "user": "jane"}}],
        "current-context": "main",
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(document))
    return str(path)


def call(at: ScriptedServer, /, **values: object) -> Seen:
    """Make a call with the flags, and return what the server has received."""
    client = KubeClient(ConnectionFlags.of(values), 1, "t")
    client.request("GET", "/version", timeout=30)
    client.close()
    return at.seen[-1]


def test_a_cluster_and_a_user_replace_those_of_the_context(
    server: ScriptedServer, kubeconfig: str
) -> None:
    seen = call(server, kubeconfig=kubeconfig, cluster=["here"])
    assert seen.headers["authorization"] == "Bearer jane"
    seen = call(server, kubeconfig=kubeconfig, cluster=["away", "here"], user=["joe"])
    assert seen.headers["authorization"] == "Bearer joe"


def test_a_server_replaces_that_of_the_cluster(server: ScriptedServer, kubeconfig: str) -> None:
    seen = call(server, kubeconfig=kubeconfig, server=[server.url])
    assert seen.headers["authorization"] == "Bearer jane"


def test_calls_are_made_as_another_user_with_all_groups(
    server: ScriptedServer, kubeconfig: str
) -> None:
    flags = {"kubeconfig": kubeconfig, "cluster": ["here"]}
    seen = call(server, **flags, **{"as": ["ann"], "as_group": ["dev", "ops"]})
    assert seen.headers["impersonate-user"] == "ann"
    assert seen.headers["impersonate-group"] == "dev, ops"
    assert seen.headers["authorization"] == "Bearer jane"
    assert "impersonate-user" not in call(server, **flags).headers


def test_the_time_of_a_call_is_that_of_the_flag(kubeconfig: str) -> None:
    with scripted_server() as silent:
        silent.script = lambda *_: silent.stopped.wait(30)
        values = {"kubeconfig": kubeconfig, "server": [silent.url], "request_timeout": ["50ms"]}
        with pytest.raises(ApiError, match="timed out"):
            call(silent, **values)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("30", 30), ("1m30s", 90), ("1.5h", 5400), ("250ms", 0.25)]
)
def test_a_duration_is_written_as_in_kubectl(text: str, seconds: float) -> None:
    assert ConnectionFlags.of({"request_timeout": [text]}).request_timeout == seconds


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"cluster": ["none"]}, "object with name none in .*/clusters list"),
        ({"user": ["none"]}, "object with name none in .*/users list"),
        ({"as_group": ["ops"]}, "^--as-group needs --as$"),
        ({"request_timeout": ["soon"]}, "^--request-timeout: 'soon' is no duration such as 30s$"),
        ({"request_timeout": ["-1s"]}, "^--request-timeout: "),
    ],
)
def test_a_value_that_names_nothing_is_an_error(
    kubeconfig: str, values: dict[str, object], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        KubeClient(ConnectionFlags.of({"kubeconfig": kubeconfig, **values}), 1, "t")


def test_a_pod_has_no_other_clusters_to_choose_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpushare.kube.session.usual_kubeconfig", lambda: "")
    monkeypatch.setattr("gpushare.kube.session._SERVICE_ACCOUNT_TOKEN", Path(__file__))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    with pytest.raises(SettingsError, match="--cluster and --user need a kubeconfig"):
        KubeClient(ConnectionFlags.of({"cluster": ["here"]}), 1, "t")
