"""What WebGPU reports late, no memory or a shader that does not compile, is an error in Python all the same."""

from collections.abc import Callable
from typing import Any

TROUBLE = """
import json
from dataclasses import replace

import lab
from wgemma.errors import DeviceError, OutOfMemory
from wgemma.gpu import shaders
from wgemma.gpu.browser import BrowserDevice
from wgemma.gpu.tape import Tape

device = await BrowserDevice.open(lab.openGpu, "")
device.limits = replace(device.limits, buffer=1 << 40)
told = []
for work in (
    lambda: device.buffer(1 << 30, "a table"),  # SwiftShader has a limit of that, and refuses it
    lambda: device._compile("nonsense", "@compute @workgroup_size(1) fn main() { let x = y; }"),
    lambda: device.buffer(16, "words"),
):
    made = work()
    try:
        await device.confirm()
        told.append("good")
    except DeviceError as error:
        told.append(f"{type(error).__name__}: {error}")
json.dumps(told)
"""


def test_what_webgpu_reports_late_is_raised_at_the_next_stop(lab: Callable[[str], Any]) -> None:
    table, shader, words = lab(TROUBLE)
    assert table == "OutOfMemory: the GPU has no room for a table (1074 MB)."
    assert shader.startswith("DeviceError: ") and "nonsense" in shader and "y" in shader
    assert words == "good"
