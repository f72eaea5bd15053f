"""The kubelet's calls over real sockets: who we are, prepare, unprepare."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
from google.protobuf.message import Message

from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare.errors import SettingsError
from gpushare_localcluster.dra.preparer import KIND, Preparer
from gpushare_localcluster.dra.server import DriverServer
from tests.support.claims_api import DRIVER, UID, ClaimsApi, cards, result

_AnswerT = TypeVar("_AnswerT", bound=Message)
PREPARE, UNPREPARE = (
    f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/Node{verb}Resources"
    for verb in ("Prepare", "Unprepare")
)


class Kubelet:
    """The server of a driver, and a client in the role of the kubelet."""

    def __init__(self, folder: Path) -> None:
        self.api, self.cdi = ClaimsApi(), folder / "cdi"
        preparer = Preparer(self.api, DRIVER, self.cdi, lambda: cards(80, 24))
        self.server = DriverServer(DRIVER, folder / "k", preparer)

    def call(self, socket: Path, method: str, request: Message, answer: type[_AnswerT]) -> _AnswerT:
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            call: Callable[..., _AnswerT] = channel.unary_unary(
                method, type(request).SerializeToString, answer.FromString
            )
            return call(request, timeout=10)


@pytest.fixture
def kubelet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    outcome = Kubelet(tmp_path_factory.mktemp("k"))
    outcome.server.start()
    yield outcome
    outcome.server.stop()


def test_the_kubelet_is_told_who_we_are_and_where(kubelet: Kubelet) -> None:
    registry = kubelet.server.registration
    assert registry.parent.name == "plugins_registry"
    service = "/pluginregistration.Registration"
    info = kubelet.call(registry, f"{service}/GetInfo", pb.Empty(), pb.PluginInfo)
    assert (info.type, info.name) == ("DRAPlugin", DRIVER)
    assert list(info.supported_versions) == ["v1.DRAPlugin"]
    for status in (pb.RegistrationStatus(plugin_registered=True), pb.RegistrationStatus(error="x")):
        kubelet.call(registry, f"{service}/NotifyRegistrationStatus", status, pb.Empty)
    answer = kubelet.call(Path(info.endpoint), PREPARE, pb.ClaimsRequest(), pb.PrepareResponse)
    assert not answer.claims


def test_claims_are_answered_one_by_one(kubelet: Kubelet) -> None:
    kubelet.api.claim(result(1), result(0, shareID=None))
    claims = [
        pb.Claim(namespace="default", name="c", uid=UID),
        pb.Claim(namespace="default", name="missing", uid=UID.replace("0", "9")),
    ]
    request = pb.ClaimsRequest(claims=claims)
    answer = kubelet.call(kubelet.server.socket, PREPARE, request, pb.PrepareResponse)
    assert answer.claims.keys() == {item.uid for item in claims}
    good, bad = (answer.claims[item.uid] for item in claims)
    assert (good.error, [item.device_name for item in good.devices]) == ("", ["gpu-1", "gpu-0"])
    first, second = good.devices
    assert (list(first.request_names), first.pool_name) == (["gpu"], "n1")
    assert (list(first.cdi_device_ids), first.share_id) == ([f"{KIND}={UID}-gpu"], "share-1")
    assert not second.HasField("share_id")
    assert bad.error.startswith("gpushare: ")
    assert not bad.devices

    is_gone = kubelet.call(kubelet.server.socket, UNPREPARE, request, pb.UnprepareResponse)
    assert {uid: item.error for uid, item in is_gone.claims.items()} == dict.fromkeys(
        (item.uid for item in claims), ""
    )
    assert list(kubelet.cdi.iterdir()) == []
    wrong = pb.ClaimsRequest(claims=[pb.Claim(namespace="default", name="c", uid="..")])
    is_gone = kubelet.call(kubelet.server.socket, UNPREPARE, wrong, pb.UnprepareResponse)
    assert is_gone.claims[".."].error


def test_sockets_that_a_killed_driver_left_are_taken_over(kubelet: Kubelet) -> None:
    preparer = Preparer(kubelet.api, DRIVER, kubelet.cdi, lambda: cards(80))
    later = DriverServer(DRIVER, kubelet.server.socket.parents[2], preparer)
    later.start()
    try:
        kubelet.call(kubelet.server.socket, PREPARE, pb.ClaimsRequest(), pb.PrepareResponse)
    finally:
        later.stop()


def test_sockets_that_cannot_be_are_said(tmp_path: Path) -> None:
    preparer = Preparer(ClaimsApi(), DRIVER, tmp_path, lambda: cards(80))
    with pytest.raises(SettingsError, match=r"kubelet-dir: .* has more than the 107 characters"):
        DriverServer(DRIVER, tmp_path / ("x" * 100), preparer)
    file = tmp_path / "f"
    file.touch()
    with pytest.raises(SettingsError):
        DriverServer(DRIVER, file, preparer).start()
