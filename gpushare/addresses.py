"""Tests of network addresses as text.

Pure, and imports no other module of the package, so that every layer may import this one.
"""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether the name or address is loopback: `localhost` or a loopback address.

    `host` has no port and no brackets. Names are not resolved.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
