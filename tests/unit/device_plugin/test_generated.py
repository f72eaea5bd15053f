"""The generated messages are those of the definitions beside them."""

from pathlib import Path

import pytest

from tests.unit.device_plugin.generate import MADE, ROOT, generate


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of grpcio-tools' own imports
def test_the_messages_are_made_of_the_definitions(tmp_path: Path) -> None:
    generate(tmp_path)
    for file in MADE:
        assert (tmp_path / file).read_text() == (ROOT / file).read_text(), (
            "run `python -m tests.unit.device_plugin.generate`"
        )
