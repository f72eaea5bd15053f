"""The metadata of the distribution is true."""

import configparser
from pathlib import Path

from gpushare import __version__
from tests.support.sbom import locked

ROOT = Path(__file__).parents[2]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "localcluster" / "setup.cfg")
FIRST, *OTHERS = SETUP["options"]["install_requires"].strip().split("\n")


def test_its_version_is_that_of_the_gpushare_that_it_needs() -> None:
    assert SETUP["metadata"]["version"] == __version__
    assert f"gpushare[device-plugin] =={__version__}" == FIRST


def test_all_else_that_it_needs_is_locked() -> None:
    lock = locked((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    assert OTHERS
    assert {name.lower() for name in OTHERS} <= {name for name, _ in lock}
