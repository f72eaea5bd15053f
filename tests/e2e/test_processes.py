"""A control plane that does not start: the process that failed is named, with its last lines."""

from pathlib import Path

import pytest

from tests.e2e.binaries import needed
from tests.e2e.plane import Plane


def failing(folder: Path, name: str) -> Path:
    """A program that says why, and ends."""
    program = folder / name
    program.write_text(f"#!/bin/sh\necho {name} lacks a flag\nexit 3\n")
    program.chmod(0o755)
    return program


def test_an_api_server_that_ends_is_named_with_its_last_lines(tmp_path: Path) -> None:
    plane = Plane(tmp_path, needed("etcd"), failing(tmp_path, "broken-apiserver"))
    try:
        with pytest.raises(
            AssertionError, match=r"kube-apiserver has ended \(3\):\n.*lacks a flag"
        ):
            plane.start()
    finally:
        plane.stop()


def test_an_etcd_that_ends_is_named_though_it_is_the_api_server_that_waits(tmp_path: Path) -> None:
    plane = Plane(tmp_path, failing(tmp_path, "broken-etcd"), needed("kube-apiserver"))
    try:
        with pytest.raises(AssertionError, match=r"etcd has ended \(3\):\n.*lacks a flag"):
            plane.start()
    finally:
        plane.stop()
