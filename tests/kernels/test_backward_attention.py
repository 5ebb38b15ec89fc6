"""Training's attention and experts against goldens of an independent float64 autograd, forward and backward."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from wgemma.gpu.device import Binding, Buffer
from wgemma.gpu.native import NativeDevice
from wgemma.gpu.tape import Tape
from wgemma.model.attention import many_form
from wgemma.model.experts import norm_constants
from wgemma.model.forms import tile_back_form
from wgemma.model.matmul import Choices, Matmuls, Result
from wgemma.model.rotary import rotary_tables
from wgemma.model.rows import Row
from wgemma.model.weights import Matrix, RowOrder
from wgemma.reference.cases.training_attention import back_threads
from wgemma.reference.lab import GUARD, Lab
from wgemma.reference.quantize import quantize
from wgemma.reference.twins import paired

Floats = NDArray[np.float32]
Golden = dict[str, Any]

EPS = 1e-6
OPS = 1e-5  # of the largest number, as the goldens' own notes say
FAR = 1e-4  # where angles are rounded to f32 far from the beginning
# With so large an ε a norm divides by √ε whatever comes: with weights of √ε it is the identity, backwards too.
STILL = 1e12

BEFORE = 3  # rows of another sequence in front of the golden one, so that it lies somewhere in the middle of a pass


@pytest.fixture
def golden(shared: Path, request: pytest.FixtureRequest) -> Golden:
    return dict(np.load(shared / "lora" / "ops" / f"{request.param}.npz"))


def near(got: NDArray[Any], expected: NDArray[Any], limit: float = OPS) -> bool:
    return bool(np.abs(got - expected).max() <= limit * np.abs(expected).max())


def read(lab: Lab, buffer: Buffer, *shape: int) -> NDArray[Any]:
    return lab.read(buffer)[:-GUARD].reshape(shape)


def apart(pairs: NDArray[Any]) -> NDArray[Any]:
    """A head in its own order again."""
    return np.concatenate([pairs[..., 0::2], pairs[..., 1::2]], axis=-1)


ROPE = ["rope_default_small", "rope_default_d256", "rope_prop_small", "rope_prop_d512"]
ATTENTION = ["attn_full_small", "attn_slide_small", "attn_slide_gqa", "attn_full_gqa", "attn_slide_mqa_d256"]


# -- keys and values


def turned(lab: Lab, golden: Golden, raw: Floats, norm: Floats, eps: float) -> tuple[dict[str, Buffer], dict[str, Any]]:
    """kv.wgsl on rows at any positions: what it leaves, and the constants that its way back needs too."""
    count, heads, head = raw.shape
    positions, pairs = golden["pos"].tolist(), int(golden["n_rot_pairs"])
    table = np.frombuffer(rotary_tables(float(golden["base"]), head, pairs, None, max(positions) + 1), dtype="<f4")
    given = lab.put(raw)
    bound = {"rows": lab.put_rows([Row(1, t) for t in positions]), "k_raw": given, "norm": lab.put(norm)}
    bound |= {"turns": lab.put(table), "keys": lab.out(raw.size), "values": lab.out(raw.size)}
    constants = {"HEAD": head, "PAIRS": pairs, "PAIR": "vec2<f32>", "PACKED": True, "THREADS": 64}
    params = {"kv_heads": heads, "stride": heads * head, "k_offset": 0, "v_offset": 0, "eps": eps}
    params |= {"table": 0, "table_step": 0, "first": 0, "count": count}
    lab.run("kv", [heads, count], bound, params, constants)
    return bound, constants


@pytest.mark.parametrize("golden", ROPE, indirect=True)
def test_rotation_and_its_way_back(gpu: NativeDevice, golden: Golden) -> None:
    count, heads, head = golden["x"].shape
    limit = FAR if head >= 256 else OPS
    norm = np.full(head, STILL**0.5, dtype=np.float32)
    with Lab(gpu, 0) as lab:
        bound, constants = turned(lab, golden, golden["x"], norm, STILL)
        assert near(apart(read(lab, bound["keys"], count, heads, head)), golden["y"], limit)
        bound |= {"dk": lab.put(paired(golden["d_y"])), "d_qkv": lab.out(golden["x"].size)}
        params = {"kv_heads": heads, "stride": heads * head, "k_offset": 0, "eps": STILL}
        lab.run("kv_back", [heads, count], bound, params, constants | {"QUERIES": True})
        assert near(read(lab, bound["d_qkv"], count, heads, head), golden["d_x"], limit)


@pytest.mark.parametrize("golden", ["k_eq_v"], indirect=True)
def test_keys_that_are_values_too_get_both_gradients(gpu: NativeDevice, golden: Golden) -> None:
    count, heads, head = golden["k_raw"].shape
    with Lab(gpu, 0) as lab:
        bound, constants = turned(lab, golden, golden["k_raw"], golden["w"], EPS)
        assert near(apart(read(lab, bound["keys"], count, heads, head)), golden["k"])
        assert near(read(lab, bound["values"], count, heads, head), golden["v"])
        bound |= {"dk": lab.put(paired(golden["d_k"])), "dv": lab.put(golden["d_v"])}
        bound["d_qkv"] = lab.out(golden["k_raw"].size)
        params = {"kv_heads": heads, "stride": heads * head, "k_offset": 0, "v_offset": 0, "eps": EPS}
        lab.run("kv_back", [heads, count], bound, params, constants)
        assert near(read(lab, bound["d_qkv"], count, heads, head), golden["d_k_raw"])


# -- attention


class Packed:
    """A golden sequence in the middle of a pass, behind another and before an unused row; heads filled up to 16s."""

    def __init__(self, lab: Lab, k: Floats, v: Floats, window: int) -> None:
        self.lab, self.window = lab, window
        self.count, self.kv_heads, self.narrow = k.shape
        self.head = -(-self.narrow // 16) * 16
        rows = [Row(1, t, 0, t) for count in (BEFORE, self.count) for t in range(count)] + [Row(0, 0)]
        self.rows = len(rows)
        still = np.tile(np.array([1, 0], dtype=np.float32), 257 * self.head // 2)  # the angles are 0
        self.bound: dict[str, Binding] = {"rows": lab.put_rows(rows), "turns": lab.put(still)}
        self.bound["norm"] = lab.put(np.full(self.head, STILL**0.5))
        self.bound |= {"keys": lab.put(paired(self.placed(k))), "values": lab.put(self.placed(v))}
        self.owed = [lab.out(self.rows * self.kv_heads * self.head) for _ in range(2)]

    def placed(self, x: Floats) -> Floats:
        made = self.lab.normal(self.rows, x.shape[1], self.head)
        made[BEFORE:-1] = 0
        made[BEFORE:-1, :, : self.narrow] = x
        return made

    def read(self, buffer: Buffer, heads: int) -> NDArray[Any]:
        made = read(self.lab, buffer, self.rows, heads, self.head)
        return made[BEFORE:-1]

    def there_and_back(self, q: Floats, d_o: Floats, *, add: bool = False) -> tuple[NDArray[Any], ...]:
        """(o, lse, d_q); what is owed to keys and values goes, or is added, to `owed`."""
        lab, rows, head, heads = self.lab, self.rows, self.head, q.shape[1]
        stride, size = heads * head, rows * heads * head
        d_out = self.placed(d_o)
        d_out[-1] = np.nan
        out, lse = lab.out(size), lab.out(rows * heads)
        bound = self.bound | {"q_raw": lab.put(self.placed(q)), "d_out": lab.put(d_out), "out": out}
        bound |= {"partial": lse, "lse": lse, "q": lab.out(rows * heads * (head + 4)), "dq": lab.out(size)}
        bound |= {"dk": self.owed[0], "dv": self.owed[1]}
        turning = {"HEAD": head, "PAIRS": head // 2, "THREADS": 64}
        looking = {"WORD": "vec4<f32>", "PER_WORD": 4, "PACKED": True, **many_form(lab.device, f16=False)}
        params = {"heads": heads, "kv_heads": self.kv_heads, "stride": stride, "window": self.window, "eps": STILL}
        params |= {"table": 0, "table_step": 0, "first": 0, "count": rows}
        params |= {"splits": 1, "resumes": False, "final_segment": True}
        lab.run("attention", [heads, rows], bound, params, turning | looking)
        lab.run("attention_prepare", [heads, rows], bound, {"heads": heads, "stride": stride, "eps": STILL}, turning)
        backward = {"HEAD": head, "THREADS": back_threads(head)}
        shape = {"heads": heads, "kv_heads": self.kv_heads, "window": self.window, "rows": rows}
        lab.run("attention_back", [heads, -(-rows // 4)], bound, shape, backward)
        lab.run("attention_back_kv", [self.kv_heads, -(-rows // 4)], bound, {**shape, "add": add}, backward)
        d_qkv = lab.out(size)
        ends = {**bound, "k_raw": bound["q_raw"], "dk": bound["dq"], "d_qkv": d_qkv}
        params = {"kv_heads": heads, "stride": stride, "k_offset": 0, "eps": STILL}
        lab.run("kv_back", [heads, rows], ends, params, turning | {"QUERIES": True})
        assert not read(lab, d_qkv, rows, heads, head)[-1].any()
        sums = read(lab, lse, rows, heads)[BEFORE:-1]
        return self.read(out, heads)[..., : self.narrow], sums.T, self.read(d_qkv, heads)[..., : self.narrow]

    def settled(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """(d_k, d_v)."""
        d_k, d_v = (self.read(owed, self.kv_heads) for owed in self.owed)
        return apart(d_k)[..., : self.narrow], d_v[..., : self.narrow]


@pytest.mark.parametrize("golden", ATTENTION, indirect=True)
def test_attention_on_packed_rows_and_its_way_back(gpu: NativeDevice, golden: Golden) -> None:
    with Lab(gpu, 0) as lab:
        packed = Packed(lab, golden["k"], golden["v"], int(golden["window"]))
        o, lse, d_q = packed.there_and_back(golden["q"], golden["d_o"])
        d_k, d_v = packed.settled()
    assert near(o, golden["o"])
    assert near(lse, golden["lse"])
    assert near(d_q, golden["d_q"])
    assert near(d_k, golden["d_k"])
    assert near(d_v, golden["d_v"])


@pytest.mark.parametrize("golden", ["attn_shared_kv"], indirect=True)
def test_layers_that_share_keys_and_values_add_up_what_they_owe(gpu: NativeDevice, golden: Golden) -> None:
    with Lab(gpu, 0) as lab:
        packed = Packed(lab, golden["k"], golden["v"], int(golden["window"]))
        for layer in (1, 2):
            o, _, d_q = packed.there_and_back(golden[f"q{layer}"], golden[f"d_o{layer}"], add=layer > 1)
            assert near(o, golden[f"o{layer}"])
            assert near(d_q, golden[f"d_q{layer}"])
        d_k, d_v = packed.settled()
    assert near(d_k, golden["d_k"])
    assert near(d_v, golden["d_v"])


# -- experts


def filled(x: Floats, *shape: int) -> Floats:
    """With zeros around it."""
    whole = np.zeros(shape, dtype=np.float32)
    whole[tuple(slice(size) for size in x.shape)] = x
    return whole


class Mixture:
    """The golden's experts, its 20 columns and 10 of an expert filled up to 32 each. A norm over 32 columns of which
    twelve are 0 is one over 20 with other weights and another ε."""

    WIDE = 32

    def __init__(self, lab: Lab, golden: Golden) -> None:
        self.lab, self.golden = lab, golden
        self.rows, narrow = golden["h"].shape
        self.experts, self.slots = len(golden["router_w"]), golden["top_index"].shape[1]
        self.eps = EPS * narrow / self.WIDE
        factor = (narrow / self.WIDE) ** 0.5
        none = np.zeros(narrow)
        router = golden["router_scale"] * narrow**-0.5
        self.norms = self.put(factor * np.stack([none, none, golden["w_pre_norm"], router]), 4)
        self.join = self.put(factor * np.stack([none, golden["w_post_norm"]]), 2)
        self.router = self.matrix(golden["router_w"])
        gate, up = np.split(golden["gate_up"], 2, axis=1)
        pairs = np.stack([filled(half, self.experts, self.WIDE, self.WIDE) for half in (gate, up)], axis=2)
        self.gate_up = self.matrix(pairs.reshape(-1, self.WIDE))
        self.down = self.matrix(filled(golden["down"], self.experts, self.WIDE, self.WIDE).reshape(-1, self.WIDE))
        self.zeros = self.put(np.zeros((self.rows, narrow)), self.rows)
        each = self.rows * self.slots
        sizes = dict.fromkeys(("v", "y", "d_dense", "d_sum", "d_router"), self.rows) | {"x": 3 * (self.rows + 1)}
        sizes |= dict.fromkeys(("routed", "act", "d_act", "d_experts"), each)
        sizes |= dict.fromkeys(("wide", "d_wide"), 2 * each)
        self.made = {name: lab.out(self.WIDE * size) for name, size in sizes.items()}
        self.made |= {name: lab.out(self.rows * self.experts) for name in ("scores", "dscores")}
        self.made |= {name: lab.out(each) for name in ("chosen", "weights")}
        self.made |= {"expert_scale": lab.put(golden["per_expert_scale"]), "dv": self.put(np.zeros((1, 1)), self.rows)}

    def put(self, x: NDArray[Any], rows: int) -> Buffer:
        return self.lab.put(filled(x, rows, self.WIDE))

    def matrix(self, values: Floats) -> Matrix:
        raw = quantize(filled(values, len(values), self.WIDE), "F32")
        return self.lab.matrix("F32", self.WIDE, [(raw, RowOrder())])

    def forward(self) -> NDArray[Any]:
        lab, made, rows = self.lab, self.made, self.rows
        bound = {"h": self.put(self.golden["h"], rows), "o": self.zeros, "norms": self.norms, "h_out": made["v"]}
        padded = rows + rows % 2
        params = {"blocks": 1, "rows": padded, "eps": self.eps}
        lab.run("experts_norm", [rows], {**bound, "x": made["x"]}, params, norm_constants(self.WIDE))
        _, inner, router = read(lab, made["x"], 3, padded, self.WIDE)[:, :rows]
        tape = Tape(lab.device, "experts")
        matmuls = Matmuls(lab.device, self.eps)
        choices = Choices(rows, self.slots, self.experts, made["chosen"])
        matmuls.linear(tape, self.router, rows, lab.put(router), Result(made["scores"]))
        tape.run("route", [rows], made, {"experts": self.experts, "used": self.slots})
        matmuls.experts(tape, self.gate_up, choices, lab.put(inner), made["wide"])
        gates = {"x": made["wide"], "y": made["act"]}
        tape.run("activate", [1, rows * self.slots], gates, {"n": self.WIDE}, {"GEGLU": True})
        matmuls.experts(tape, self.down, choices, made["act"], made["routed"], weights=made["weights"])
        bound = {"dense": self.zeros, "routed": made["routed"], "norms": self.join, "y": made["y"]}
        params = {"blocks": 1, "slots": self.slots, "eps": self.eps}
        tape.run("experts_join", [rows], bound, params, norm_constants(self.WIDE))
        tape.program().replay()
        tape.free()
        return read(lab, made["y"], rows, self.WIDE)

    def back(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """(the gradient of the weights, that of h)."""
        lab, made, rows, slots = self.lab, self.made, self.rows, self.slots
        shape = {"blocks": 1, "slots": slots, "eps": self.eps}
        threads = {"THREADS": 256}
        ends: dict[str, Binding] = {**made, "dense": self.zeros, "norms": self.join}
        lab.run("experts_join_back", [rows], {**ends, "dy": self.put(self.golden["d_y"], rows)}, shape, threads)
        self.product(self.down, made["d_sum"], made["d_act"], {"PER_SLOT": False})
        unweighted = read(lab, made["d_act"], rows, slots, self.WIDE)
        d_weights = (unweighted * read(lab, made["act"], rows, slots, self.WIDE)).sum(axis=-1)
        params = {"experts": self.experts, "used": slots, "width": self.WIDE}
        lab.run("route_back", [rows], made, params, {"THREADS": 64})
        gates = {"x": made["wide"], "dy": made["d_act"], "dx": made["d_wide"]}
        lab.run("activate_back", [1, rows * slots], gates, {"n": self.WIDE}, {"GEGLU": True})
        self.product(self.gate_up, made["d_wide"], made["d_experts"], {"PER_SLOT": True})
        part = self.router.parts[0]
        scored: dict[str, Binding] = {**part.bindings(), "dy": made["dscores"], "dx": made["d_router"]}
        params = {"blocks": 1, "n": self.experts, "rows": rows, "stride": self.experts, "offset": 0, "add": False}
        form = tile_back_form(lab.device, rows)
        lab.run("tile_back", [1, 1], scored, params, {"TYPE": "f32", **form})
        ends = {**made, "norms": self.norms, "d_dense": self.zeros}
        lab.run("experts_norm_back", [rows], ends, shape, threads)
        return d_weights, read(lab, made["dv"], rows, self.WIDE)

    def product(self, matrix: Matrix, dy: Buffer, dx: Buffer, constants: dict[str, Any]) -> None:
        per_expert, (part,) = matrix.rows // self.experts, matrix.parts
        bound: dict[str, Binding] = {**part.bindings(), "dy": dy, "dx": dx, "chosen": self.made["chosen"]}
        params = {
            "blocks": 1,
            "n": per_expert,
            "slots": self.slots,
            "first_expert": 0,
            "experts": self.experts,
            "add": False,
        }
        self.lab.run("experts_back", [1, self.rows, self.slots], bound, params, constants | {"TYPE": "f32"})


@pytest.mark.parametrize("golden", ["moe_block"], indirect=True)
def test_the_gradient_flows_through_the_experts_and_through_their_weights(gpu: NativeDevice, golden: Golden) -> None:
    narrow = golden["h"].shape[1]
    with Lab(gpu, 0) as lab:
        mixture = Mixture(lab, golden)
        y = mixture.forward()
        chosen = lab.read(mixture.made["chosen"], "<u4")[:-GUARD].reshape(golden["top_index"].shape)
        d_weights, d_h = mixture.back()
    assert (chosen == golden["top_index"]).all()
    assert near(y[:, :narrow], golden["y"])
    assert near(d_weights, golden["d_top_weight"])
    assert near(d_h[:, :narrow], golden["d_h"])
    assert not d_h[:, narrow:].any()
