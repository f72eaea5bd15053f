"""The annotation about how devices are handed over: read as written, or refused."""

from dataclasses import replace

import pytest

from gpushare.errors import AnnotationError
from gpushare.wire.device_list import DeviceList, decode_device_list, encode_device_list


def test_the_annotation_reads_as_it_was_written() -> None:
    for item in (DeviceList("cdi-cri", "a reason"), DeviceList("envvar", "x" * 600, "a problem")):
        decoded = decode_device_list(encode_device_list(item))
        assert decoded == replace(item, reason=item.reason[:512])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"strategy":1}', "x" * 5000, '{"strategy":""}'])
def test_an_annotation_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(AnnotationError):
        decode_device_list(text)
