"""Filter, prioritize and rank for pods with claims, and the pods that pass rank unread."""

import json
from typing import Any

import pytest

from gpushare.core.pairing import Pairing
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.service import Service
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.filter import FilterOptions
from gpushare.extender.verbs.recipients import Recipients
from gpushare.extender.verbs.tickets import BindSlots
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from tests.support.claim_values import allocated, holding, open_claim
from tests.support.scripted_api import ScriptedApi
from tests.unit.extender.claims.ranking import RankingWorld
from tests.unit.extender.kit import pod_json

Json = dict[str, Any]
NAMES = ["a", "b", "c"]


class RankVerbs:
    """The verbs of a process that follows claims; c has no devices of the driver."""

    def __init__(self, *, follows: bool = True, ranks_all: bool = False) -> None:
        self.world = RankingWorld()
        self.world.nodes(a=(40,), b=(12,))
        api, policy = ScriptedApi(), "device-bestfit"
        rankings = {policy: Ranking(load_policy(policy))}
        resources = ManagedResources(
            (ManagedResource(ALIYUN, Ledger(Pairing.AUTO), rankings, policy),)
        )
        self.outcomes: list[tuple[str, str]] = []
        self.service = Service(
            resources,
            Binder(api, resources, lambda: float("inf"), api.clock),
            not_ready=str,
            bind_slots=BindSlots(8),
            filter_options=FilterOptions(best_only=True, ranks_all=ranks_all),
            recipients=Recipients(
                observe=lambda verb, outcome, _: self.outcomes.append((verb, outcome))
            ),
            ranker=self.world.ranker if follows else None,
            clock=api.clock,
        )

    def names(self, verb: str, pod: Json, names: list[str] | None = None) -> Any:
        body = {"Pod": pod, "Nodes": None, "NodeNames": names or NAMES}
        answer = json.loads(getattr(self.service, verb)(json.dumps(body).encode()))
        assert answer["Error"] == ""
        assert not answer["FailedNodes"]
        assert not answer["FailedAndUnresolvableNodes"]
        return answer["NodeNames"]


def by_claim(*names: str, **spec: Any) -> Json:
    claims = [{"name": name, "resourceClaimName": name} for name in names]
    metadata = {"namespace": "default", "name": "pod", "uid": "uid-pod"}
    return {"metadata": metadata, "spec": {"resourceClaims": claims, **spec}}


@pytest.mark.parametrize("verb", ["filter", "rank"])
def test_a_pod_with_claims_is_answered_its_best_node(verb: str) -> None:
    verbs = RankVerbs()
    verbs.world.claims(open_claim(1, 10))
    assert verbs.names(verb, by_claim("claim-1")) == ["b"]
    assert verbs.outcomes == [(verb, "ranked")]
    assert verbs.world.ranker.offers() == 1


@pytest.mark.parametrize("verb", ["filter", "rank"])
def test_a_pod_with_claims_that_nothing_can_be_said_of_is_answered_all_nodes(verb: str) -> None:
    verbs = RankVerbs()
    assert verbs.names(verb, by_claim("not-shown")) == NAMES
    verbs.world.claims(open_claim(1, 500))
    assert verbs.names(verb, by_claim("claim-1")) == NAMES
    verbs.world.claims(allocated(2, holding("a", "gpu-0", 10)))
    assert verbs.names(verb, by_claim("claim-2")) == NAMES
    verbs.world.is_ready = False
    assert verbs.names(verb, by_claim("claim-1")) == NAMES


def test_where_filter_answers_all_prioritize_scores_them() -> None:
    verbs = RankVerbs(ranks_all=True)
    verbs.world.claims(open_claim(1, 10))
    assert verbs.names("filter", by_claim("claim-1")) == NAMES
    body = {"Pod": by_claim("claim-1"), "NodeNames": NAMES}
    scores = json.loads(verbs.service.prioritize(json.dumps(body).encode()))
    assert scores == [{"Host": "b", "Score": 10}]


@pytest.mark.parametrize("verb", ["filter", "rank"])
def test_a_plain_pod_passes(verb: str) -> None:
    verbs = RankVerbs()
    assert verbs.names(verb, pod_json("web", 0)) == NAMES
    assert verbs.outcomes == [(verb, "plain")]


def test_names_pass_rank_as_they_came() -> None:
    verbs = RankVerbs()
    text = b'["a",  "\\u0062", "c"]'
    body = b'{"Pod": ' + json.dumps(pod_json("web", 0)).encode() + b', "NodeNames": ' + text + b"}"
    assert text in verbs.service.rank(body)


def test_a_pod_by_annotation_with_claims_passes_rank_and_is_served_by_filter() -> None:
    verbs = RankVerbs()
    verbs.world.claims(open_claim(1, 10))
    pod = pod_json("web", 4)
    pod["metadata"]["namespace"] = "default"
    pod["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "claim-1"}]
    assert verbs.names("rank", pod) == NAMES
    body = {"Pod": pod, "NodeNames": NAMES}
    answer = json.loads(verbs.service.filter(json.dumps(body).encode()))
    assert answer["NodeNames"] == []  # no node has devices by annotation


@pytest.mark.parametrize("verb", ["filter", "rank"])
def test_where_no_claims_are_followed_their_pods_pass(verb: str) -> None:
    verbs = RankVerbs(follows=False)
    assert verbs.names(verb, by_claim("claim-1")) == NAMES


def test_whole_nodes_come_back_untouched_from_rank() -> None:
    verbs = RankVerbs()
    verbs.world.claims(open_claim(1, 10))
    items = [{"metadata": {"name": name}, "spec": {"x": name}} for name in NAMES]
    for pod, names in ((by_claim("claim-1"), ["b"]), (pod_json("web", 0), NAMES)):
        body = {"Pod": pod, "Nodes": {"items": items}}
        answer = json.loads(verbs.service.rank(json.dumps(body).encode()))
        assert [item["spec"]["x"] for item in answer["Nodes"]["items"]] == names


def test_a_body_that_cannot_be_read_is_an_error_of_rank() -> None:
    answer = json.loads(RankVerbs().service.rank(b'{"Pod": 7}'))
    assert answer["Error"].startswith("gpushare: ")
