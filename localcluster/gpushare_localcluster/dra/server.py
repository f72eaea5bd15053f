"""The gRPC server that the kubelet finds and calls: pluginregistration/v1 and dra/v1.

The kubelet watches the folder of plug-ins and calls each socket in it, also after a restart. So the
driver has nothing to do when the kubelet comes back.

Tested in `localcluster/tests/test_dra_server.py` and, with a real kubelet, in
`tests/e2e/test_dra.py`.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare.device_plugin.kubelet import NO_PROXY
from gpushare.errors import GpuShareError, SettingsError
from gpushare.logline import Line
from gpushare_localcluster.dra.preparer import ClaimRef, Preparer

log = logging.getLogger("gpushare.dra")

_LONGEST_SOCKET = 107
_SAYS = "gpushare: "
_THREADS = 8


class DriverServer:
    """Serves both sockets from `start` to `stop`. kubelet: the kubelet's root directory."""

    def __init__(self, driver: str, kubelet: Path, preparer: Preparer) -> None:
        """Check the socket paths. Raises SettingsError for a path that is too long."""
        self._driver = driver
        self._preparer = preparer
        self.socket = kubelet / "plugins" / driver / "dra.sock"
        self.registration = kubelet / "plugins_registry" / f"{driver}-reg.sock"
        for path in (self.socket, self.registration):
            if len(str(path)) > _LONGEST_SOCKET:
                raise SettingsError(
                    f"kubelet-dir: {path} has more than the {_LONGEST_SOCKET} characters that a"
                    " socket's path may have"
                )
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Listen; the kubelet calls soon after. Raises SettingsError."""
        server = grpc.server(ThreadPoolExecutor(_THREADS, "kubelet calls"), options=NO_PROXY)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "pluginregistration.Registration",
                    {
                        "GetInfo": _unary(self._info, pb.Empty),
                        "NotifyRegistrationStatus": _unary(
                            _log_registration, pb.RegistrationStatus
                        ),
                    },
                ),
                grpc.method_handlers_generic_handler(
                    "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
                    {
                        "NodePrepareResources": _unary(self._prepare, pb.ClaimsRequest),
                        "NodeUnprepareResources": _unary(self._unprepare, pb.ClaimsRequest),
                    },
                ),
            )
        )
        # The registration socket is last, since the kubelet then calls the other one.
        for path in (self.socket, self.registration):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                server.add_insecure_port(f"unix:{path}")
            except (OSError, RuntimeError) as error:  # the second is gRPC's own
                raise SettingsError(f"{path} cannot be listened on: {error}") from error
        server.start()
        self._server = server

    def stop(self) -> None:
        """Close both sockets."""
        if self._server is not None:
            self._server.stop(grace=1.0).wait(5.0)

    def _info(self, request: pb.Empty) -> pb.PluginInfo:
        del request
        return pb.PluginInfo(
            type="DRAPlugin",
            name=self._driver,
            endpoint=str(self.socket),
            supported_versions=["v1.DRAPlugin"],
        )

    def _prepare(self, request: pb.ClaimsRequest) -> pb.PrepareResponse:
        answer = pb.PrepareResponse()
        for claim in request.claims:
            result = answer.claims[claim.uid]
            ref = ClaimRef(claim.namespace, claim.name, claim.uid)
            try:
                devices = self._preparer.prepare(ref)
            except GpuShareError as error:
                log.warning(Line("not prepared", claim=ref, error=error))
                result.error = f"{_SAYS}{error}"
                continue
            for device in devices:
                result.devices.add(
                    request_names=[device.request],
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi,
                    share_id=device.share,
                )
        return answer

    def _unprepare(self, request: pb.ClaimsRequest) -> pb.UnprepareResponse:
        answer = pb.UnprepareResponse()
        for claim in request.claims:
            result = answer.claims[claim.uid]
            ref = ClaimRef(claim.namespace, claim.name, claim.uid)
            try:
                self._preparer.unprepare(ref)
            except GpuShareError as error:
                log.warning(Line("not unprepared", claim=ref, error=error))
                result.error = f"{_SAYS}{error}"
        return answer


def _log_registration(status: pb.RegistrationStatus) -> pb.Empty:
    if status.plugin_registered:
        log.info("the kubelet has registered us")
    else:
        log.error(Line("the kubelet has not registered us", error=status.error))
    return pb.Empty()


def _unary(
    call: Callable[[Any], Message], request: type[Message]
) -> "grpc.RpcMethodHandler[Any, Any]":
    return grpc.unary_unary_rpc_method_handler(
        lambda message, _: call(message),
        request.FromString,
        lambda message: message.SerializeToString(),
    )
