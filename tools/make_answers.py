"""Writes src/wgemma/selftest/answers.json: the right answer to every problem of the kernel self-test.

    python tools/make_answers.py

The answers come from the NumPy twins (`wgemma.reference`), in double precision, folded into a few sums each.
"""

import json
from array import array
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgemma.files.quants import BY_NAME
from wgemma.model.planes import PLANES
from wgemma.model.rows import Row, pages_of
from wgemma.reference import twins
from wgemma.reference.dequantize import dequantize
from wgemma.reference.sampling import distribution, drawn
from wgemma.selftest import problems as given
from wgemma.selftest.problems import Problem

Array = NDArray[Any]
TARGET = Path(__file__).resolve().parent.parent / "src/wgemma/selftest/answers.json"
MARGIN = 1e-3  # how close a drawn token may be to another one, as a share of the whole


def main() -> str:
    """All answers as JSON, one problem per line."""
    answers = {problem.answer: [_folded(output) for output in _solve(problem)] for problem in sorted(every_problem())}
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(told)}" for name, told in answers.items()) + "\n}\n"


def _folded(output: Array) -> list[float]:
    return [float(f"{number:.5g}") for number in given.fold(output.astype(np.float64).ravel().tolist())]


def every_problem() -> Iterator[Problem]:
    """Every problem any model could need."""
    for kind in PLANES:
        for columns in (period for period in given.PERIODS if period % BY_NAME[kind].elements == 0):
            for source, then, _ in given.MATVEC_USES:
                yield Problem("matvec", source, then, kind=kind, columns=columns)
            yield Problem("tile", kind=kind, columns=columns)
            yield Problem("tile", "experts", kind=kind, columns=columns)
            yield Problem("tile", "experts", "weighted", kind=kind, columns=columns)
            yield Problem("embed", kind=kind, columns=columns)
    for head in given.HEAD_SIZES:
        for kernel, sliding, without_v in product(("kv", "attention"), (False, True), (False, True)):
            yield Problem(kernel, sliding=sliding, without_v=without_v, head=head)
    for columns in given.PERIODS:
        yield Problem("norm", "norm", columns=columns)
        yield Problem("norm", "sum", columns=columns)
        yield from (Problem(kernel, columns=columns) for kernel in ("experts_norm", "experts_join"))
    yield Problem("activate", activation="GEGLU")
    yield Problem("activate", activation="APART")
    yield Problem("activate", activation="SIDE")
    yield from (Problem(kernel) for kernel in ("ple", "route"))
    for how, suppressed in product(given.SAMPLINGS, (False, True)):
        yield Problem("sample", sampling=how, suppressed=suppressed)


def _solve(problem: Problem) -> tuple[Array, ...]:
    """The outputs of a problem, in the order the self-test keeps them."""
    solvers = {
        "embed": _embed, "matvec": _matvec, "tile": _tile, "norm": _norm, "activate": _activate, "ple": _ple,
        "kv": _kv, "attention": _attention, "experts_norm": _experts_norm, "experts_join": _experts_join,
        "route": _route, "sample": _sample,
    }  # fmt: skip
    return solvers[problem.kernel](problem)


# -- inputs


def _shaped(values: "array[float]", *shape: int) -> Array:
    return np.array(values, np.float64).reshape(shape)


def _numbers(label: str, *shape: int) -> Array:
    return _shaped(given.numbers(label, int(np.prod(shape))), *shape)


def _norms(label: str, *shape: int) -> Array:
    return _shaped(given.norms(label, int(np.prod(shape))), *shape)


def _weights(problem: Problem) -> Array:
    return dequantize(given.matrix_bytes(problem.kind, problem.columns), problem.kind, (given.ROWS, problem.columns))


def _residual(columns: int, *, norm: bool) -> tuple[Array, Array]:
    h, o = (_numbers(label, given.FEW, columns) for label in "ho")
    return twins.residual(h, o, _norms("norms", 2, columns), given.SCALE, given.EPS, norm=norm)


# -- weights and matmuls


def _embed(problem: Problem) -> tuple[Array, ...]:
    return (twins.embed(_weights(problem), given.TOKENS, given.SCALE),)


def _tile(problem: Problem) -> tuple[Array, ...]:
    w = _weights(problem)
    if problem.source == "experts":
        return _experts(w, problem.then, given.crowded())
    return tuple(twins.linear(w, _numbers("x", rows, problem.columns)) for rows in given.MANY)


def _matvec(problem: Problem) -> tuple[Array, ...]:
    w, columns = _weights(problem), problem.columns
    source, then = problem.source, problem.then
    if source == "experts":
        return _experts(w, then, given.CHOSEN)
    if source == "x":
        y = twins.linear(w, _numbers("x", given.FEW, columns))
        return (twins.geglu(y) if then else y,)
    v, x = _residual(columns, norm=source != "sum")
    y = twins.linear(w, x)
    if source == "head":
        return twins.capped(y, given.CAP), v
    if then == "geglu":
        return twins.geglu(y), v
    stride, offset = given.SIDE
    side = _numbers("side", given.FEW, stride)[:, offset : offset + given.ROWS]
    return twins.gated(y, side) if then == "ple" else y, v


def _experts(w: Array, then: str, experts: Sequence[int]) -> tuple[Array, ...]:
    columns, shape = w.shape[1], (len(experts) // given.SLOTS, given.SLOTS)
    weights = _numbers("weights", *shape) if then == "weighted" else None
    x = _numbers("x", *(shape if then == "weighted" else shape[:1]), columns)
    chosen = np.array(experts).reshape(shape)
    y = twins.experts(w.reshape(given.EXPERTS, -1, columns), x, chosen, weights)
    return (twins.geglu(y) if then == "geglu" else y,)


# -- between the matmuls


def _norm(problem: Problem) -> tuple[Array, ...]:
    v, x = _residual(problem.columns, norm=problem.source == "norm")
    return x, v


def _activate(problem: Problem) -> tuple[Array, ...]:
    n, offset = given.PRODUCTS, given.SIDE[1]
    if problem.activation == "SIDE":
        side = _numbers("side", given.FEW, n + offset)[:, offset:]
        return (twins.gated(_numbers("x", given.FEW, n), side),)
    x = _numbers("x", given.FEW, 2 * n)
    return (twins.geglu(x) if problem.activation == "GEGLU" else twins.apart(x),)


def _ple(problem: Problem) -> tuple[Array, ...]:
    shape = (given.FEW, given.PLE_LAYERS, given.PLE_DIM)
    norm = _norms("ple norm", given.PLE_DIM)
    return (twins.ple(_numbers("c", *shape), _numbers("table", *shape), norm, given.SCALE, given.EPS),)


def _experts_norm(problem: Problem) -> tuple[Array, ...]:
    h, o = (_numbers(label, given.FEW, problem.columns) for label in "ho")
    v, inputs = twins.experts_norm(h, o, _norms("norms", 4, problem.columns), given.EPS)
    padded = np.zeros((3, given.FEW + 1, problem.columns))
    padded[:, : given.FEW] = inputs
    return padded, v


def _experts_join(problem: Problem) -> tuple[Array, ...]:
    dense = _numbers("h", given.FEW, problem.columns)
    routed = _numbers("x", given.FEW, given.SLOTS, problem.columns)
    return (twins.experts_join(dense, routed, _norms("norms", 2, problem.columns), given.EPS),)


def _route(problem: Problem) -> tuple[Array, ...]:
    scale = _norms("expert scale", given.ROUTED)
    return twins.route(_numbers("scores", given.FEW, given.ROUTED), scale, given.ROUTES)


# -- attention


def _parts(problem: Problem) -> tuple[Array, Array, Array]:
    """Raw queries, keys and values, each [rows, heads, head size]."""
    own = not problem.without_v
    counts = [given.HEADS, given.KV_HEADS, *([given.KV_HEADS] if own else [])]
    raw = _numbers("qkv", len(given.STORING), sum(counts), problem.head)
    q, k, *v = np.split(raw, np.cumsum(counts)[:-1], axis=1)
    return q, k, v[0] if own else k


def _angles(rows: tuple[tuple[int, int, int], ...]) -> Array:
    return twins.angles([position for _, position, _ in rows], given.BASE, 2 * given.TURNING, given.TURNING)


def _kv(problem: Problem) -> tuple[Array, ...]:
    _, k, v = _parts(problem)
    made = twins.kv(k, v, _norms("k norm", problem.head), _angles(given.STORING), given.EPS)
    cache = np.zeros((2, given.DEPTH, given.KV_HEADS, problem.head))
    for r, (used, position, _) in enumerate(given.STORING):
        if used:
            cache[:, position] = made[0][r], made[1][r]
    return tuple(half[at : at + n] for at, n in given.SEEN for half in cache)


def _attention(problem: Problem) -> tuple[Array, ...]:
    sliding = problem.sliding
    rows = given.LOOKING["sliding" if sliding else "full"]
    norm = _shaped(given.query_norms("q norm", problem.head), problem.head)
    q = twins.paired(twins.turned(_parts(problem)[0], norm, _angles(rows), given.EPS))
    shape = (given.DEPTH, given.KV_HEADS, problem.head)
    keys, values = (
        np.frombuffer(given.cached(label, int(np.prod(shape)), "f16"), "<f2").reshape(shape)
        for label in ("keys", "values")
    )
    pages = np.arange(pages_of(given.DEPTH))
    table, window = (pages % (len(pages) // 2), given.WINDOW) if sliding else (pages, 0)
    seen = [Row(used, position, 0, sees) for used, position, sees in rows]
    return (twins.attention(q, keys, values, seen, window, [table] * len(seen)),) * (2 if sliding else 3)


# -- sampling


def _sample(problem: Problem) -> tuple[Array, ...]:
    logits = np.array(given.logits(), np.float64)
    settings = given.SAMPLINGS[problem.sampling]
    if problem.suppressed:
        logits[given.SUPPRESSED] = -np.inf
    names = ("temperature", "top_k", "top_p", "min_p")
    options = {name: getattr(settings, name) for name in names}
    ids, shares = distribution(logits, **options)
    token, total = ids[0], 1.0
    if not settings.greedy:
        for name in ("top_p", "min_p"):
            for share in (1 - MARGIN, 1 + MARGIN):
                near, _ = distribution(logits, **{**options, name: share * options[name]})
                assert np.array_equal(near, ids), f"choose another {name}: rounding could decide this one"
        token, total = drawn(ids, shares, settings.seed or 0, given.POSITION, MARGIN), 1 / shares[0]
    return np.array([1, given.POSITION, token, given.POSITION]), np.array([total, logits.max()])


if __name__ == "__main__":
    TARGET.write_text(main(), encoding="utf-8")
