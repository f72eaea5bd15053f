"""Fixtures of the tests of the client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.kube.client import KubeClient, connect
from tests.unit.kube.scripted_server import ScriptedServer, scripted_server, write_kubeconfig


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """An API server with answers of the test."""
    with scripted_server() as running:
        yield running


@pytest.fixture
def client(server: ScriptedServer, tmp_path: Path) -> Iterator[KubeClient]:
    """A client of the server, without credentials."""
    new_client = connect(write_kubeconfig(tmp_path / "c", server.url), pool_size=4, user_agent="t")
    yield new_client
    new_client.close()
