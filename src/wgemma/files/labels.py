"""The quantisation that a file's name tells."""

import re

from wgemma.files.parts import whole_name

LABEL = re.compile(
    r"(?i)(?<![A-Z0-9])"
    r"((?:UD-)?I?Q[0-9]+(?:_(?:[0-9]+|K|NL|[SML]|XL|X{1,2}S))*|TQ[0-9]_[0-9]|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32)"
    r"(?![A-Z0-9])"
)


def label_of(path: str) -> str:
    """The quantisation in a file's name, or else in its folder's: model-UD-Q4_K_XL.gguf → UD-Q4_K_XL. Where a name has
    several, the last one counts."""
    folder, _, file = whole_name(path).rpartition("/")
    found = LABEL.findall(file) or LABEL.findall(folder)
    return str(found[-1]).upper() if found else ""
