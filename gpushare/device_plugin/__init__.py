"""The device plug-in: gives the containers of a node the devices of their pods' Bindings.

Tested in `tests/unit/device_plugin`, `tests/integration/test_device_plugin.py` and
`tests/integration/test_device_plugin_nvml.py`.
"""
