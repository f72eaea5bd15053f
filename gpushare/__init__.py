"""gpushare: pods share GPUs by device memory; see docs/architecture.md."""

__version__ = "0.1.0"
