"""Control planes for the tests: one that most of them share, others on request.

Every test here needs Kubernetes' own programs, and is skipped where there are none.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.e2e.binaries import needed
from tests.e2e.plane import Plane
from tests.e2e.processes import until
from tests.e2e.world import World

MakePlane = Callable[[], Plane]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/e2e/" in item.path.as_posix():
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def make_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakePlane]:
    """Starts control planes; all are ended."""
    started: list[Plane] = []

    def make() -> Plane:
        folder = tmp_path_factory.mktemp("plane")
        started.append(Plane(folder, needed("etcd"), needed("kube-apiserver")))
        started[-1].start()
        return started[-1]

    yield make
    for plane in started:
        plane.stop()


@pytest.fixture(scope="session")
def shared_world(make_plane: MakePlane) -> Iterator[World]:
    world = World(make_plane())
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
    """The same for a test that kills the API server: one that has just started forbids everything.

    It answers before it has read who may do what.
    """
    yield from _audited(shared_world, ("Traceback",))


def _audited(world: World, unwanted: tuple[str, ...]) -> Iterator[World]:
    """The world; after the test its books must agree with the objects, and it is emptied."""
    begin = len(world.extender.log)
    yield world
    try:
        agrees(world)
        log = world.extender.log[begin:]
        assert not [word for word in unwanted if word in log], log
    finally:
        world.objects.clear()
        agrees(world)


def agrees(world: World) -> None:
    """Return once the extender's books are what the API server's objects call for."""
    until(
        lambda: world.extender.inspect() == world.objects.inspect(),
        lambda: f"{world.extender.inspect()}\n{world.objects.inspect()}\n{world.told()}",
    )
