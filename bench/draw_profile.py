"""Draws where a token's time goes: `python bench/draw_profile.py PROFILE.json [--depth N] -o docs/img/token.svg`.

PROFILE.json is the output of `wgemma bench MODEL --profile --json`. Each bar is a kernel and what it reads, longest
first; those below a hundredth of the total share the last bar. Kernels are timed one by one: a token in the decoding
loop, whose time is in the heading, may take less.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from names import called
from svg import bar, drawing, text

from wgemma.cli.bench import figure

LEAST = 0.01  # share of a token that gets its own bar
WIDTH, ROW, HEAD, FOOT = 840, 24, 84, 12
NAMES, READS, BARS = 16, 128, 300  # left edges of columns
MICROSECONDS, COUNTS, SHARES = 710, 762, 824  # right edges of columns of figures
ROOM = 350  # for the longest bar


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path, metavar="PROFILE.json")
    parser.add_argument(
        "--depth", type=int, metavar="N", help="of the token, where several were timed (default: the first)"
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE.svg")
    options = parser.parse_args()
    try:
        report = json.loads(options.profile.read_text())
        token = chosen(report, options.depth)
    except (OSError, ValueError) as error:
        print(f"draw_profile: {options.profile}: {error}", file=sys.stderr)
        return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(picture(report, token))
    return 0


def chosen(report: Any, depth: int | None) -> dict[str, Any]:
    """The decoded token to draw."""
    tokens = [one for one in report.get("decode", []) if one.get("profile")] if isinstance(report, dict) else []
    if not tokens:
        raise ValueError("the file contains no profile. Create one with `wgemma bench MODEL --profile --json`.")
    depths = [one["depth"] for one in tokens]
    if depth is not None and depth not in depths:
        raise ValueError(f"depth {depth} was not timed; the file has {', '.join(map(str, depths))}.")
    found: dict[str, Any] = tokens[0 if depth is None else depths.index(depth)]
    return found


def gathered(profile: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The longest first; the shortest ones are merged if there are several."""
    kinds = sorted(profile, key=lambda kind: -kind["microseconds"])
    small = [kind for kind in kinds if kind["share"] < LEAST]
    if len(small) < 2:
        return kinds
    rest = {"kernel": f"{len(small)} others", "what": ""}
    return [
        *kinds[: -len(small)],
        rest | {key: sum(kind[key] for kind in small) for key in ("count", "microseconds", "share")},
    ]


def picture(report: dict[str, Any], token: dict[str, Any]) -> str:
    kinds, adapter = gathered(token["profile"]), report["adapter"]
    total = sum(kind["microseconds"] for kind in kinds)
    title = f"one token of {called(report['model'])} at depth {token['depth']}, on {adapter['name']}"
    parts = [
        f"{figure(total)} µs in {sum(kind['count'] for kind in kinds)} dispatches, one after the other",
        f"{figure(1e6 / token['tokens_per_s'])} µs in the loop",
        f"{report['precision']} · wgemma {report['wgemma']} · {adapter['driver']}",
    ]
    longest = max(kind["microseconds"] for kind in kinds) or 1.0
    shapes = [text(NAMES, 22, title, "bold"), text(NAMES, 41, " · ".join(parts), "faint")]
    for x, words, anchor in [
        (NAMES, "kernel", "start"),
        (READS, "reads", "start"),
        (MICROSECONDS, "µs", "end"),
        (COUNTS, "count", "end"),
        (SHARES, "share", "end"),
    ]:
        shapes.append(text(x, HEAD - 8, words, "bold", anchor))
    for i, kind in enumerate(kinds):
        y = HEAD + ROW * i
        shapes += [
            text(NAMES, y + 16, kind["kernel"]),
            text(READS, y + 16, kind["what"], "faint"),
            bar(BARS, y + 4, max(ROOM * kind["microseconds"] / longest, 1), ROW - 8),
            text(MICROSECONDS, y + 16, figure(kind["microseconds"]), anchor="end"),
            text(COUNTS, y + 16, str(kind["count"]), anchor="end"),
            text(SHARES, y + 16, f"{100 * kind['share']:.1f} %", anchor="end"),
        ]
    return drawing(WIDTH, HEAD + ROW * len(kinds) + FOOT, title, shapes)


if __name__ == "__main__":
    sys.exit(main())
