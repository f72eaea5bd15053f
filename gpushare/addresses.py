"""Internet addresses as text: which of them reach this machine alone.

Pure. Knows nothing of the rest of the package, so that every layer may ask.
"""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether the name or address can mean only the machine that uses it.

    `host` has no port and no brackets. Names are not looked up: of them only `localhost` counts.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
