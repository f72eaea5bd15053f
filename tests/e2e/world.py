"""A control plane with our extender: installed as by an operator, with the rights of our manifests.

Wires the parts; objects.py has the objects. kube-scheduler and the extender read one file, printed
by `gpushare scheduler-config`.
"""

import ssl
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpushare.wire.kept import LEASE
from tests.contract.apiserver.client import Api
from tests.e2e.binaries import RELEASE, needed
from tests.e2e.pair import Access, Pair, printed
from tests.e2e.plane import ADMIN, SCHEDULER, Plane
from tests.e2e.processes import until

_MANIFESTS = Path(__file__).parents[2] / "config"
_ACCOUNTS = "/api/v1/namespaces/kube-system/serviceaccounts"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
SETTLED = 90.0
"""Seconds until the books agree: more than those after which a bind in doubt is given back."""


class World:
    """A running kube-scheduler `version` and extender on a plane.

    options: of `gpushare scheduler-config`; change: to its output; flags: of `gpushare serve`;
    scheduler_flags: of kube-scheduler. program, tls, extender_prefix: see Pair.
    """

    def __init__(
        self,
        plane: Plane,
        folder: Path,
        *,
        version: str = RELEASE,
        program: Path | None = None,
        options: Sequence[str] = (),
        change: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
        scheduler_flags: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
        extender_prefix: Sequence[str] = (),
    ) -> None:
        self.plane = plane
        self.api: Api = plane.api()
        self.objects = plane.objects()
        apply(plane, "extender/base")
        access = Access(
            plane.version(),
            plane.kubeconfig(SCHEDULER),
            plane.kubeconfig("extender", account_token(self.api)),
        )
        text = printed(version, *options, change=change)
        self.pair = Pair(
            folder,
            text,
            access,
            version=version,
            program=program,
            scheduler_flags=("--leader-elect=false", *scheduler_flags),
            flags=flags,
            tls=tls,
            extender_prefix=extender_prefix,
        )
        self.extender = self.pair.extender

    def start(self) -> None:
        self.pair.start()

    def kill(self) -> None:
        """End both processes, which can be started again."""
        self.pair.kill()

    def stop(self) -> None:
        self.pair.stop()

    def told(self) -> str:
        """The state of the processes for the message of a failed wait."""
        return self.pair.told()

    def agrees(self) -> None:
        """Wait until the extender's books equal the objects of the API server."""
        until(
            lambda: self.extender.inspect() == self.objects.inspect(),
            lambda: f"{self.extender.inspect()}\n{self.objects.inspect()}\n{self.told()}",
            SETTLED,
        )


def apply(plane: Plane, folder: str, verb: str = "apply") -> None:
    """Apply (or delete) a folder of config with a real kubectl."""
    command: list[str | Path] = [needed("kubectl"), "--kubeconfig", plane.kubeconfig(ADMIN)]
    finished = subprocess.run(
        [*command, verb, "-k", _MANIFESTS / folder],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(plane.folder), "PATH": "/usr/bin:/bin"},
    )
    assert finished.returncode == 0, finished.stderr
    # stderr has the deprecations.
    assert finished.stderr == ""


def give_lease_away(api: Api) -> None:
    """Write our Lease as released by a leader, so that the first process leads at once.

    Without a Lease the process would wait for as long as an unknown leader may lead.
    """
    given_away = {"holderIdentity": "", "leaseDurationSeconds": 1}
    api.create(_LEASES, {"metadata": {"name": LEASE}, "spec": given_away})


def account_token(api: Api, account: str = "gpushare-extender", node: str = "") -> str:
    """A token of the account, as for a pod by a kubelet; node: of the pod."""
    bound_pod = {"kind": "Node", "apiVersion": "v1", "name": node} if node else None
    request = {"spec": {"expirationSeconds": 7200, "boundObjectRef": bound_pod}}
    path = f"{_ACCOUNTS}/{account}/token"
    return str(api.create(path, request).body["status"]["token"])
