"""Control planes for the tests: one with a scheduler and an extender that most share, one without.

Every test here needs Kubernetes' own programs, and is skipped where there are none.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e import given_table
from tests.e2e.binaries import needed
from tests.e2e.claims import ClaimWorld
from tests.e2e.cluster import Cluster
from tests.e2e.node import Node
from tests.e2e.pair import Access, Pair
from tests.e2e.plane import Plane
from tests.e2e.plugins import Plugin
from tests.e2e.world import World

MakePlane = Callable[..., Plane]
"""The arguments are flags of the API server."""
MakeWorld = Callable[..., World]
"""The arguments are World's, without plane and folder."""
MakePair = Callable[..., Pair]
"""The arguments are Pair's, without the folder."""
MakeCluster = Callable[..., Cluster]
"""The arguments are the kind of the device plug-in, and `pairing` of the extender."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/e2e/" in item.path.as_posix():
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def make_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakePlane]:
    """Starts control planes; all are ended."""
    started: list[Plane] = []

    def make(*flags: str) -> Plane:
        folder = tmp_path_factory.mktemp("plane")
        started.append(Plane(folder, needed("etcd"), needed("kube-apiserver"), flags))
        started[-1].start()
        return started[-1]

    yield make
    for plane in started:
        plane.stop()


@pytest.fixture(scope="session")
def claim_world(
    make_plane: MakePlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClaimWorld]:
    """kube-scheduler and claims on a separate plane, which each test leaves empty."""
    world = ClaimWorld(make_plane(), tmp_path_factory.mktemp("claims"))
    yield world
    world.stop()


@pytest.fixture(scope="session")
def shared_world(
    make_plane: MakePlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    world = World(make_plane(), tmp_path_factory.mktemp("world"))
    try:
        world.start()
        assert "orbidden" not in world.extender.log, world.extender.log
        yield world
    finally:
        world.stop()


@pytest.fixture
def world(shared_world: World) -> Iterator[World]:
    """The newest kube-scheduler and our extender on an empty cluster; audited after the test."""
    # Any right that was missed is in the log, whether the test felt it or not.
    yield from _audited(shared_world, ("Traceback", "orbidden"))


@pytest.fixture
def harsh_world(shared_world: World) -> Iterator[World]:
    """The same for a test that kills the API server.

    A new API server answers before it has read the rights, and forbids everything.
    """
    yield from _audited(shared_world, ("Traceback",))


def _audited(world: World, unwanted: tuple[str, ...]) -> Iterator[World]:
    """The world; after the test the books must agree with the objects, then all objects are
    deleted.
    """
    begin = len(world.extender.log)
    yield world
    try:
        world.agrees()
        log = world.extender.log[begin:]
        assert not [word for word in unwanted if word in log], log
    finally:
        world.objects.clear()
        world.agrees()


@pytest.fixture(scope="session")
def shared_plane(make_plane: MakePlane) -> Plane:
    """A control plane without schedulers, except those that a test starts."""
    return make_plane()


@pytest.fixture
def plane(shared_plane: Plane) -> Iterator[Plane]:
    """The same, emptied after the test."""
    yield shared_plane
    shared_plane.objects().clear()


@pytest.fixture
def make_world(plane: Plane, tmp_path: Path) -> Iterator[MakeWorld]:
    """Puts together worlds of other kinds, one after another; all are ended."""
    created: list[World] = []

    def make(**options: object) -> World:
        options = {"flags": ("--leadership", "off"), **options}
        folder = tmp_path / f"world-{len(created)}"
        created.append(World(plane, folder, **options))  # type: ignore[arg-type]  # passed on
        return created[-1]

    yield make
    for world in created:
        world.stop()


@pytest.fixture
def make_pair(tmp_path: Path) -> Iterator[MakePair]:
    """Puts together pairs that elect a leader; all are ended."""
    created: list[Pair] = []

    def make(text: str, access: Access, **options: object) -> Pair:
        folder = tmp_path / f"pair-{len(created)}"
        options = {"scheduler_flags": (), **options}
        created.append(Pair(folder, text, access, **options))  # type: ignore[arg-type]  # passed on
        return created[-1]

    yield make
    for pair in created:
        pair.stop()


@pytest.fixture
def make_cluster(
    make_world: MakeWorld, plane: Plane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeCluster]:
    """Start a cluster with a real node; at the end the devices of containers are counted."""
    created: list[Cluster] = []

    def make(kind: type[Plugin], pairing: str = "auto") -> Cluster:
        folder = tmp_path_factory.mktemp("n")  # socket paths must be short
        node = Node(plane, folder / "node")
        flags = ("--leadership", "off", "--policy", "spread", "--pairing", pairing)
        plugin = kind(plane, node, folder / "plugin")
        created.append(Cluster(make_world(flags=flags), node, plugin, pairing))
        created[-1].start()
        return created[-1]

    yield make
    for cluster in created:
        cluster.stop()
        assert "Traceback" not in cluster.plugin.log, cluster.plugin.log
        name, pods, error = cluster.plugin.name, len(cluster.pods), len(cluster.refused())
        given_table.record(name, cluster.pairing, pods, cluster.given(), error)
