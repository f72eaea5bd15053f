"""The manifests wire kube-scheduler, the extender and the kubelet's probes to the same addresses,
files and Leases, as the code that reads them sees it.
"""

import shutil
from typing import Any

import pytest
import yaml

from gpushare.addresses import is_loopback
from gpushare.extender.door.app import Routes
from gpushare.settings import address
from gpushare.wire.scheduler.config import decode_scheduler_config
from gpushare.wire.scheduler.entry import endpoint, our_entry
from tests.contract.manifests import (
    EXTENDER,
    ROOT,
    STATIC_PODS,
    check_schema,
    container,
    one,
    scheduler_file,
    second_pod,
    served,
    static_pod,
)

Json = dict[str, Any]

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH to render with"),
]

SCHEDULER_FILE = EXTENDER / "second-scheduler" / "kube-scheduler.yaml"
SHIPPED = ROOT / "config" / "scheduler" / "kube-scheduler.yaml"
ENTRY = EXTENDER / "claims" / "extender-entry.yaml"


def probed(pod: Json) -> dict[str, tuple[str, int]]:
    """(path, port) of each probe of the extender."""
    part = container(pod, "gpushare")
    ports = {port["name"]: port["containerPort"] for port in part.get("ports", ())}
    result = {}
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        http = part[kind]["httpGet"]
        result[kind] = (http["path"], ports.get(http["port"], http["port"]))
    return result


@pytest.mark.parametrize("pod", [second_pod, lambda: static_pod("gpushare-extender")])
def test_the_probes_ask_where_the_extender_answers(pod: Any) -> None:
    host, port = address(served(pod()).health_listen, "health-listen")
    assert probed(pod()) == {
        "startupProbe": ("/livez", port),
        "livenessProbe": ("/livez", port),
        "readinessProbe": ("/readyz", port),
    }
    # On the host's network the probes say so; else the kubelet asks the pod's address.
    on_host = pod()["spec"].get("hostNetwork", False)
    get = container(pod(), "gpushare")["readinessProbe"]["httpGet"]
    assert (host, get.get("host")) == (("127.0.0.1", "127.0.0.1") if on_host else ("0.0.0.0", None))  # noqa: S104


def test_both_containers_of_the_second_scheduler_read_the_one_file() -> None:
    pod = second_pod()
    settings = served(pod)
    scheduler, extender = container(pod, "kube-scheduler"), container(pod, "gpushare")
    assert f"--config={settings.scheduler_config}" in scheduler["command"]
    folder, _, key = settings.scheduler_config.rpartition("/")
    for part in (scheduler, extender):
        (mount,) = (m for m in part["volumeMounts"] if m["name"] == "config")
        assert (mount["mountPath"], mount["readOnly"]) == (folder, True)
    (volume,) = (v for v in pod["spec"]["volumes"] if v["name"] == "config")
    generated = one("second-scheduler", "ConfigMap", volume["configMap"]["name"])
    # The hash makes a new pod of a new file.
    assert volume["configMap"]["name"] != "gpushare-scheduler-config"
    assert generated["data"] == {key: SCHEDULER_FILE.read_text()}
    assert settings.leadership == "lease"


def test_the_second_scheduler_calls_the_extender_of_its_own_pod() -> None:
    config = scheduler_file(SCHEDULER_FILE)
    assert config.warnings == ()
    place = endpoint(our_entry(config, None))
    assert place.loopback
    settings = served(second_pod())
    assert settings.listen == ""  # the values in the file
    health = address(settings.health_listen, "health-listen")[1]
    ports = [p["containerPort"] for c in second_pod()["spec"]["containers"] for p in c["ports"]]
    assert ports == [10259, health]
    assert place.port not in ports  # no other client has to reach the port


def test_the_second_schedulers_file_says_of_the_extender_what_the_shipped_one_says() -> None:
    our_value, shipped = (yaml.safe_load(file.read_text()) for file in (SCHEDULER_FILE, SHIPPED))
    own_fields = {"clientConnection", "leaderElection", "profiles"}
    assert {k: v for k, v in our_value.items() if k not in own_fields} == {
        k: v for k, v in shipped.items() if k not in own_fields
    }


def test_with_claims_the_second_schedulers_file_has_the_entry_of_claims_first() -> None:
    folder = EXTENDER / "second-scheduler-claims"
    plain, claims = (
        yaml.safe_load(file.read_text()) for file in (SCHEDULER_FILE, folder / SCHEDULER_FILE.name)
    )
    (entry,) = yaml.safe_load(ENTRY.read_text())["extenders"]
    assert claims == {**plain, "extenders": [entry, *plain["extenders"]]}
    text = one("second-scheduler-claims", "ConfigMap", "gpushare-scheduler-config")["data"]
    assert yaml.safe_load(text["kube-scheduler.yaml"]) == claims


@pytest.mark.parametrize("neighbours", [True, False])
def test_the_entry_of_claims_calls_rank_about_every_pod_and_may_fail(neighbours: bool) -> None:
    (entry,) = yaml.safe_load(ENTRY.read_text())["extenders"]
    shipped = yaml.safe_load(SHIPPED.read_text())
    extenders = [entry, *shipped["extenders"]] if neighbours else [entry]
    config = decode_scheduler_config({**shipped, "extenders": extenders})
    of_claims, our_value = config.extenders[0], our_entry(config, None)
    # Of two entries ours is the one that binds; both reach the same process.
    assert (our_value is of_claims) == (not neighbours)
    assert endpoint(of_claims) == endpoint(our_value)
    assert of_claims.filter_verb == Routes().rank
    assert not of_claims.managed_resources
    assert [of_claims.bind_verb, of_claims.prioritize_verb, of_claims.preempt_verb] == [""] * 3
    assert entry["ignorable"]
    assert entry["nodeCacheCapable"]


def test_the_second_scheduler_takes_nothing_from_the_first() -> None:
    document = yaml.safe_load(SCHEDULER_FILE.read_text())
    assert scheduler_file(SCHEDULER_FILE).scheduler_names == ("gpushare-scheduler",)
    assert document["leaderElection"] == {
        "leaderElect": True,
        "resourceName": "gpushare-scheduler",
        "resourceNamespace": "kube-system",
    }
    assert "clientConnection" not in document  # the account of the pod


def test_the_static_extender_follows_the_kube_scheduler_beside_it() -> None:
    extender, scheduler = static_pod("gpushare-extender"), static_pod("kube-scheduler")
    settings = served(extender)
    assert settings.leadership == "scheduler"
    command = container(scheduler, "kube-scheduler")["command"]
    assert f"--config={settings.scheduler_config}" in command
    # Both on the host's network: 127.0.0.1 is one, and so is the name of the host.
    assert extender["spec"]["hostNetwork"] is scheduler["spec"]["hostNetwork"] is True
    assert is_loopback(address(settings.health_listen, "health-listen")[0])
    assert endpoint(our_entry(scheduler_file(SHIPPED), None)).loopback
    folder = settings.scheduler_config.rpartition("/")[0]
    assert settings.kubeconfig.startswith(f"{folder}/")
    for pod, part in ((extender, "gpushare"), (scheduler, "kube-scheduler")):
        mounts = {m["mountPath"]: m for m in container(pod, part)["volumeMounts"]}
        assert mounts[folder]["readOnly"] is True
        paths = {v["name"]: v.get("hostPath", {}).get("path") for v in pod["spec"]["volumes"]}
        assert paths[mounts[folder]["name"]] == folder


def test_the_kubeadm_patch_adds_the_marked_lines_of_the_example() -> None:
    text = (STATIC_PODS / "kube-scheduler.yaml").read_text()
    our_value = [line for line in text.splitlines() if line.endswith("# gpushare")]
    assert len(our_value) == 8
    before = yaml.safe_load("\n".join(line for line in text.splitlines() if line not in our_value))
    check_schema(before)
    patches = EXTENDER / "existing-scheduler" / "kubeadm-patches"
    (file,) = patches.iterdir()
    # kubeadm takes the target and the kind of patch from the name.
    assert file.name == "kube-scheduler+json.yaml"
    for step in yaml.safe_load(file.read_text()):
        assert (step["op"], step["path"][-2:]) == ("add", "/-")
        place: Any = before
        for word in step["path"].split("/")[1:-1]:
            place = place[int(word)] if isinstance(place, list) else place[word]
        place.append(step["value"])
    assert before == static_pod("kube-scheduler")
