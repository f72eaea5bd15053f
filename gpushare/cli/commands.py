"""The commands, each with the module that runs it and the function that makes its parser.

Imports nothing of them: help and completion need a parser, and none of the command's imports.

Tested in `tests/unit/cli/test_start.py`.
"""

from importlib import import_module

from gpushare.commandline import Parser

MODULES = {
    "completion": "gpushare.cli.completion",
    "defrag": "gpushare.cli.defrag",
    "demo": "gpushare_localcluster.main",  # of another distribution, gpushare-localcluster
    "device-plugin": "gpushare.device_plugin.main",
    "doctor": "gpushare.doctor.main",
    "explain": "gpushare.cli.explain",
    "inspect": "gpushare.cli.inspect",
    "report": "gpushare.cli.cost_report",
    "scheduler-config": "gpushare.cli.scheduler_config",
    "serve": "gpushare.extender.main",
    "simulate": "gpushare.sim.main",
    "whatif": "gpushare.cli.whatif",
}
"""The module of each command; its `main` runs the command."""

PARSERS = {
    "completion": ("gpushare.cli.completion", "completion_parser"),
    "defrag": ("gpushare.cli.parsers", "defrag_parser"),
    "device-plugin": ("gpushare.device_plugin.options", "device_plugin_parser"),
    "doctor": ("gpushare.doctor.options", "doctor_parser"),
    "explain": ("gpushare.cli.parsers", "explain_parser"),
    "inspect": ("gpushare.cli.options", "inspect_parser"),
    "report": ("gpushare.cli.parsers", "report_parser"),
    "scheduler-config": ("gpushare.cli.scheduler_config", "scheduler_config_parser"),
    "serve": ("gpushare.settings", "serve_parser"),
    "simulate": ("gpushare.sim.options", "simulate_parser"),
    "whatif": ("gpushare.cli.parsers", "whatif_parser"),
}
"""The module and function of each command's parser."""

OF_PLUGIN = ("defrag", "doctor", "explain", "report", "whatif")
"""Commands that the kubectl plug-in has, too."""


def parser_of(command: str, program: str = "gpushare") -> Parser:
    """Return the parser of a command. Raises ModuleNotFoundError if its package is left out."""
    module, name = PARSERS[command]
    parser: Parser = getattr(import_module(module), name)(f"{program} {command}")
    return parser
