"""`gpushare device-plugin`: the composition root. Options -> the plug-in -> a signal.

Tested in `tests/integration/test_device_plugin.py`.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence

from gpushare.daemon.logs import configure, start_logging
from gpushare.device_plugin.options import read_options
from gpushare.device_plugin.plugin import DevicePlugin
from gpushare.errors import SettingsError

log = logging.getLogger("gpushare.device_plugin")

_LAST_LINES = 2.0
_SWITCH_INTERVAL = 0.001
"""Seconds that a thread may run while other threads wait: the kubelet waits for one of these."""


def main(argv: Sequence[str]) -> int:
    """Serve until a signal. 2: an option is wrong, told in one line on stderr."""
    try:
        options = read_options(argv, os.environ)
        writer = configure(options.log_level, options.log_format)
        plugin = DevicePlugin(options)
    except SettingsError as error:
        print(f"gpushare device-plugin: {error}", file=sys.stderr)
        return 2
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    sys.setswitchinterval(_SWITCH_INTERVAL)
    start_logging(writer)
    plugin.start()
    ended.wait()
    log.info("ends by a signal")
    plugin.stop()
    writer.stop(_LAST_LINES)
    return 0
