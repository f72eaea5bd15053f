"""`gpushare scheduler-config` prints the ready-made files, or one line."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpushare.cli.scheduler_config import main
from gpushare.wire.scheduler.files import READY_MADE
from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.store import Store

SHIPPED = Path(__file__).parents[3] / "config" / "scheduler"


def test_the_shipped_files_are_those_that_are_listed() -> None:
    assert {file.name for file in SHIPPED.iterdir()} == set(READY_MADE)


@pytest.mark.parametrize("name", READY_MADE)
def test_a_shipped_file_is_what_the_command_prints(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    release, form, order = READY_MADE[name]
    assert main(["--kubernetes", release, "--form", form, "--order", order]) == 0
    text = capsys.readouterr()
    again = "gpushare scheduler-config --all config/scheduler"
    assert text.out == (SHIPPED / name).read_text(encoding="utf-8"), f"write it anew: {again}"
    assert text.err == ""


@pytest.mark.parametrize("release", ["1.25", "1.27", "1.34.4", "1.37"])
def test_releases_with_one_version_of_the_api_share_one_file(
    release: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--kubernetes", release]) == 0
    assert capsys.readouterr().out == (SHIPPED / "kube-scheduler.yaml").read_text(encoding="utf-8")


def test_all_writes_every_ready_made_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--all", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
    for name in READY_MADE:
        assert (tmp_path / name).read_bytes() == (SHIPPED / name).read_bytes()


def test_address_resources_and_format_are_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--kubernetes", "1.22", "--format", "yaml", "--url", "http://127.0.0.1:7/x"]
    assert main([*words, "--resource", "a.io/b", "a.io/c", "--resource", "a.io/d"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# For kube-scheduler 1.22: --policy-config-file=FILE.")
    (extender,) = yaml.safe_load(text)["extenders"]
    assert extender["urlPrefix"] == "http://127.0.0.1:7/x"
    assert [item["name"] for item in extender["managedResources"]] == ["a.io/b", "a.io/c", "a.io/d"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--kubernetes", "1.21"], "'1.21' is not from 1.22 to 1.37"),
        (["--kubernetes", "1.38"], "try the file of 1.37"),
        (["--kubernetes", "1.30", "--form", "policy"], "reads a Policy up to 1.22 only"),
        (["--kubernetes", "1.30", "--url", "gpu"], "urlPrefix: 'gpu' is not http://"),
        (["--kubernetes", "1.30", "--resource", "gpu"], "'gpu' is no extended resource"),
    ],
)
def test_what_there_is_no_file_for_is_a_wrong_command_line(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    text = capsys.readouterr()
    assert text.out == ""
    first, last = text.err.splitlines()
    assert first.startswith("gpushare scheduler-config: ")
    assert part in first
    assert last == "See 'gpushare scheduler-config --help' for usage."


def test_a_folder_that_cannot_be_written_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--all", "/dev/null/x"]) == 2
    text = capsys.readouterr().err
    assert text.startswith("gpushare scheduler-config: ")
    assert "/dev/null/x" in text
    assert text.count("\n") == 1


@pytest.mark.parametrize("words", [["--order", "theirs"], ["--kubernetes"]])
def test_a_wrong_command_line_ends_with_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[str]]:
    """The options that name a cluster of 1.37."""
    server = ApiServer(Store())
    server.start()
    file = tmp_path / "kubeconfig"
    file.write_text(server.kubeconfig())
    yield ["--kubeconfig", str(file)]
    server.stop()


def test_the_release_is_that_of_the_connected_cluster(
    cluster: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(cluster) == 0
    text = capsys.readouterr()
    assert text.out == (SHIPPED / "kube-scheduler.yaml").read_text(encoding="utf-8")
    assert text.err == "for 1.37, as the cluster is; --kubernetes names another release\n"
    assert main([*cluster, "--kubernetes", "1.23"]) == 0
    assert capsys.readouterr().err == ""


def test_without_a_cluster_the_release_has_to_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--kubeconfig", str(tmp_path / "nowhere")])
    assert end.value.code == 2
    text = capsys.readouterr().err
    assert "--kubernetes is needed" in text
    assert "nowhere" in text
