"""Makes gpushare/device_plugin/kubelet_pb2.py (and .pyi) from kubelet.proto.

python -m tests.unit.device_plugin.generate
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROTO = "gpushare/device_plugin/kubelet.proto"
MADE = ("gpushare/device_plugin/kubelet_pb2.py", "gpushare/device_plugin/kubelet_pb2.pyi")


def generate(folder: Path) -> None:
    """Write the code generated from the definitions below the folder."""
    from grpc_tools import protoc  # type: ignore[import-untyped]  # it has no annotations

    code = protoc.main(
        ["protoc", f"-I{ROOT}", f"--python_out={folder}", f"--pyi_out={folder}", PROTO]
    )
    assert code == 0, "protoc failed"


if __name__ == "__main__":
    generate(ROOT)
    sys.exit()
