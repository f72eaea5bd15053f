"""One broken policy harms nobody: neither `serve`, nor learning, nor the pods."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare.cli.main import main
from gpushare.core.policy import Policy
from gpushare.core.workload import Workload
from gpushare.extender.learning.policy_builder import RefitFailed, make_policies
from tests.integration.broken_policies import install
from tests.integration.cluster import Cluster
from tests.integration.conftest import StartExtender
from tests.support.waiting import poll
from tests.unit.extender.learning.test_policy_builder import WORKLOAD

Install = Callable[..., None]

LEFT_OUT = ("x-gone", "x-import", "x-nothing", "x-raises")
NOT_MADE_ANEW = ("x-ends", "x-learned")
ODD_SCORES = ("x-score-nan", "x-score-raises", "x-score-shape")
LARGE_SCORES = ("x-score-huge", "x-score-infinite")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs policies of that package, for this process and those it starts."""

    def offer(*names: str) -> None:
        install(tmp_path / "site", *names)
        monkeypatch.syspath_prepend(tmp_path / "site")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
        for module in ("policies_of_somebody", "policies_at_import"):
            monkeypatch.delitem(sys.modules, module, raising=False)

    return offer


def test_serve_learns_and_places_pods_whatever_some_policies_do(
    installed: Install, start_extender: StartExtender, cluster: Cluster
) -> None:
    installed(*LEFT_OUT, *NOT_MADE_ANEW, *ODD_SCORES, *LARGE_SCORES)
    for _ in range(50):  # until so many have come, policies are made for none
        cluster.pod(1)
    extender = start_extender()
    extender.wait_ready()
    nodes = [cluster.node() for _ in range(3)]
    for node in nodes:
        extender.knows(node)
    poll(lambda: extender.figure("refits_total") > 0, lambda: extender.log, 120.0)
    for name in LEFT_OUT:
        pod = cluster.pod(1, annotations={"gpushare.io/policy": name})
        assert f"policy '{name}' could not be made" in extender.refusal(pod, nodes[0])
    for name in (*NOT_MADE_ANEW, *ODD_SCORES, *LARGE_SCORES):
        for _ in range(2):
            pod = cluster.pod(1, annotations={"gpushare.io/policy": name})
            assert extender.fit(pod, nodes) == nodes
            scores = extender.prioritize(pod, nodes)
            best = max(nodes, key=scores.__getitem__)
            assert sorted(scores.values())[-1] == 10
            assert extender.bind(pod, best) == ""
    # Scores that raise show already when the policy is made anew, if a pod has been asked about.
    expected = dict.fromkeys((*NOT_MADE_ANEW, *ODD_SCORES), 1) | dict.fromkeys(LARGE_SCORES, 0)

    def told() -> dict[str, int]:
        log = extender.log
        return {name: len(re.findall(rf"polic(?:y|ies)=\S*{name}\b", log)) for name in expected}

    poll(lambda: told() == expected, lambda: f"{told()}: {extender.log}")
    log = extender.log
    left_out = re.findall(r"policy left out.* error=.*'(x-[a-z]+)'", log)
    assert sorted(left_out) == sorted(LEFT_OUT)
    assert log.count("odd workload") == 1
    assert "policies made anew" in log


def test_a_pod_of_a_policy_that_fails_is_placed_as_by_the_default(
    installed: Install, start_extender: StartExtender, cluster: Cluster
) -> None:
    installed(*ODD_SCORES)
    extender = start_extender("--policy", "binpack")
    extender.wait_ready()
    full, empty = cluster.node(), cluster.node()
    for node in (full, empty):
        extender.knows(node)
    assert extender.bind(cluster.pod(8), full) == ""
    for name in ("binpack", *ODD_SCORES):
        pod = cluster.pod(1, annotations={"gpushare.io/policy": name})
        assert extender.prioritize(pod, [empty, full])[full] == 10


@pytest.mark.parametrize("name", ["x-score-raises", "x-score-nan"])
def test_even_a_default_that_cannot_judge_leaves_pods_placed(
    name: str, installed: Install, start_extender: StartExtender, cluster: Cluster
) -> None:
    installed(name)
    extender = start_extender("--policy", name, "--filter-answer", "best")
    extender.wait_ready()
    node = cluster.node()
    extender.knows(node)
    for _ in range(2):
        pod = cluster.pod(4, annotations={})
        assert extender.fit(pod, [node]) == [node]
        assert extender.prioritize(pod, [node]) == {node: 10}
        assert extender.bind(pod, node) == ""
    # And where the log names the ranking policy.
    poll(lambda: len(re.findall(f"policy={name}", extender.log)) == 2, lambda: extender.log)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_default_that_cannot_be_made_ends_serve_with_2_and_one_line(
    name: str,
    installed: Install,
    cluster: Cluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    installed(name)
    flags = ("--kubeconfig", cluster.kubeconfig(tmp_path), "--leadership", "off", "--policy", name)
    assert main(["serve", *flags]) == 2
    errors = capfd.readouterr().err
    assert errors.startswith(f"gpushare serve: policy '{name}' cannot be loaded from ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("candidates", ["binpack,roulette", "auto", ""])
def test_a_candidate_that_is_no_policy_ends_serve_with_2_and_one_line(
    candidates: str, cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ("--kubeconfig", cluster.kubeconfig(tmp_path), "--leadership", "off")
    assert main(["serve", *flags, "--candidates", candidates]) == 2
    errors = capfd.readouterr().err
    wrong = candidates.rsplit(",", maxsplit=1)[-1]
    assert errors.startswith(f"gpushare serve: candidates: {wrong!r} is no policy; there are: ")
    assert "shadow-price" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("named", ["binpack,roulette", "", "all,none"])
def test_a_pod_policy_that_is_no_policy_ends_serve_with_2_and_one_line(
    named: str, cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ("--kubeconfig", cluster.kubeconfig(tmp_path), "--leadership", "off")
    assert main(["serve", *flags, "--pod-policies", named]) == 2
    errors = capfd.readouterr().err
    assert errors.startswith("gpushare serve: pod-policies: ")
    assert "is no policy; there are: auto, " in errors
    assert errors.count("\n") == 1


def made(names: tuple[str, ...], timeout: float = 120.0) -> dict[str, str]:
    """By name, the reason why the policy was not made; "" where it was made."""
    policies = make_policies(names, WORKLOAD, timeout=timeout)
    assert list(policies) == list(names)
    return {
        name: str(policy) if isinstance(policy, RefitFailed) else ""
        for name, policy in policies.items()
    }


def test_policies_are_made_without_those_that_fail(installed: Install) -> None:
    installed("x-import", "x-learned", "x-ends", "x-nothing")
    made_result = made(("binpack", "x-ends", "fgd", "x-import", "x-learned", "x-nothing", "spread"))
    assert [name for name, wrong in made_result.items() if not wrong] == [
        "binpack",
        "fgd",
        "spread",
    ]
    assert "status 3" in made_result["x-ends"]
    assert "SystemExit" in made_result["x-import"]
    assert "odd workload" in made_result["x-learned"]
    assert "score" in made_result["x-nothing"]


@pytest.mark.long
def test_a_policy_that_never_comes_to_an_end_is_given_up(installed: Install) -> None:
    installed("x-hangs")
    made_result = made(("binpack", "x-hangs", "spread"), timeout=20.0)
    assert made_result == {"binpack": "", "x-hangs": "not made after 20 s", "spread": ""}


def test_policies_that_are_made_are_policies(installed: Install) -> None:
    installed("x-learned")
    policies = make_policies(("x-learned", "spread"), Workload())
    assert all(isinstance(policy, Policy) for policy in policies.values())
