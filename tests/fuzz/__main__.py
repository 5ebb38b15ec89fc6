"""Throws hostile inputs at every reader of outside bytes, on every core.

Prints a line per reader, and each escape with what makes it again: --only NAME --seed S --first N --count 1.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from fuzz.harness import Report
from fuzz.readers import open_readers
from fuzz.workers import attack_slice, start

SLICE = 5000


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs in all (default: a million)")
    parser.add_argument("--first", type=int, default=0, help="start at this number")
    parser.add_argument("--only", metavar="NAME", help="attack this reader only")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    with open_readers() as readers:
        shares = {reader.name: reader.share for reader in readers if options.only in (None, reader.name)}
    if not shares:
        parser.error(f"there is no reader {options.only!r}; there are {', '.join(sorted(r.name for r in readers))}")
    counts = {name: -(-options.count * share // sum(shares.values())) for name, share in shares.items()}
    reports = {name: Report() for name in counts}
    begin = time.perf_counter()
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), initializer=start) as pool:
        tasks = {
            pool.submit(attack_slice, name, options.seed, range(at, min(at + SLICE, options.first + count))): name
            for name, count in counts.items()
            for at in range(options.first, options.first + count, SLICE)
        }
        for done, task in enumerate(as_completed(tasks), 1):
            reports[tasks[task]].add(task.result())
            print(f"\r{done} of {len(tasks)} slices", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for name, report in reports.items():
        told = ", ".join(f"{count} {outcome}" for outcome, count in report.outcomes.most_common())
        print(f"{name:>15}  {told}; slowest {1e3 * report.slowest:.0f} ms, {report.grown / 1e6:.0f} MB more")
    escapes = [escape for report in reports.values() for escape in report.escapes]
    print(f"{sum(counts.values())} inputs, {len(escapes)} escapes, {time.perf_counter() - begin:.0f} s")
    print("\n".join(escapes[:50]))
    return 1 if escapes else 0


if __name__ == "__main__":
    sys.exit(main())
