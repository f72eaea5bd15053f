"""Which clusters the scheduling suite runs on: ours, or (by `make e2e`) those of real parts."""

from collections.abc import Iterator

import pytest

from tests.contract.apiserver.conftest import SERVER
from tests.contract.scheduling.clusters import KINDS, Cluster

_CHOSEN = ["small"] if SERVER == "localcluster" else ["real", "mixed"]


@pytest.fixture(scope="module", params=_CHOSEN)
def shared_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with KINDS[request.param](tmp_path_factory.mktemp(request.param)) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """A cluster without nodes and pods."""
    yield shared_cluster
    shared_cluster.runner.clean()
    _ = shared_cluster.shown  # output of the clean-up does not belong to the next scenario
