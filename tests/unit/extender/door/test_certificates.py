"""The TLS context of the listener: one for all, until its files change."""

import os
from pathlib import Path

import pytest

from gpushare.errors import SettingsError
from gpushare.extender.door.certificates import Certificates
from tests.integration.certificates import make_pki


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    make_pki(folder)
    return folder


@pytest.fixture
def mounted(pki: Path, tmp_path: Path) -> Path:
    """A folder as a Secret is mounted: the files are reached by a link that changes."""
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        for name in ("server.crt", "server.key", "ca.crt"):
            (tmp_path / version / name).write_bytes((pki / name).read_bytes())
    (tmp_path / "now").symlink_to("one")
    return tmp_path / "now"


def reading(folder: Path) -> Certificates:
    certificate, key, authority = folder / "server.crt", folder / "server.key", folder / "ca.crt"
    return Certificates(str(certificate), str(key), str(authority))


def test_the_same_context_serves_until_a_file_changes(mounted: Path) -> None:
    certificates = reading(mounted)
    first = certificates.context()
    assert all(certificates.context() is first for _ in range(500))
    assert certificates.loads == 1


def test_a_mount_that_turns_to_another_version_is_seen(mounted: Path) -> None:
    certificates = reading(mounted)
    first = certificates.context()
    (mounted.parent / "next").symlink_to("two")
    (mounted.parent / "next").replace(mounted)
    assert certificates.context() is not first


@pytest.mark.parametrize("file", ["server.crt", "server.key", "ca.crt"])
def test_a_file_written_anew_is_seen_though_it_is_as_long(mounted: Path, file: str) -> None:
    certificates = reading(mounted)
    first = certificates.context()
    os.utime(mounted / file, ns=(1, 1))
    assert certificates.context() is not first


@pytest.mark.parametrize("file", ["server.crt", "server.key", "ca.crt"])
def test_files_that_make_no_context_leave_the_last_one_and_are_told_once(
    mounted: Path, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    certificates, good = reading(mounted), (mounted / file).read_bytes()
    first = certificates.context()
    for bad in (b"", None):
        (mounted / file).unlink() if bad is None else (mounted / file).write_bytes(bad)
        caplog.clear()
        assert all(certificates.context() is first for _ in range(5))
        assert caplog.text.count("certificates cannot be read") == 1
        assert file in caplog.text
    (mounted / file).write_bytes(good)
    assert certificates.context() is not first


def test_at_the_start_files_that_make_no_context_are_an_error(mounted: Path) -> None:
    (mounted / "server.key").write_text("")
    with pytest.raises(SettingsError, match=r"tls-key: .*server\.key"):
        reading(mounted).context()
