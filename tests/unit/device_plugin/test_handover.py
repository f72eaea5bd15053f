"""The way that a node hands devices over follows from the node's files, and is explained."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.device_plugin.handover import (
    CdiDevices,
    Handover,
    Setup,
    Toolkit,
    choose,
    read_cdi,
    read_toolkit,
)
from gpushare.errors import SettingsError
from gpushare.wire.device_list import DeviceList

GPUS = ("GPU-a", "GPU-b")
CDI = CdiDevices(frozenset({*GPUS, "0", "1", "all"}), "/var/run/cdi/nvidia.yaml", has_limits=True)
NEW = Setup("auto", cdi=CDI, runtime="containerd://2.1.4-k3s1", kubelet="v1.34.1+k3s1")
PLAIN = Toolkit("/etc/config.toml")
MOUNTS = replace(PLAIN, accepts_variable=False, accepts_mounts=True)
CLOSED = replace(PLAIN, accepts_variable=False)


def chosen(setting: str = "auto", **changes: Any) -> DeviceList:
    return choose(replace(NEW, setting=setting, **changes), GPUS)


def test_cdi_is_taken_where_a_file_names_all_gpus_and_the_runtime_takes_it() -> None:
    assert chosen() == DeviceList(
        "cdi-cri",
        "/var/run/cdi/nvidia.yaml names all GPUs, and containerd://2.1.4-k3s1 takes CDI devices",
    )
    assert chosen(toolkit=CLOSED).strategy == "cdi-cri"
    assert chosen(runtime="cri-o://1.34.1").strategy == "cdi-cri"
    assert chosen(kubelet="v1.28.9").strategy == "cdi-annotations"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"runtime": ""}, "the container runtime is not known yet"),
        ({"runtime": "containerd://1.7.27"}, "containerd://1.7.27 takes no CDI devices unless"),
        ({"runtime": "docker://29.0.1"}, "docker://29.0.1 takes no CDI devices unless"),
        ({"cdi": CdiDevices()}, "no CDI file names devices of nvidia.com/gpu"),
        (
            {"cdi": replace(CDI, names=frozenset({"GPU-a", "0", "1"}))},
            "no CDI file names nvidia.com/gpu=GPU-b",
        ),
    ],
)
def test_else_it_is_as_the_toolkit_accepts(changes: dict[str, Any], reason: str) -> None:
    for toolkit, strategy in ((PLAIN, "envvar"), (MOUNTS, "volume-mounts")):
        choice = chosen(toolkit=toolkit, **changes)
        assert (choice.strategy, choice.problem) == (strategy, "")
        assert reason in choice.reason
        assert "/etc/config.toml accepts" in choice.reason
    # Without a known configuration both are set: the runtime takes one.
    assert chosen(toolkit=None, **changes).strategy == "volume-mounts"


def test_devices_of_a_file_are_named_by_the_variable() -> None:
    assert chosen(by_nvml=False) == DeviceList("envvar", "devices of a file have no driver")
    assert chosen("cdi-cri", by_nvml=False).strategy == "cdi-cri"


def test_where_nothing_works_that_is_said() -> None:
    refuses = "/etc/config.toml refuses the variable NVIDIA_VISIBLE_DEVICES of unprivileged pods"
    choice = chosen(toolkit=CLOSED, runtime="containerd://1.7.27", cdi=CdiDevices())
    assert (choice.strategy, choice.problem) == ("envvar", refuses)
    # The runtime may have been set up to take CDI devices, which nothing here shows.
    choice = chosen(toolkit=CLOSED, runtime="containerd://1.7.27")
    assert choice == DeviceList(
        "cdi-cri", refuses, "containerd://1.7.27 takes no CDI devices unless it is set up to"
    )


def test_a_file_without_limits_is_not_taken_where_the_driver_is_to_limit_memory() -> None:
    old = replace(CDI, has_limits=False)
    assert chosen(cdi=old).strategy == "cdi-cri"
    choice = chosen(cdi=old, needs_limits=True, toolkit=PLAIN)
    assert choice.strategy == "envvar"
    assert "nvidia.yaml has no hook apply-cuda-memory-limits" in choice.reason


@pytest.mark.parametrize(
    ("expected", "changes", "problem"),
    [
        ("envvar", {"toolkit": PLAIN}, ""),
        ("envvar", {"toolkit": None}, ""),
        ("envvar", {"toolkit": CLOSED}, "refuses the variable NVIDIA_VISIBLE_DEVICES"),
        ("volume-mounts", {"toolkit": MOUNTS}, ""),
        ("volume-mounts", {"toolkit": PLAIN}, ""),
        ("volume-mounts", {"toolkit": CLOSED}, "refuses the variable and volume mounts"),
        ("cdi-cri", {}, ""),
        ("cdi-cri", {"cdi": CdiDevices()}, "no CDI file names devices of nvidia.com/gpu"),
        ("cdi-cri", {"kubelet": "v1.27.4"}, "kubelet v1.27.4 passes no CDI devices on"),
        ("cdi-annotations", {"kubelet": "v1.27.4"}, ""),
        ("cdi-annotations", {"cdi": CdiDevices()}, "no CDI file names"),
    ],
)
def test_a_strategy_that_is_set_is_kept_and_its_problem_told(
    expected: str, changes: dict[str, Any], problem: str
) -> None:
    choice = chosen(expected, **changes)
    assert choice.strategy == expected
    assert choice.problem.startswith(problem) if not problem else problem in choice.problem
    assert bool(choice.problem) == bool(problem)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "accepts"),
    [
        ("", (True, False)),
        ("#accept-nvidia-visible-devices-envvar-when-unprivileged = false\n", (True, False)),
        (
            "accept-nvidia-visible-devices-as-volume-mounts = true\n"
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n",
            (False, True),
        ),
    ],
)
def test_the_toolkits_configuration_is_read(
    tmp_path: Path, text: str, accepts: tuple[bool, bool]
) -> None:
    write(tmp_path / "etc/nvidia-container-runtime/config.toml", text)
    choice = read_toolkit(tmp_path)
    assert choice is not None
    assert (choice.accepts_variable, choice.accepts_mounts) == accepts


def test_a_configuration_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert read_toolkit(tmp_path) is None
    file = write(tmp_path / "etc/nvidia-container-runtime/config.toml", "a = [")
    assert read_toolkit(tmp_path) is None
    operator = "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
    write(tmp_path / operator, "")
    assert read_toolkit(tmp_path) == Toolkit(str(tmp_path / operator))
    file.unlink()


SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "GPU-a", "containerEdits": {}}, {"name": "GPU-b"}],
}


def test_cdi_files_are_read_as_yaml_and_as_json(tmp_path: Path) -> None:
    yaml = 'kind: nvidia.com/gpu\ndevices:\n- name: GPU-a\n- name: "0"\n'
    assert read_cdi(write(tmp_path / "a.yaml", yaml), "nvidia.com/gpu").names == {"GPU-a", "0"}
    file = write(tmp_path / "a.json", json.dumps(SPEC))
    assert read_cdi(file, "nvidia.com/gpu").names == {"GPU-a", "GPU-b"}
    assert read_cdi(file, "other.com/gpu").names == frozenset()
    with pytest.raises(SettingsError):
        read_cdi(write(tmp_path / "b.yaml", "kind: nvidia.com/gpu: ["), "nvidia.com/gpu")


def test_what_changes_on_the_node_changes_the_choice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    way = Handover(Setup("auto"), tmp_path, passes_nodes=True)
    assert way.look(GPUS).strategy == "volume-mounts"
    assert way.control_nodes is not None
    file = write(tmp_path / "var/run/cdi/nvidia.json", json.dumps(SPEC))
    write(tmp_path / "etc/cdi/broken.yaml", "nvidia.com/gpu: [")
    assert way.look(GPUS).strategy == "volume-mounts"  # the runtime is not known
    assert way.look(GPUS, "containerd://2.0.5", "v1.33.1").strategy == "cdi-cri"
    assert way.control_nodes is None
    assert way.look(GPUS).strategy == "cdi-cri"
    file.write_text(json.dumps({**SPEC, "devices": []}))
    assert way.look(GPUS).strategy == "volume-mounts"
    text = [record.getMessage() for record in caplog.records]
    assert sum("devices are handed over" in line for line in text) == 3
    assert sum("CDI file not read" in line for line in text) == 1
