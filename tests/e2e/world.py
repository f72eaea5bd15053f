"""A control plane with our extender: installed as an operator does it, under our manifests' rights.

Knows how the parts are put together; what is in the cluster is objects.py's. kube-scheduler and the
extender read one file, and it is the file that `gpushare scheduler-config` prints.
"""

import subprocess
from pathlib import Path

from tests.contract.apiserver.client import Api
from tests.e2e.binaries import RELEASE, needed
from tests.e2e.extender import GPUSHARE, Extender
from tests.e2e.objects import Objects
from tests.e2e.plane import ADMIN, SCHEDULER, Plane
from tests.e2e.processes import Process
from tests.integration.process import free_port

_ROOT = Path(__file__).parents[2]
_MANIFESTS = _ROOT / "config" / "extender" / "base"
_ACCOUNT = "/api/v1/namespaces/kube-system/serviceaccounts/gpushare-extender"
_FIRST_WITHOUT_POLICY = 23


class World:
    """A running kube-scheduler `version` and extender on a plane.

    options: of `gpushare scheduler-config`; flags: of `gpushare serve`.
    """

    def __init__(
        self,
        plane: Plane,
        *,
        version: str = RELEASE,
        options: tuple[str, ...] = (),
        flags: tuple[str, ...] = (),
    ) -> None:
        self.plane = plane
        self.api: Api = plane.api()
        self.objects = Objects(self.api)
        self._version = version
        self._program = needed("kube-scheduler", version)
        self._scheduler_kubeconfig = plane.kubeconfig(SCHEDULER)
        self._folder = plane.folder
        install(plane)
        port = free_port()
        self.file = self._scheduler_file(port, options)
        self.extender = Extender(
            plane.folder,
            port,
            plane.kubeconfig("extender", account_token(self.api)),
            *("--scheduler-config", str(self.file), *flags),
        )
        self.scheduler: Process | None = None

    def start(self) -> None:
        self.extender.start()
        self.scheduler = Process("kube-scheduler", self._scheduler_command(), self._folder)

    def kill(self) -> None:
        """End both processes; they can be started again."""
        if self.scheduler:
            self.scheduler.kill()
        self.extender.kill()

    def stop(self) -> None:
        self.kill()
        self.extender.stop()

    def told(self) -> str:
        """What a failed wait should show of the processes."""
        processes = [each for each in (self.extender.process, self.scheduler) if each]
        return "\n".join(f"{each.name}:\n{each.last_lines()}" for each in processes)

    def _minor(self) -> int:
        return int(self._version.split(".")[1])

    def _scheduler_file(self, port: int, options: tuple[str, ...]) -> Path:
        printed = subprocess.run(
            [
                *(*GPUSHARE, "scheduler-config", "--kubernetes", f"1.{self._minor()}"),
                *("--url", f"http://127.0.0.1:{port}/gpushare-scheduler", *options),
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        file = self._folder / "scheduler-file"
        # The one thing that an operator has to look at.
        home = "/etc/kubernetes/scheduler.conf"
        file.write_text(printed.replace(home, str(self._scheduler_kubeconfig)))
        return file

    def _scheduler_command(self) -> list[str | Path]:
        kubeconfig = self._scheduler_kubeconfig
        always = ("--leader-elect=false", "--secure-port", "0", "-v", "2")
        if self._minor() >= _FIRST_WITHOUT_POLICY:
            return [self._program, "--config", self.file, *always]
        return [
            *(self._program, "--policy-config-file", self.file, "--port", "0", *always),
            *("--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig),
            *("--authorization-kubeconfig", kubeconfig),
            # It would wait for a version of this API that newer API servers no longer serve.
            "--feature-gates=CSIStorageCapacity=false",
        ]


def install(plane: Plane) -> None:
    """Apply what config/extender/base gives the extender: an account and its rights."""
    command: list[str | Path] = [needed("kubectl"), "--kubeconfig", plane.kubeconfig(ADMIN)]
    home = str(plane.folder)
    done = subprocess.run(
        [*command, "apply", "-k", _MANIFESTS],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": home, "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr


def account_token(api: Api) -> str:
    """A token of the extender's account, as a kubelet gets one for a pod."""
    request = {"spec": {"expirationSeconds": 7200}}
    return str(api.create(f"{_ACCOUNT}/token", request).body["status"]["token"])
