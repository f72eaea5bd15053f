"""The slice exists and shows the GPUs, even after a deletion or a change by others."""

import json
from collections.abc import Callable

import pytest

from gpushare.device_plugin.cards import NodeCards
from gpushare.errors import ApiConflict, ApiError, SettingsError
from gpushare.wire.codec import Decoded, WatchEvent
from gpushare.wire.dra.objects import RESOURCE_SLICES, ResourceSlice
from gpushare_localcluster.dra.publisher import SLICES, UNHEALTHY, Publisher
from tests.support.claims_api import DRIVER, NODE, ClaimsApi, Json, cards


class Api(ClaimsApi):
    """An API with a watch of slices, which the test advances."""

    path = f"{SLICES}/{NODE}-{DRIVER}"

    def slice(self) -> ResourceSlice:
        return RESOURCE_SLICES.decode(json.dumps(self.objects[self.path]).encode())

    @property
    def spec(self) -> Json:
        result: Json = self.objects[self.path]["spec"]
        return result

    def devices(self) -> list[Json]:
        return list(self.spec["devices"])

    def memory(self) -> list[str]:
        return [device["capacity"]["memory"]["value"] for device in self.devices()]

    def shown(self, publisher: Publisher) -> None:
        publisher.apply(WatchEvent("MODIFIED", self.slice()))


@pytest.fixture
def api() -> Api:
    return Api()


def published(api: Api, old_version: Callable[[], NodeCards] = lambda: cards(80, 24)) -> Publisher:
    publisher = Publisher(api, DRIVER, NODE, old_version)  # type: ignore[arg-type]  # it follows nothing here
    existing = [api.slice()] if api.path in api.objects else []
    publisher.replace([Decoded(existing, "1")], 0.0)
    publisher.step()
    return publisher


def test_a_slice_offers_each_gpu_by_its_memory(api: Api) -> None:
    published(api)
    assert api.spec["nodeName"] == NODE
    assert api.spec["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    assert api.memory() == ["80Gi", "24Gi"]
    assert api.devices()[1] == {
        "name": "gpu-1",
        "attributes": {"uuid": {"string": "GPU-1"}, "productName": {"string": "A100"}},
        "capacity": {
            "memory": {
                "value": "24Gi",
                # A claim gets whole units, or without an amount the whole GPU.
                "requestPolicy": {"default": "24Gi", "validRange": {"min": "1Gi", "step": "1Gi"}},
            }
        },
        "allowMultipleAllocations": True,
    }


def test_nothing_is_written_before_it_is_known_what_is_there(api: Api) -> None:
    Publisher(api, DRIVER, NODE, lambda: cards(80)).step()  # type: ignore[arg-type]  # as above
    assert api.sent == []


def test_a_slice_that_is_as_it_should_be_is_left_alone(api: Api) -> None:
    publisher = published(api, lambda: cards(1024, 24))
    api.shown(publisher)
    publisher.step()
    assert api.sent == [("POST", SLICES)]
    # By a driver that starts again too.
    published(api, lambda: cards(1024, 24))
    assert len(api.sent) == 1


def test_a_slice_that_was_deleted_is_made_again(api: Api) -> None:
    publisher = published(api)
    api.shown(publisher)
    publisher.apply(WatchEvent("DELETED", api.slice()))
    del api.objects[api.path]
    publisher.step()
    assert len(api.devices()) == 2


def test_gpus_that_change_are_told_by_a_new_generation(api: Api) -> None:
    now = cards(80, 24)
    publisher = published(api, lambda: now)
    api.shown(publisher)
    now = cards(80, 24, sick=1)
    publisher.step()
    assert [device.get("taints") for device in api.devices()] == [
        None,
        [{"key": UNHEALTHY, "value": "file", "effect": "NoSchedule"}],
    ]
    api.shown(publisher)
    now = cards(80, 40)
    publisher.step()
    assert api.memory() == ["80Gi", "40Gi"]
    assert api.spec["pool"]["generation"] == 3


def test_what_has_not_been_shown_yet_is_not_written_over(api: Api) -> None:
    now = cards(80)
    publisher = published(api, lambda: now)
    with pytest.raises(ApiConflict):
        publisher.step()
    api.shown(publisher)
    now = cards(40)
    publisher.step()
    now = cards(24)
    with pytest.raises(ApiConflict):
        publisher.step()
    assert api.memory() == ["40Gi"]


def test_slices_of_others_are_none_of_ours(api: Api) -> None:
    publisher = published(api)
    api.shown(publisher)
    second = api.slice()
    assert second.metadata
    second.metadata.name = "other"
    publisher.apply(WatchEvent("DELETED", second))
    publisher.step()
    assert len(api.sent) == 1


def test_without_gpus_or_an_api_server_what_is_there_stays(api: Api) -> None:
    publisher = published(api)
    api.shown(publisher)
    api.down = True
    publisher.step()
    publisher.apply(WatchEvent("DELETED", api.slice()))
    with pytest.raises(ApiError):
        publisher.step()

    def read() -> NodeCards:
        raise SettingsError("devices-file: cannot be read")

    with pytest.raises(SettingsError):
        published(api, read)
    assert len(api.devices()) == 2
