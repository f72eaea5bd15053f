"""`python -m gpushare_localcluster.devices.plugins KUBECONFIG FOLDER PARENT`: device plug-ins.

The real device plug-ins of all nodes in one process, since a process per node would take 80 MiB
each. A node is a folder with a file `node` (see nodes.py); after the removal of the file the device
plug-in ends. Runs until a signal, or until PARENT is no longer the parent process.

Tested in `tests/integration/test_demo_devices.py`.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from gpushare.device_plugin.options import read_options
from gpushare.device_plugin.plugin import DevicePlugin
from gpushare.errors import GpuShareError
from gpushare_localcluster.devices.nodes import DEVICES_FILE, NODE_FILE, UNIT

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05


def main(argv: Sequence[str]) -> None:
    """Start and stop device plug-ins as folders come and go."""
    kubeconfig, folder, parent = argv
    logging.basicConfig(level=logging.INFO)
    running: dict[Path, DevicePlugin | None] = {}
    while os.getppid() == int(parent):
        node_files = set(Path(folder).glob(f"*/{NODE_FILE}"))
        for path in node_files - running.keys():
            running[path] = _started(path, kubeconfig)
        for path in running.keys() - node_files:
            plugin = running.pop(path)
            if plugin is not None:
                threading.Thread(target=_stop, args=(plugin,)).start()
        time.sleep(_LOOK_SECONDS)


def _started(path: Path, kubeconfig: str) -> DevicePlugin | None:
    """Return the device plug-in of a node, None after an error in the log."""
    folder, name = path.parent, path.read_text(encoding="utf-8")
    words = [
        *("--node-name", name, "--kubeconfig", kubeconfig, "--memory-unit", UNIT),
        *("--devices-file", str(folder / DEVICES_FILE)),
        *("--device-plugin-dir", str(folder / "plugins")),
        *("--pod-resources-socket", str(folder / "pr.sock"), "--pods-api-socket", ""),
        *("--health-port", "0", "--isolation", "driver"),
    ]
    try:
        plugin = DevicePlugin(read_options(words, {}), "127.0.0.1")
        plugin.start()
    except (GpuShareError, OSError):
        log.exception("no device plug-in node=%s", name)
        return None
    return plugin


def _stop(plugin: DevicePlugin) -> None:
    plugin.stop()
    log.info("device plug-in ended node=%s", plugin.node_name)


if __name__ == "__main__":
    main(sys.argv[1:])
