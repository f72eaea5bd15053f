"""A real etcd and kube-apiserver: TLS, RBAC, a token and a kubeconfig for each user.

Knows the flags and the built-in users. Tests apply other rights as manifests. The API server is
always killed, since a graceful end takes 20 s.
"""

import contextlib
import http.client
import secrets
import ssl
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from tests.contract.apiserver.client import Api
from tests.e2e.objects import Objects
from tests.e2e.processes import Process
from tests.integration.process import free_port

ADMIN, SCHEDULER, EXTENDER = "admin", "system:kube-scheduler", "gpushare-extender"
CONTROLLERS = "system:kube-controller-manager"
NODE = "gpu-node"
"""The node of the kubelet."""
KUBELET = f"system:node:{NODE}"
_GROUPS = {
    ADMIN: "system:masters",
    SCHEDULER: "",
    CONTROLLERS: "",
    KUBELET: "system:nodes",
    EXTENDER: "",
}
"""Users and their groups; groups that begin with system: have rights from the start.

The extender's user is for the wiring with a certificate; other wirings use an account.
"""

_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: plane, cluster: {{server: "{url}", certificate-authority: "{ca}"}}}}]
users: [{{name: user, user: {{token: "{token}"}}}}]
contexts: [{{name: plane, context: {{cluster: plane, user: user}}}}]
current-context: plane
"""


class Plane:
    """A running etcd and kube-apiserver; `url` stays the same when the API server is restarted."""

    def __init__(
        self,
        folder: Path,
        etcd: Path,
        apiserver: Path,
        flags: Sequence[str] = (),
        etcd_flags: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self._flags, self._etcd_flags = flags, etcd_flags
        self._etcd_program, self._apiserver_program = etcd, apiserver
        self._tokens = {user: secrets.token_hex(16) for user in _GROUPS}
        self._etcd_port, self._peer_port, self._port = free_port(), free_port(), free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        self.ca = folder / "certs" / "apiserver.crt"
        (folder / "tokens.csv").write_text(
            "".join(
                f'{token},{user},{number},"{_GROUPS[user]}"\n'
                for number, (user, token) in enumerate(self._tokens.items())
            )
        )
        (folder / "accounts.key").write_text(signing_key())
        self.etcd: Process | None = None
        self.apiserver: Process | None = None

    def start(self) -> None:
        """Wait until the API server is ready; fail with the last lines of the process that ended or
        hangs.
        """
        place, peers = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        command: list[str | Path] = [
            self._etcd_program,
            *("--name", "etcd", "--data-dir", self.folder / "etcd", "--unsafe-no-fsync"),
            *("--listen-client-urls", place, "--advertise-client-urls", place),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"etcd={peers}", "--log-level", "warn"),
            *self._etcd_flags,
        ]
        self.etcd = Process("etcd", command, self.folder)
        self.start_apiserver()

    def start_apiserver(self) -> None:
        """Start the API server, on the same port and certificate when it is started again."""
        key = self.folder / "accounts.key"
        command: list[str | Path] = [
            self._apiserver_program,
            *("--etcd-servers", f"http://127.0.0.1:{self._etcd_port}"),
            *("--bind-address", "127.0.0.1", "--secure-port", str(self._port)),
            *("--cert-dir", self.folder / "certs", "--token-auth-file", self.folder / "tokens.csv"),
            *("--service-account-issuer", self.url),
            *("--service-account-key-file", key, "--service-account-signing-key-file", key),
            *("--service-cluster-ip-range", "10.0.0.0/24", "--authorization-mode", "Node,RBAC"),
            # Nobody makes default service accounts here, nor untaints nodes that are made by hand.
            *("--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition"),
            *("--max-requests-inflight", "3000", "--max-mutating-requests-inflight", "1000"),
            *self._flags,
        ]
        self.apiserver = Process("kube-apiserver", command, self.folder)
        self.apiserver.wait(self._ready, "is not ready")

    def kill_apiserver(self) -> None:
        if self.apiserver:
            self.apiserver.kill()

    def start_controllers(self, program: Path, *names: str) -> Process:
        """Start a kube-controller-manager with these controllers alone; the caller ends it."""
        file = self.kubeconfig(CONTROLLERS)
        command: list[str | Path] = [
            *(program, "--kubeconfig", file, "--authentication-kubeconfig", file),
            *("--authorization-kubeconfig", file, "--controllers", ",".join(names)),
            # Each acts as its own account, which RBAC knows from the start.
            *("--use-service-account-credentials", "--leader-elect=false", "--secure-port", "0"),
        ]
        return Process("kube-controller-manager", command, self.folder)

    def stop(self) -> None:
        self.kill_apiserver()
        if self.etcd:
            self.etcd.kill()

    def api(self, token: str = "") -> Api:
        """A client; the administrator's where no token is given."""
        return Api(self.url, token=token or self.token(ADMIN), ca=str(self.ca))

    def token(self, user: str) -> str:
        """The token of a user of this plane."""
        return self._tokens[user]

    def objects(self) -> Objects:
        """The objects of the cluster, as administrator."""
        return Objects(self.api())

    def version(self) -> str:
        """The version of the API server: `1.37.0`."""
        return str(self.api().get("/version").body["gitVersion"]).removeprefix("v")

    def kubeconfig(self, user: str, token: str = "") -> Path:
        """The file of a kubeconfig; `token` is for users that the plane does not know by itself."""
        file = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        token = token or self.token(user)
        file.write_text(_KUBECONFIG.format(url=self.url, ca=self.ca, token=token))
        return file

    def _ready(self) -> bool:
        """Whether the API server is ready, with the built-in namespaces."""
        assert self.etcd, "started"
        self.etcd.running()
        with contextlib.suppress(OSError, ssl.SSLError, http.client.HTTPException):
            api = self.api()
            namespaces = [f"/api/v1/namespaces/{name}" for name in ("default", "kube-system")]
            return all(api.get(path).status == 200 for path in ("/readyz", *namespaces))
        return False


def signing_key() -> str:
    """PEM of a new P-256 private key, for signing the tokens of service accounts.

    RFC 5915 lets the public half be left out, so a key is a random number with a head and a tail.
    """
    number = bytes([secrets.randbelow(255)]) + secrets.token_bytes(31)  # below the curve's order
    head, curve = bytes.fromhex("30310201010420"), bytes.fromhex("a00a06082a8648ce3d030107")
    text = b64encode(head + number + curve).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{text}\n-----END EC PRIVATE KEY-----\n"
