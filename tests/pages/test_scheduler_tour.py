"""docs/scheduler-tour.md: each stage runs as shown there, and so do the sample plug-ins."""

import re
import tomllib
from pathlib import Path

import pytest

from gpushare.errors import SettingsError
from gpushare.wire.scheduler.profiles import PluginSet, Profile
from gpushare_localcluster.demo.scenario import Stage, stages
from gpushare_localcluster.main import main
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.profiles import GROUP, build_frameworks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/scheduler-tour.md").read_text(encoding="utf-8")
SAMPLES = ROOT / "docs/samples/scheduler-plugins"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples, as pip leaves an editable installation."""
    project = tomllib.loads((SAMPLES / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = tmp_path / "sample_scheduler_plugins-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = (f"{name} = {place}" for name, place in project["entry-points"][GROUP].items())
    (info / "entry_points.txt").write_text("\n".join((f"[{GROUP}]", *lines, "")))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(SAMPLES)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("stage", stages(), ids=lambda stage: str(stage.name))
def test_a_stage_runs_as_the_tour_shows_it(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    number = stage.name.partition("-")[0]
    (block,) = re.findall(rf"^\$ gpushare demo --stage {number}\n(.*?)^```", PAGE, re.M | re.S)
    promised = {line.strip() for line in block.splitlines()} - {"..."}
    assert promised
    assert main(["--stage", number]) == 0
    printed = {line.strip() for line in capsys.readouterr().out.splitlines()}
    assert promised - printed == set()


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("installed")
def test_the_samples_are_found_by_their_entry_points_and_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = f"gpushare demo --trace --scheduler-config {SAMPLES.relative_to(ROOT)}/scheduler.yaml"
    assert command in " ".join(PAGE.replace("\\\n", " ").split())
    files = [str(SAMPLES / name) for name in ("scheduler.yaml", "scenario.yaml")]
    assert main(["--trace", "--scheduler-config", *files]) == 0
    assert "rejected due to timeout after waiting 1s at plugin Gang" in capsys.readouterr().out


@pytest.mark.usefixtures("installed")
def test_a_sample_refuses_arguments_that_make_no_sense() -> None:
    on = {"multiPoint": PluginSet(enabled=(("Gang", 0),))}
    profile = Profile(plugins=on, args={"Gang": {"waitSeconds": "long"}})
    with pytest.raises(SettingsError, match=r"Gang.*waitSeconds: 'long' is no whole"):
        build_frameworks((profile,), Handle())


def test_the_code_that_the_tour_shows_is_in_the_samples() -> None:
    sources = [file.read_text(encoding="utf-8") for file in SAMPLES.iterdir() if file.is_file()]
    displayed = re.findall(r"^```(?:python|toml)\n(.*?)^```", PAGE, re.M | re.S)
    assert len(displayed) == 2
    assert all(any(block in source for source in sources) for block in displayed)


@pytest.mark.parametrize("words", [["--stage", "1", "binpack"], ["--stage", "9"]])
def test_a_stage_with_a_scenario_and_one_that_there_is_not_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert re.search(r"leave yours out|no stage is called '9'", capsys.readouterr().err)


_GANG = """\
title: Three pods of 10 GiB on two devices of 16, and then two
nodes:
  - {name: gpu-a, gpus: 2, gpuMemory: 16}
steps:
  - apply:
      name: train
      gpuMem: 10
      replicas: 3
      schedulerName: gang
      labels:
        scheduling.x-k8s.io/pod-group: train
        pod-group.scheduling.sigs.k8s.io/min-available: "3"
  - waitFor: {pods: train-*, is: pending}
  - pause: 2
  - expect: {bound: 0, pods: train-*}
  - apply:
      name: small
      gpuMem: 10
      replicas: 2
      schedulerName: gang
      labels:
        scheduling.x-k8s.io/pod-group: small
        pod-group.scheduling.sigs.k8s.io/min-available: "2"
  - waitFor: {pods: small-*, is: bound}
  - expect: {bound: 0, pods: train-*}
"""


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("installed")
def test_a_gang_that_the_devices_have_no_room_for_is_not_bound_at_all(tmp_path: Path) -> None:
    scenario = tmp_path / "gang.yaml"
    scenario.write_text(_GANG)
    file = str(SAMPLES / "scheduler.yaml")
    assert main(["--scheduler-config", file, str(scenario)]) == 0
