"""The kernels of the backward pass agree with PyTorch's autograd, and their twins with the slope of what they undo."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wgemma.gpu.device import Buffer
from wgemma.gpu.native import NativeDevice
from wgemma.model.forms import tile_back_form, tile_form
from wgemma.model.weights import Matrix, RowOrder
from wgemma.reference import backward_twins as back
from wgemma.reference import twins
from wgemma.reference.backward_twins import NO_TARGET, Step, Targets
from wgemma.reference.decoder import gelu, rms
from wgemma.reference.lab import THREADS, Lab
from wgemma.reference.twins import Array

CLOSE = 1e-5  # of the largest number, as the goldens' README has it


@pytest.fixture(scope="module")
def golden(shared: Path) -> Callable[[str], Any]:
    return lambda name: np.load(shared / "lora" / "ops" / f"{name}.npz")


@pytest.fixture(params=["gpu", "floor"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    device: NativeDevice = request.getfixturevalue(request.param)
    with Lab(device, 7) as lab:
        yield lab


def close(got: Array, expected: Array) -> bool:
    return bool(np.abs(got - expected).max() <= CLOSE * np.abs(expected).max())


def read(lab: Lab, buffer: Buffer, *shape: int) -> Array:
    return lab.read(buffer)[: int(np.prod(shape))].reshape(shape)


def padded(x: Array) -> Array:
    """Columns of zeros up to a multiple of 32."""
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 32)])


def matrix(lab: Lab, w: Array) -> Matrix:
    raw = padded(w).astype("<f4")
    return lab.matrix("F32", raw.shape[1], [(raw.view(np.uint8), RowOrder())])


def products_back(lab: Lab, w: Matrix, dy: Array, dx: Buffer | None = None, offset: int = 0) -> Buffer:
    """dy W on the device, added to `dx` where there is one."""
    rows, stride = dy.shape
    result = dx or lab.out(rows * w.columns)
    params = {"blocks": w.blocks, "n": w.rows, "rows": rows, "stride": stride, "offset": offset, "add": dx is not None}
    bindings = {**w.parts[0].bindings(), "dy": lab.put(dy), "dx": result}
    form = tile_back_form(lab.device, rows)
    grid = [-(-w.columns // 64), -(-rows // form["ROWS"])]
    lab.run("tile_back", grid, bindings, params, {"TYPE": w.planes.reader, **form})
    return result


def norms_back(lab: Lab, x: Array, w: Array, above: Array, scale: float, *, residual: bool) -> tuple[Buffer, Buffer]:
    """(gradient of x, what became of the one above) for rows of any length: zeros behind them change the mean, which a
    smaller eps and smaller weights make good."""
    columns = padded(x).shape[-1]
    share = x.shape[-1] / columns
    norms = padded(np.sqrt(share) * w)
    d, held = lab.held(np.zeros((len(x), columns))), lab.held(padded(above))
    bindings = {"x": lab.put(padded(x)), "norms": lab.put(norms), "dy": held, "dv": held, "d": d}
    constants = {"THREADS": THREADS, "RESIDUAL": residual}
    params = {"blocks": columns // 32, "first": 0, "scale": scale, "eps": 1e-6 * share}
    lab.run("norm_back", [len(x)], bindings, params, constants)
    return d, held


@pytest.mark.parametrize("name", ["w", "w_big", "w_tiny_x", "noweight"])
def test_the_way_back_through_a_norm(golden: Callable[[str], Any], lab: Lab, name: str) -> None:
    data = golden(f"rmsnorm_{name}")
    columns = data["x"].shape[-1]
    x, dy = (data[key].reshape(-1, columns) for key in ("x", "d_y"))
    w = data["w"] if "w" in data else np.ones(columns)
    for residual in (False, True):
        d, _ = norms_back(lab, x, w, dy, 1.0, residual=residual)
        got = read(lab, d, *padded(x).shape)[:, :columns]
        assert close(got, data["d_x"].reshape(-1, columns))


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0", "Q4_0"])
def test_the_way_back_through_quantised_weights(golden: Callable[[str], Any], lab: Lab, kind: str) -> None:
    data = golden(f"linear_{kind}")
    w = lab.matrix(kind, data["x"].shape[1], [(data["w_bytes"], RowOrder())])
    assert close(read(lab, products_back(lab, w, data["d_y"]), *data["x"].shape), data["d_x"])


@pytest.mark.parametrize("mode", ["GEGLU", "APART", "SIDE"])
def test_the_way_back_through_the_activation(golden: Callable[[str], Any], lab: Lab, mode: str) -> None:
    data = golden("geglu")
    gate, up = data["gate"], data["up"]
    rows, n = gate.shape
    both = np.stack([gate, up], axis=-1).reshape(rows, -1) if mode == "GEGLU" else np.concatenate([gate, up], axis=1)
    x = gate if mode == "SIDE" else both
    dx = lab.out(x.size)
    bindings = {"x": lab.put(x), "dy": lab.put(data["d_y"]), "dx": dx, "side": lab.put(up)}
    params = {"n": n, **({"side_stride": n, "side_offset": 0} if mode == "SIDE" else {})}
    lab.run("activate_back", [-(-n // 256), rows], bindings, params, {mode: True})
    got = read(lab, dx, *x.shape)
    if mode == "SIDE":
        assert close(got, data["d_gate"])
    else:
        halves = (got[:, 0::2], got[:, 1::2]) if mode == "GEGLU" else np.split(got, 2, axis=1)
        assert close(halves[0], data["d_gate"])
        assert close(halves[1], data["d_up"])


@pytest.mark.parametrize("name", ["lora_linear", "lora_linear_r16", "lora_linear_small"])
def test_the_way_back_through_an_adapted_product(golden: Callable[[str], Any], lab: Lab, name: str) -> None:
    data = golden(name)
    x, b, dy, scale = padded(data["x"]), data["B"].T, data["d_y"], float(data["scale"])
    rows, columns = x.shape
    rank, n = b.shape
    g = lab.out(rows * rank)
    bindings = {"dy": lab.put(dy), "b": lab.put(b), "scales": lab.put(np.full(rank, scale)), "g": g}
    params = {"rank": rank, "targets": 1, "n": n, "stride": n, "offset": 0, **Targets()._asdict(), "rows": rows}
    lab.run("low_back", [-(-rank // 16), -(-rows // 4)], bindings, params)
    dx = products_back(lab, matrix(lab, data["W"]), dy)
    products_back(lab, matrix(lab, data["A"]), read(lab, g, rows, rank), dx)
    got = read(lab, dx, rows, columns)[:, : data["x"].shape[1]]
    assert close(got, data["d_x"])
    d_a, d_b = lab.held(np.zeros((rank, columns))), lab.held(np.zeros((rank, n)))
    for p, q, d, width in ((g, x, d_a, columns), (lab.put(scale * data["u"]), dy, d_b, n)):
        params = {"rank": rank, "p_stride": rank, "n": width, "q_stride": width, "q_offset": 0}
        params |= {**Targets()._asdict(), "rows": rows}
        lab.run("low_grad", [-(-width // 64), -(-rank // 16)], {"p": p, "q": lab.put(q), "d": d}, params)
    assert close(read(lab, d_a, rank, columns)[:, : data["A"].shape[1]], data["d_A"])
    assert close(read(lab, d_b, rank, n), data["d_B"].T)


@pytest.mark.parametrize("name", ["softcap_ce", "softcap_ce_saturated"])
def test_the_loss_in_tiles_of_the_vocabulary(golden: Callable[[str], Any], lab: Lab, name: str) -> None:
    """From the last hidden state to its gradient: no more than 64 logits of a row are held at a time."""
    data, width = golden(name), 64
    h, embeddings, cap = padded(data["h"]), data["E"], float(data["cap"])
    rows, columns = h.shape
    targets = np.where(data["targets"] < 0, NO_TARGET, data["targets"].astype(np.int64))
    given, goals, state = lab.put(h), lab.put(targets, "<u4"), lab.out(4 * rows)
    dx: Buffer | None = None
    slopes = []
    for mode in ("SCAN", "BACK"):
        for first in range(0, len(embeddings), width):
            w = matrix(lab, embeddings[first : first + width])
            logits = lab.out(rows * w.rows)
            bindings = {**w.parts[0].bindings(), "x": given, "y": logits}
            params = {"blocks": w.blocks, "n": w.rows, "rows": rows, "y_stride": w.rows, "y_offset": 0, "cap": cap}
            form = tile_form(rows, w.rows)
            grid = [1, -(-rows // form["ROWS"])]
            lab.run("tile", grid, bindings, params, {"TYPE": "f32", "SOFTCAP": True, **form})
            bindings = {"logits": logits, "targets": goals, "state": state}
            settings = {"width": w.rows, "first": first, "fresh": first == 0, "cap": cap}
            lab.run("loss", [rows], bindings, settings, {"THREADS": THREADS, mode: True})
            if mode == "BACK":
                slopes.append(read(lab, logits, rows, w.rows))
                dx = products_back(lab, w, slopes[-1], dx)
    nll, total = lab.out(rows), lab.held(np.zeros(1))
    bindings = {"state": state, "targets": goals, "nll": nll, "total": total}
    lab.run("nll", [1], bindings, {"rows": rows}, {"THREADS": THREADS})
    known = targets != NO_TARGET
    found = read(lab, state, rows, 4)[known]
    assert close(found[:, 0] + np.log(found[:, 1]), data["lse"][known])
    assert close(read(lab, nll, rows), data["nll"])
    assert close(read(lab, total, 1) / data["n_targets"], data["loss"])
    share = 1 / data["n_targets"]  # the goldens are of the mean
    assert close(share * np.concatenate(slopes, axis=1), data["d_raw_logits"])
    assert dx is not None
    assert close(share * read(lab, dx, rows, columns)[:, : data["h"].shape[1]], data["d_h"])


def test_the_way_back_through_a_per_layer_block(golden: Callable[[str], Any], lab: Lab) -> None:
    """(h + norm ⊙ rms(W_p(gelu(W_g h) · ple))) · layer_scalar, as five kernels; ple's own is the `up` of APART."""
    data = golden("ple_block")
    h, side, scale = data["h"], data["ple"], float(data["layer_scalar"])
    rows, n = side.shape
    gate = h @ data["w_gate"].T
    o = twins.gated(gate, side) @ twins.wide(data["w_proj"]).T
    d_o, d_h = norms_back(lab, o, data["w_post_norm"], data["d_y"], scale, residual=True)
    product = products_back(lab, matrix(lab, data["w_proj"]), read(lab, d_o, rows, 32)[:, : h.shape[1]])
    dy = read(lab, product, rows, 32)[:, :n]
    d_gate, d_both = lab.out(rows * n), lab.out(2 * rows * n)
    bindings = {"x": lab.put(gate), "side": lab.put(side), "dy": lab.put(dy), "dx": d_gate}
    lab.run("activate_back", [1, rows], bindings, {"n": n, "side_stride": n, "side_offset": 0}, {"SIDE": True})
    bindings |= {"x": lab.put(np.concatenate([gate, side], axis=1)), "dx": d_both}
    lab.run("activate_back", [1, rows], bindings, {"n": n}, {"APART": True})
    products_back(lab, matrix(lab, data["w_gate"]), read(lab, d_gate, rows, n), d_h)
    assert close(read(lab, d_h, rows, 32)[:, : h.shape[1]], data["d_h"])
    assert close(read(lab, d_both, rows, 2 * n)[:, n:], data["d_ple"])


def test_the_way_back_through_the_per_layer_inputs(golden: Callable[[str], Any], lab: Lab) -> None:
    data = golden("ple_combine")
    rows, layers, p = data["ple"].shape
    width = data["h"].shape[1]
    c = twins.linear(data["w_model_proj"], data["h"]).reshape(-1, p) / np.sqrt(width)
    scale = float(1 / np.sqrt(2 * width))
    d, _ = norms_back(lab, c, data["w_norm"], data["d_ple"].reshape(-1, p), scale, residual=False)
    above = read(lab, d, rows * layers, 32)[:, :p].reshape(rows, -1)
    d_h = products_back(lab, matrix(lab, data["w_model_proj"]), above)
    assert close(read(lab, d_h, rows, 32)[:, :width], data["d_h"])


def test_two_steps_of_adamw(golden: Callable[[str], Any], lab: Lab) -> None:
    """Three tensors lie in one flat buffer; the norm is made by two workgroups."""
    data = golden("adamw")

    def flat(kind: str, step: int) -> Array:
        return np.concatenate([data[f"{kind}{i}_{step}"].ravel() for i in range(3)])

    start = flat("p", 0)
    held = {"values": lab.held(start)} | {name: lab.held(np.zeros(start.size)) for name in ("first", "second")}
    shares, norm = lab.out(2), lab.out(1)
    for t in (1, 2):
        g = lab.held(flat("g", t))
        lab.run("sum_squares", [2], {"gradients": g, "shares": shares}, {"count": start.size}, {"THREADS": 32})
        joined = {"THREADS": 32, "JOIN": True}
        lab.run("sum_squares", [1], {"shares": shares, "norm": norm}, {"count": 2, "fresh": True}, joined)
        assert close(np.sqrt(read(lab, norm, 1)), data[f"norm_{t}"])
        step = Step(rate=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.01, clip=1.0, t=t)
        lab.run("adamw", [1], {**held, "gradients": g, "norm": norm}, step.params(start.size))
        for kind, name in (("p", "values"), ("m", "first"), ("v", "second")):
            assert close(read(lab, held[name], start.size), flat(kind, t))
        assert not read(lab, g, start.size).any()


def test_a_gradient_is_dropped_where_its_activation_was(lab: Lab) -> None:
    """About one in ten, and others for another seed or place."""
    ones = lab.put(np.ones((40, 250)))

    def mask(seed: int, salt: int = 0) -> Array:
        y = lab.out(10000)
        bindings = {"x": ones, "y": y, "seed": lab.put(np.array([seed]), "<u4")}
        params = {"count": 250, "threshold": round(0.1 * 2**32), "salt": salt, "scale": 1 / 0.9, "add": 0}
        lab.run("dropout", [1, 40], bindings, params)
        return read(lab, y, 40, 250)

    one = mask(5)
    assert np.array_equal(one, mask(5))
    assert 0.08 < np.mean(one == 0) < 0.12
    for other in (mask(6), mask(5, 1)):
        assert 0.15 < np.mean((one == 0) != (other == 0)) < 0.21
    assert np.allclose(one[one != 0], 1 / 0.9)


# -- the twins against finite differences


def slope(f: Callable[[Array], Array], x: Array, dy: Array, h: float = 1e-5) -> Array:
    """The gradient of Σ dy · f(x), by central differences."""
    d = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[i] += h
        behind[i] -= h
        d[i] = (dy * (f(ahead) - f(behind))).sum() / (2 * h)
    return d


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def same(got: Array, expected: Array) -> bool:
    return bool(np.abs(got - expected).max() <= 1e-7 * max(1.0, float(np.abs(expected).max())))


def test_twins_of_products_and_norms_are_slopes(rng: np.random.Generator) -> None:
    w, x, dy = (rng.standard_normal(shape) for shape in ((7, 5), (3, 5), (3, 7)))
    assert same(back.linear_back(w, dy), slope(lambda x: twins.linear(w, x), x, dy))
    norm, above = rng.standard_normal(5), rng.standard_normal((3, 5))
    assert same(back.rms_back(x, norm, above, 1e-6), slope(lambda x: norm * rms(x, 1e-6), x, above))
    assert same(back.rms_back(x, norm, above, 0.5), slope(lambda x: norm * rms(x, 0.5), x, above))


def test_twins_of_activations_are_slopes(rng: np.random.Generator) -> None:
    x, dy = 3 * rng.standard_normal((4, 10)), rng.standard_normal((4, 5))
    assert same(back.gelu_slope(x), slope(gelu, x, np.ones_like(x)))
    assert same(back.geglu_back(x, dy), slope(twins.geglu, x, dy))
    assert same(back.apart_back(x, dy), slope(twins.apart, x, dy))


@pytest.mark.parametrize("targets", [Targets(), Targets(3), Targets(2, 5), Targets(interleaved=1)])
def test_twins_of_adapters_are_slopes(rng: np.random.Generator, targets: Targets) -> None:
    """y = scaled A x, spread by b: the gradients of A and b, and of A x."""
    rows, columns, rank, n = 4, 5, 2, 8
    count = int(targets.of(n).max()) + 1
    x, a, b, scales, dy = (
        rng.standard_normal(shape)
        for shape in ((rows, columns), (count * rank, columns), (rank, n), count * rank, (rows, n))
    )
    z = scales * (x @ a.T)
    g = back.low_back(dy, b, scales, targets)
    assert same(g, slope(lambda u: back.low(scales * u, b, targets), x @ a.T, dy))
    assert same(back.low_grad(z, dy, rank, targets), slope(lambda b: back.low(z, b, targets), b, dy))
    d_a = back.low_grad(g, x, count * rank, Targets())
    assert same(d_a, slope(lambda a: back.low(scales * (x @ a.T), b, targets), a, dy))


@pytest.mark.parametrize("cap", [3.0, 0.0])
def test_the_twin_of_the_loss_is_a_slope(rng: np.random.Generator, cap: float) -> None:
    raw = 2 * rng.standard_normal((4, 9))
    targets = np.array([2, 8, NO_TARGET, 0])

    def loss(raw: Array) -> Array:
        return back.nll(back.scan(twins.capped(raw, cap), targets), targets)

    logits = twins.capped(raw, cap)
    d = back.loss_back(logits, back.scan(logits, targets), targets, cap)
    assert same(d, slope(loss, raw, np.ones(4)))


def test_the_twin_of_dropout_is_its_own_slope(rng: np.random.Generator) -> None:
    x, dy = rng.standard_normal((2, 5, 40))
    where = (2**31, 11, 3, 2.0)
    assert same(back.dropout(dy, *where), slope(lambda x: back.dropout(x, *where), x, dy))
