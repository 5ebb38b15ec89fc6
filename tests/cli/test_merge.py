"""`wgemma merge` writes the model with the adapter merged in, complete or not at all."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from adapter_maker import adapter, difference, pair
from random_weights import randomised
from wgemma.checks import human_bytes
from wgemma.cli import main
from wgemma.files.adapters import AdapterFile, Pair, read_adapter, write_gguf_adapter
from wgemma.files.gguf import Gguf
from wgemma.files.writing import NewTensor, write_gguf
from wgemma.reference.decoder import Reference
from wgemma.reference.dequantize import dequantize

BASES = {"e2b": "tiny-e2b", "31b": "tiny-31b", "26b": "tiny-26b-a4b"}


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, data: Path) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    return data / "ollama-store"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.gguf"


def values(path: str | Path, name: str) -> NDArray[np.float32]:
    with Gguf.open(path) as gguf:
        tensor = gguf.tensors[name]
        return dequantize(gguf.read(name), tensor.type, (-1, tensor.shape[0]))


def unquantised(model: Path, path: Path) -> Path:
    """The model in F32."""
    with Gguf.open(model) as gguf:
        tensors = {
            name: NewTensor("F32", tensor.shape, dequantize(gguf.read(name), tensor.type).tobytes())
            for name, tensor in gguf.tensors.items()
        }
        write_gguf(path, gguf.metadata, tensors)
    return path


def errors(model: Path, golden: Path, tokens: Path) -> tuple[float, float]:
    """The maximum and RMS difference of the logits from the golden ones."""
    ids, expected = json.loads(tokens.read_text()), np.load(golden)
    with Gguf.open(model) as gguf:
        reference = Reference(gguf)
        wrong = np.concatenate([reference.logits(ids[key]) - expected[key] for key in ("short", "long")])
    return float(np.abs(wrong).max()), float(np.sqrt(np.mean(wrong**2)))


def written(made: AdapterFile, path: Path) -> str:
    write_gguf_adapter(made, path)
    return str(path)


# -- the sums


@pytest.mark.parametrize("name", ["e2b-lora7", "e2b-lora9.gguf", "e2b-rslora", "31b-pattern", "26b-lora7.gguf"])
def test_a_model_in_f32_gives_the_adapters_logits(shared: Path, tmp_path: Path, out: Path, name: str) -> None:
    base = unquantised(shared / "models" / f"{BASES[name[:3]]}-F16.gguf", tmp_path / "base.gguf")
    assert main(["merge", str(base), str(shared / "lora" / "adapters" / name), "-o", str(out)]) == 0
    golden = shared / "lora" / "logits" / f"{name.removesuffix('.gguf')}.npz"
    assert errors(out, golden, golden.parent / "tokens.json")[0] < 2e-4


@pytest.mark.parametrize(("kind", "most", "bare"), [("Q8_0", 0.1, 1.4), ("Q4_K_M", 1.0, 1.4)])
def test_a_quantised_model_comes_as_near_as_its_types_allow(
    shared: Path, out: Path, kind: str, most: float, bare: float
) -> None:
    base, logits = shared / "models" / f"tiny-e2b-{kind}.gguf", shared / "lora" / "logits"
    assert main(["merge", str(base), str(shared / "lora/adapters/e2b-lora7"), "-o", str(out)]) == 0
    golden = logits / f"e2b-lora7.{kind}-dequant.npz"
    assert errors(out, golden, logits / "tokens.json")[1] < most
    assert errors(base, golden, logits / "tokens.json")[1] > bare


def test_every_type_of_a_mixture_model_is_written_again(shared: Path, out: Path) -> None:
    base, lora = shared / "models/tiny-26b-a4b-Q4_K_M.gguf", shared / "lora/adapters/26b-lora7.gguf"
    assert main(["merge", str(base), str(lora), "-o", str(out)]) == 0
    kinds = set()
    with Gguf.open(base) as gguf:
        for name, made in read_adapter(lora).pairs.items():
            kind, wanted = gguf.tensors[name].type, values(base, name) + difference(made)
            kinds.add(kind)
            error = np.sqrt(np.mean((values(out, name) - wanted) ** 2) / np.mean(wanted**2))
            assert error < {"Q4_K": 0.09, "Q5_0": 0.05, "Q6_K": 0.025, "Q8_0": 0.01}[kind]
    assert {"Q4_K", "Q5_0"} < kinds


def test_the_store_model_with_its_own_adapter_becomes_one_file(tmp_path: Path, out: Path, store: Path) -> None:
    """A stored model's own adapters are part of it."""
    nothing = written(adapter(blk__0__attn_q=pair(64, 64)), tmp_path / "nothing.gguf")
    assert main(["merge", "someone/mygemma:v1", nothing, "--scale", "0", "-o", str(out)]) == 0
    layers = json.loads((store / "EXPECTED.json").read_text())["models"]["someone/mygemma:v1"]
    base = store / layers["model"]
    for name, made in read_adapter(store / layers["adapters"][0]).pairs.items():
        np.testing.assert_allclose(values(out, name), values(base, name) + difference(made), atol=0.01)


def test_ollamas_adapter_layer_gives_its_golden_logits(shared: Path, tmp_path: Path, out: Path, store: Path) -> None:
    layers = json.loads((store / "EXPECTED.json").read_text())["models"]["someone/mygemma:v1"]
    base = unquantised(store / layers["model"], tmp_path / "base.gguf")
    assert main(["merge", str(base), str(store / layers["adapters"][0]), "-o", str(out)]) == 0
    ids = json.loads((shared / "micro/golden.json").read_text())["sequences"]["short"]
    with Gguf.open(out) as gguf:
        wrong = Reference(gguf).logits(ids) - np.load(shared / "micro/logits_short.lora.npy")
    assert np.abs(wrong).max() < 1e-4


# -- what stays


def test_all_but_the_changed_rows_is_the_same_byte_for_byte(tmp_path: Path, out: Path, store: Path) -> None:
    made = pair(64, 64)
    made.b[4 * made.rank :] = made.b[4 * made.rank :].__class__("f", bytes(4 * 60 * made.rank))  # rows from 4 on are 0
    lora = written(adapter(blk__2__attn_q=made), tmp_path / "lora.gguf")
    assert main(["merge", "gemma4:tiny", lora, "-o", str(out)]) == 0
    base = store / json.loads((store / "EXPECTED.json").read_text())["models"]["gemma4:tiny"]["model"]
    with Gguf.open(base) as gguf:
        tensor = gguf.tensors["blk.2.attn_q.weight"]
    before, after = base.read_bytes(), out.read_bytes()
    start, end = tensor.offset, tensor.offset + 4 * tensor.format.row_nbytes(64)
    assert len(before) == len(after)
    assert (before[:start], before[end:]) == (after[:start], after[end:])
    assert before[start:end] != after[start:end]


@pytest.mark.parametrize("kind", ["Q4_K", "IQ4_XS"])
def test_a_scale_of_nothing_changes_nothing(shared: Path, tmp_path: Path, out: Path, kind: str) -> None:
    base = randomised(shared / "models/tiny-31b-F16.gguf", tmp_path / "base.gguf", kind)
    lora = written(adapter(blk__0__attn_q=pair(256, 256), token_embd=pair(256, 1024)), tmp_path / "lora.gguf")
    assert main(["merge", str(base), lora, "--scale", "0", "-o", str(out)]) == 0
    assert out.read_bytes() == base.read_bytes()


def test_the_embedded_model_is_merged_where_none_is_named(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from wgemma.embedded import embedded_model

    path = embedded_model()
    assert path is not None
    with Gguf.open(path) as gguf:
        columns, rows = gguf.tensors["blk.0.attn_q.weight"].shape
    lora = written(adapter(blk__0__attn_q=pair(columns, rows)), tmp_path / "lora.gguf")
    assert main(["merge", lora, "--json", "--scale", "0.5", "-o", str(out)]) == 0
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    assert (facts["adapter"], facts["scale"], facts["changed"], facts["size"]) == ("lora", 0.5, 1, out.stat().st_size)
    assert printed.err.endswith(": 100 %\n")


# -- embedding, output, experts


@pytest.fixture
def tied(shared: Path, tmp_path: Path) -> Path:
    return unquantised(shared / "models/tiny-31b-F16.gguf", tmp_path / "base.gguf")


@pytest.mark.parametrize("adapted", [("token_embd",), ("output",), ("token_embd", "output")])
def test_one_table_becomes_two_where_they_differ(
    tied: Path, tmp_path: Path, out: Path, adapted: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    made: dict[str, Pair] = {name: pair(256, 1024, seed=len(name)) for name in adapted}
    lora = written(adapter(blk__0__attn_q=pair(256, 256), **made), tmp_path / "lora.gguf")
    assert main(["merge", str(tied), lora, "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["size"] == out.stat().st_size
    table = values(tied, "token_embd.weight")
    for name in ("token_embd", "output"):
        expected = table + difference(made[name]) if name in made else table
        np.testing.assert_allclose(values(out, f"{name}.weight"), expected, atol=1e-6)
    with Gguf.open(out) as new, Gguf.open(tied) as old:
        assert new.metadata == old.metadata
        same = old.tensors.keys() - {"token_embd.weight", "blk.0.attn_q.weight"}
        assert all(new.read(name) == old.read(name) for name in same)
        assert np.isfinite(Reference(new).logits([2, 5, 7])).all()


@pytest.mark.parametrize("adapted", [(), ("token_embd",), ("output",)])
def test_what_cannot_be_written_again_becomes_q8_0(
    shared: Path, tmp_path: Path, out: Path, adapted: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    base = randomised(shared / "models/tiny-31b-F16.gguf", tmp_path / "base.gguf", "IQ4_XS")
    made: dict[str, Pair] = {name: pair(256, 1024, seed=len(name)) for name in adapted}
    query = pair(256, 256)
    lora = written(adapter(blk__0__attn_q=query, **made), tmp_path / "lora.gguf")
    assert main(["merge", str(base), lora, "-o", str(out)]) == 0
    size, count = human_bytes(out.stat().st_size), f"{1 + len(made)} tensor{'s' if made else ''}"
    said = f", {size}.\n{count} became Q8_0, because wgemma reads IQ4_XS but does not write it.\n"
    assert capsys.readouterr().out.endswith(said)
    changed = {"blk.0.attn_q.weight": query} | {f"{name}.weight": each for name, each in made.items()}
    with Gguf.open(out) as new, Gguf.open(base) as old:
        assert new.metadata == old.metadata
        for name, tensor in new.tensors.items():
            known = name if name in old.tensors else "token_embd.weight"
            if name not in changed:
                assert (tensor.type, new.read(name)) == (old.tensors[known].type, old.read(known))
            else:
                expected = values(base, known) + difference(changed[name])
                assert tensor.type == "Q8_0"
                assert np.abs(values(out, name) - expected).max() < np.abs(expected).max() / 200
        assert np.isfinite(Reference(new).logits([2, 5, 7])).all()


def test_every_expert_gets_its_own(shared: Path, tmp_path: Path, out: Path) -> None:
    base = unquantised(shared / "models/tiny-26b-a4b-F16.gguf", tmp_path / "base.gguf")
    with Gguf.open(base) as gguf:
        columns, rows, experts = gguf.tensors["blk.1.ffn_down_exps.weight"].shape
    made = pair(columns, rows, experts=experts)
    lora = written(adapter(blk__1__ffn_down_exps=made), tmp_path / "lora.gguf")
    assert main(["merge", str(base), lora, "-o", str(out)]) == 0
    expected = values(base, "blk.1.ffn_down_exps.weight") + difference(made)
    np.testing.assert_allclose(values(out, "blk.1.ffn_down_exps.weight"), expected, atol=1e-6)


# -- what is refused


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["merge", *map(str, arguments)]) == 1
    return capsys.readouterr().err.splitlines()[-1].removeprefix("wgemma: ")


@pytest.fixture
def lora(tmp_path: Path) -> str:
    return written(adapter(blk__0__attn_q=pair(64, 64)), tmp_path / "lora.gguf")


def test_a_file_that_is_there_is_replaced_only_by_force(
    lora: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out.write_bytes(b"precious")
    assert refused(capsys, "gemma4:tiny", lora, "-o", out) == f"{out} already exists. Use --force to overwrite it."
    assert out.read_bytes() == b"precious"
    assert main(["merge", "gemma4:tiny", lora, "-o", str(out), "--force"]) == 0
    assert out.read_bytes()[:4] == b"GGUF"
    assert [path.name for path in sorted(out.parent.iterdir())] == ["lora.gguf", "out.gguf"]


def test_the_model_itself_is_never_the_output(
    lora: str, out: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = store / json.loads((store / "EXPECTED.json").read_text())["models"]["gemma4:tiny"]["model"]
    out.symlink_to(base)
    assert "is the model itself" in refused(capsys, "gemma4:tiny", lora, "-o", out, "--force")


def test_mistakes_are_one_sentence(tmp_path: Path, lora: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = written(adapter(blk__0__attn_q=pair(64, 65)), tmp_path / "wide.gguf")
    assert "of shape [64, 65], but the model's is [64, 64]." in refused(capsys, "gemma4:tiny", wide, "-o", out)
    assert "must be a number" in refused(capsys, "gemma4:tiny", lora, "--scale", "nan", "-o", out)
    assert "is a folder" in refused(capsys, "gemma4:tiny", lora, "-o", tmp_path)
    assert "create it first" in refused(capsys, "gemma4:tiny", lora, "-o", tmp_path / "a" / "b.gguf")
    assert "no such file" in refused(capsys, "gemma4:tiny", tmp_path / "none.gguf", "-o", out)
    assert "not an adapter" in refused(capsys, "gemma4:tiny", locate_blob("gemma4:tiny"), "-o", out)
    assert not out.exists()


def test_values_beyond_the_type_are_refused(shared: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, adapter = shared / "models/tiny-e2b-F16.gguf", shared / "lora/adapters/e2b-lora7"
    message = refused(capsys, base, adapter, "--scale", "1e9", "-o", out)
    assert message == "blk.0.ffn_down.weight would overflow F16. Try a smaller --scale."
    assert not list(out.parent.iterdir())


def test_so_are_those_beyond_the_type_a_tensor_becomes(
    shared: Path, tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = randomised(shared / "models/tiny-31b-F16.gguf", tmp_path / "base.gguf", "IQ4_XS")
    lora = written(adapter(blk__0__attn_q=pair(256, 256)), tmp_path / "lora.gguf")
    message = refused(capsys, base, lora, "--scale", "1e9", "-o", out)
    assert message == "blk.0.attn_q.weight would overflow Q8_0. Try a smaller --scale."


def locate_blob(name: str) -> str:
    from wgemma.files.locate import locate

    return str(locate(name).model)


def test_a_full_disk_leaves_nothing(lora: str, out: Path) -> None:
    pytest.importorskip("resource")
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19,) * 2); "
    code = limited + "from wgemma.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "merge", "gemma4:tiny", lora, "-o", str(out)]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1] == f"wgemma: {out} cannot be written: File too large."
    assert [path.name for path in out.parent.iterdir()] == ["lora.gguf"]
