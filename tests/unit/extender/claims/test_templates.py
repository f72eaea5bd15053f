"""Templates are written when a pod waits for one, and then left alone."""

import json
import math
from collections.abc import Mapping

from gpushare.errors import ApiConflict, ApiError
from gpushare.extender.claims.handlers import WaitingPods
from gpushare.extender.claims.writer import AGAIN, Templates
from gpushare.wire.codec import Decoded
from gpushare.wire.dra.objects import CLAIMS_PODS, ClaimsPod


def pod(name: str, template: str, namespace: str = "team", made: bool = False) -> ClaimsPod:
    has = [{"name": "gpushare", "resourceClaimTemplateName": template}]
    body = {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"},
        "spec": {"resourceClaims": has},
        "status": {"resourceClaimStatuses": [{"name": "gpushare"}] if made else []},
    }
    return CLAIMS_PODS.decode(json.dumps(body).encode())


class World:
    """The writer over an API server that keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.error: ApiError | None = None
        self.problem, self.now = "", 0.0
        self.waiting = WaitingPods(lambda: None)
        self.templates = Templates(
            self, self.waiting, not_ready=lambda: self.problem, clock=lambda: self.now
        )

    def show(self, *pods: ClaimsPod) -> None:
        self.waiting.replace([Decoded(pods, "")], 0.0)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float,
        not_after: float = math.inf,
    ) -> bytes:
        assert method == "POST"
        self.sent.append((path, json.loads(body or b"")["metadata"]["name"]))
        if self.error is not None:
            raise self.error
        return b"{}"


def path(namespace: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"


def test_pods_of_a_size_have_one_template_in_their_namespace() -> None:
    world = World()
    sizes = ("gpushare-1mi", "gpushare-1mi", "gpushare-2mi", "mine")
    pods = [pod(f"p{at}", size) for at, size in enumerate(sizes)]
    world.show(*pods, pod("far", "gpushare-1mi", "other"), pod("has", "gpushare-3mi", made=True))
    assert world.templates.round() is False
    assert sorted(world.sent) == [
        (path("other"), "gpushare-1mi"),
        (path("team"), "gpushare-1mi"),
        (path("team"), "gpushare-2mi"),
    ]
    assert world.templates.round() is True
    assert len(world.sent) == 3


def test_one_that_a_pod_waits_for_still_is_written_again_in_a_while() -> None:
    world = World()
    world.show(pod("p", "gpushare-1mi"))
    for error in (ApiConflict("is there", 409), ApiError("forbidden", 403), None):
        world.error = error
        world.templates.round()
        world.now += AGAIN / 2
        world.templates.round()
        world.now += AGAIN / 2
    assert len(world.sent) == 3


def test_one_that_was_deleted_is_written_for_the_next_pod_at_once() -> None:
    world = World()
    world.show(pod("p", "gpushare-1mi"))
    world.templates.round()
    world.show(pod("p", "gpushare-1mi", made=True))
    world.templates.round()
    world.show(pod("q", "gpushare-1mi"))
    world.templates.round()
    assert len(world.sent) == 2


def test_nothing_is_written_while_another_process_leads() -> None:
    world = World()
    world.problem = "another process leads"
    world.show(pod("p", "gpushare-1mi"))
    world.templates.round()
    assert world.sent == []
    world.problem = ""
    world.templates.round()
    assert len(world.sent) == 1
