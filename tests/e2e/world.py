"""A control plane with our extender: installed as an operator does it, under our manifests' rights.

Knows how the parts are put together; objects.py has the objects. kube-scheduler and the
extender read one file, and it is the file that `gpushare scheduler-config` prints.
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
"""Seconds until the books agree: more than HOLD, after which a bind in doubt is given back."""


class World:
    """A running kube-scheduler `version` and extender on a plane.

    options: of `gpushare scheduler-config`; change: in its output; flags: of `gpushare serve`;
    scheduler_flags: of kube-scheduler.
    program, tls, extender_prefix: see Pair.
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
        """End both processes; they can be started again."""
        self.pair.kill()

    def stop(self) -> None:
        self.pair.stop()

    def told(self) -> str:
        """The text of the processes that a failed wait shows."""
        return self.pair.told()

    def agrees(self) -> None:
        """Return once the extender's books are as the API server's objects say."""
        until(
            lambda: self.extender.inspect() == self.objects.inspect(),
            lambda: f"{self.extender.inspect()}\n{self.objects.inspect()}\n{self.told()}",
            SETTLED,
        )


def apply(plane: Plane, folder: str, verb: str = "apply") -> None:
    """Apply (or delete) the objects in a folder of config, with a real kubectl."""
    command: list[str | Path] = [needed("kubectl"), "--kubeconfig", plane.kubeconfig(ADMIN)]
    completed = subprocess.run(
        [*command, verb, "-k", _MANIFESTS / folder],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(plane.folder), "PATH": "/usr/bin:/bin"},
    )
    assert completed.returncode == 0, completed.stderr
    # Deprecations are told on stderr.
    assert completed.stderr == ""


def give_lease_away(api: Api) -> None:
    """Leave our Lease as a leader does that ends: the first process leads at once.

    Without a Lease it would wait for as long as a leader may lead who does not know it yet.
    """
    given_away = {"holderIdentity": "", "leaseDurationSeconds": 1}
    api.create(_LEASES, {"metadata": {"name": LEASE}, "spec": given_away})


def account_token(api: Api, account: str = "gpushare-extender", node: str = "") -> str:
    """A token of the account, as a kubelet gets one for a pod; node: on which the pod runs."""
    bound_pod = {"kind": "Node", "apiVersion": "v1", "name": node} if node else None
    request = {"spec": {"expirationSeconds": 7200, "boundObjectRef": bound_pod}}
    path = f"{_ACCOUNTS}/{account}/token"
    return str(api.create(path, request).body["status"]["token"])
