import http.server
import socket
import sys

import pytest

from gpushare_localcluster.demo.processes import free_port


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody can keep a port free")
def test_a_free_port_is_given_to_nobody_else_and_can_be_listened_on() -> None:
    port = free_port()
    with socket.socket() as second, pytest.raises(OSError, match="in use"):
        second.bind(("127.0.0.1", port))
    address = "127.0.0.1", port
    with http.server.HTTPServer(address, http.server.BaseHTTPRequestHandler):
        socket.create_connection(address).close()
