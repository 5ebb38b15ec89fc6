"""Makes hostile inputs from good ones: bytes with small errors, JSON with values of the wrong kind."""

import json
import random
import struct
from copy import deepcopy
from typing import Any

EDGES = (0, 1, 2, 7, 8, 31, 32, 33, 63, 64, 255, 256, 4095, 4097, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1)
WIDE_EDGES = (*EDGES, 2**32, 2**32 + 1, 2**40, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 8, 2**64 - 1)
HUGE = "9" * 5000  # Python refuses to parse an integer of so many digits
ODD_TEXT = ("", " ", "\0", "a\0b", "\ud800", "\u202e", "../../etc/passwd", "/", "~", "%00", "<turn|>", "x" * 300)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0.5, -0.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"), 10**400),
    *(WIDE_EDGES[::4]),
    *ODD_TEXT,
    *([], {}, [[]], [{}], {"": None}, [0] * 40, {"constructor": 1, "__proto__": {}}),
)


def mutate(good: bytes, dice: random.Random) -> bytes:
    """The bytes with one to four small errors."""
    data = bytearray(good)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 4))):
        at = dice.randrange(len(data)) if data else 0
        match dice.randrange(8):
            case 0:
                data[at : at + 1] = bytes([dice.randrange(256)])
            case 1 if data:
                data[at] ^= 1 << dice.randrange(8)
            case 2 | 3:
                data[at : at + 8] = struct.pack("<Q", dice.choice(WIDE_EDGES))
            case 4:
                data[at : at + 4] = struct.pack("<I", dice.choice(EDGES))
            case 5:
                del data[at:]
            case 6:
                del data[at : at + dice.randrange(1, 40)]
            case _:
                other = dice.randrange(len(data)) if data else 0
                data[at:at] = data[other : other + dice.randrange(1, 60)]
    return bytes(data)


def odd(dice: random.Random) -> Any:
    """A value that few programs expect."""
    return deepcopy(dice.choice(ODD_VALUES))


def changed(good: Any, dice: random.Random) -> Any:
    """A copy of a JSON value in which one to three places have another value, are missing or are doubled."""
    root = [deepcopy(good)]
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        places = list(_places(root))
        holder, key = dice.choice(places)
        match dice.randrange(8):
            case 0 if holder is not root:
                del holder[key]
            case 1:
                other, where = dice.choice(places)
                holder[key] = deepcopy(other[where])
            case 2 if isinstance(holder, list) and holder is not root:
                holder.append(deepcopy(holder[key]))
            case 3 if isinstance(holder, dict):
                holder[dice.choice(ODD_TEXT)] = holder.pop(key)
            case 4 if isinstance(holder[key], str):
                holder[key] = _text(holder[key], dice)
            case 5 if type(holder[key]) in (int, float):
                number = holder[key]
                holder[key] = dice.choice(
                    (number + 1, -number, str(number), float(number) if abs(number) < 1e300 else 0.5)
                )
            case _:
                holder[key] = odd(dice)
    return root[0]


def json_bytes(good: Any, dice: random.Random) -> bytes:
    """A changed value as text; now and then the text is damaged, too."""
    text = json.dumps(changed(good, dice), ensure_ascii=dice.random() < 0.5)
    match dice.randrange(40):
        case 0:
            text = "[" * 100_000 + text
        case 1:
            text = text.replace("1", HUGE, 1)
        case 2:
            text = '{"a":' * 3000 + text + "}" * 3000
        case 3 | 4:
            return mutate(text.encode("utf-8", "surrogatepass"), dice)
    return text.encode("utf-8", "surrogatepass")


def _text(text: str, dice: random.Random) -> str:
    at = dice.randrange(len(text) + 1)
    return dice.choice((text[:at], text[at:], text[:at] + dice.choice(ODD_TEXT) + text[at:], text * 3, text.upper()))


def _places(root: list[Any]) -> "list[tuple[Any, Any]]":
    """Every (list or dict, key or index) of a tree."""
    found: list[tuple[Any, Any]] = []
    waiting: list[Any] = [root]
    while waiting:
        holder = waiting.pop()
        for key in holder if isinstance(holder, dict) else range(len(holder)):
            found.append((holder, key))
            if isinstance(holder[key], list | dict):
                waiting.append(holder[key])
    return found
