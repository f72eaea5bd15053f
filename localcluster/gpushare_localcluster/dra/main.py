"""`gpushare-dra-driver`: the composition root. Options -> the driver -> a signal.

Tested in `localcluster/tests/test_dra_main.py` and, with a real kubelet, in
`tests/e2e/test_dra.py`.
"""

import argparse
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpushare.commandline import Parser
from gpushare.daemon.logs import configure, start_logging
from gpushare.device_plugin.cards import NodeCards, make_cards, unit_mib
from gpushare.device_plugin.devices import FileSource
from gpushare.device_plugin.options import FILE_FORMAT
from gpushare.errors import SettingsError
from gpushare.kube.client import connect
from gpushare.wire.fields import MAX_NAME_LENGTH, NAME
from gpushare_localcluster.dra.preparer import Preparer
from gpushare_localcluster.dra.publisher import Publisher
from gpushare_localcluster.dra.server import DriverServer

log = logging.getLogger("gpushare.dra")

_DRIVER = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_PROGRAM = "gpushare-dra-driver"
_LAST_LINES = 2.0
_EPILOG = """\
exit codes: 0 ended by a signal, 2 an option or the devices file makes no sense (one line on
stderr). docs/local-cluster.md tells how to try it.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal, and return 0; return 2 for a wrong option, named in a line on stderr.

    argv: the options; those of this process by default.
    """
    options = _parser(os.environ).parse_args(argv)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    writer = configure(options.log_level, options.log_format)
    try:
        if NAME.fullmatch(options.node_name) is None:
            raise SettingsError(
                f"node-name: {options.node_name[:80]!r} is no name of a node; in a pod, have"
                " NODE_NAME set from spec.nodeName"
            )
        if _DRIVER.fullmatch(options.driver) is None:
            raise SettingsError(f"driver: {options.driver[:80]!r} is no name of a driver")
        if len(f"{options.node_name}-{options.driver}") > MAX_NAME_LENGTH:
            raise SettingsError("node-name and driver together are too long for a slice's name")
        unit_mib(options.memory_unit)
        source = FileSource(options.devices_file)

        def read() -> NodeCards:
            return make_cards(source.read(), options.memory_unit, 0)

        read()
        client = connect(
            options.kubeconfig or None,
            options.context or None,
            pool_size=4,
            user_agent="gpushare-dra-driver",
        )
        preparer = Preparer(client, options.driver, options.cdi_dir, read)
        server = DriverServer(options.driver, options.kubelet_dir, preparer)
        publisher = Publisher(client, options.driver, options.node_name, read)
        server.start()
    except SettingsError as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 2
    start_logging(writer)
    publisher.start()
    ended.wait()
    log.info("ends by a signal")
    server.stop()
    publisher.stop()
    writer.stop(_LAST_LINES)
    return 0


def _parser(environ: Mapping[str, str]) -> Parser:
    parser = Parser(
        prog=_PROGRAM,
        description="Offer the GPUs of a file as devices of Dynamic Resource Allocation, and tell"
        " each container of a claim its share. For tests and trials: it watches over no health and"
        " enforces nothing by itself.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def add(flag: str, default: object, text: str, **more: object) -> None:
        suffix = " (default: %(default)s)" if default else ""
        parser.add_argument(flag, default=default, help=text + suffix, **more)  # type: ignore[arg-type]  # argparse's own arguments

    node = environ.get("NODE_NAME", "")
    add("--node-name", node, "this node (NODE_NAME)", metavar="NAME")
    add("--driver", "gpu.gpushare.io", "the driver's name in slices and claims", metavar="NAME")
    parser.add_argument(
        "--devices-file",
        required=True,
        metavar="FILE",
        help=f"the GPUs; it is read again every few seconds, and holds {FILE_FORMAT}",
    )
    add(
        "--memory-unit",
        "GiB",
        "by what memory is given out, the same in the whole cluster: GiB, MiB, or a number of MiB"
        " such as 256MiB",
        metavar="UNIT",
    )
    add(
        "--kubelet-dir",
        Path("/var/lib/kubelet"),
        "the kubelet's root directory",
        type=Path,
        metavar="DIR",
    )
    cdi = Path("/var/run/cdi")
    add("--cdi-dir", cdi, "where generated CDI files are read from", type=Path, metavar="DIR")
    add(
        "--kubeconfig",
        environ.get("KUBECONFIG", ""),
        "kubeconfig of the API server; the kubelet's own has the rights (in a pod: the service"
        " account)",
        metavar="FILE",
    )
    add("--context", "", "context of the kubeconfig", metavar="NAME")
    levels = ("debug", "info", "warning", "error")
    add("--log-level", "info", "what is logged", choices=levels)
    add("--log-format", "text", "how it is logged", choices=("text", "json"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
