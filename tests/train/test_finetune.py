"""A fine-tuning from a file to a folder, with a learner small enough to see through and with the real one."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from platform import node
from threading import Event
from typing import Any

import numpy as np
import pytest

import wgemma
from bigram_learner import After, BigramLearner
from random_weights import randomised
from wgemma import Tokenizer
from wgemma.errors import AdapterError, DataError, SettingsError, TrainingError
from wgemma.files.adapters import read_adapter
from wgemma.files.gguf import Gguf
from wgemma.files.ollama import Store
from wgemma.files.writing import NewTensor, write_gguf
from wgemma.gpu.native import NativeDevice
from wgemma.reference.dequantize import dequantize
from wgemma.reference.lab import random_blocks
from wgemma.sync import run
from wgemma.train.finetune import Task, TrainingResult, finetune, prepare_task
from wgemma.train.trainer import Progress

STORE = Path(__file__).resolve().parent.parent / "data" / "ollama-store"
TINY = Store(STORE).model("gemma4:tiny").model
TOKENIZER = Tokenizer.from_gguf(TINY)
RECORDS = [{"prompt": f"Say {word}.", "completion": f"{word} {word}"} for word in ("yes", "no", "cat", "sun", "red")]


def task(out: Path, source: Any = RECORDS, **given: Any) -> Task:
    options = {name: given.pop(name) for name in ("resume", "skip_bad") if name in given}
    given = given if options.get("resume") else {"rank": 2, "epochs": 2, "batch": 1, "seq": 64, **given}
    return run(prepare_task(source, out, given, TOKENIZER, "small", context=512, **options))


def finetuned(made: Task, **more: Any) -> TrainingResult:
    learner = BigramLearner(len(TOKENIZER), made.settings)
    return run(finetune(made, learner, base="gemma4:tiny", model="m", **more))


def test_a_training_leaves_an_adapter_a_card_and_a_curve(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    made = task(out, validation=0.2, alpha=6.0)
    told: list[Progress] = []
    result = finetuned(made, progress=told.append, memory=lambda: 123)
    assert (result.out, result.adapter, result.stopped) == (out, out, False)
    assert len(result.losses) == result.steps == made.steps == len(told)
    assert told[0].memory == 123
    peft, gguf = read_adapter(out), read_adapter(out / "adapter.gguf")
    assert peft.pairs == gguf.pairs and peft.pairs["blk.0.attn_q.weight"].scale == 3.0
    assert peft.base == gguf.base == "gemma4:tiny"
    kept = json.loads((out / "losses.json").read_text())
    assert kept["losses"] == result.losses and kept["validation"] == [list(v) for v in result.validation]
    card = (out / "README.md").read_text()
    assert "wgemma run gemma4:tiny --adapter" in card and f"{result.losses[-1]:.4f}" in card
    assert "| examples | 4 |" in card and "| held out for validation | 1 |" in card
    assert (out / "loss.svg").read_text().startswith("<svg")


def test_a_stopped_training_goes_on_with_the_settings_it_began_with(tmp_path: Path) -> None:
    whole = finetuned(task(tmp_path / "whole", steps=6, dropout=0.0, lr=0.01))
    first = finetuned(task(tmp_path / "part", steps=6, lr=0.01), cancel=After(2))
    assert first.stopped and first.adapter is None and first.steps == 3
    assert not (tmp_path / "part" / "adapter.gguf").exists()
    rest = finetuned(task(tmp_path / "part", resume=True))
    assert rest.losses == whole.losses and rest.adapter == tmp_path / "part"
    assert read_adapter(rest.adapter).pairs == read_adapter(tmp_path / "whole").pairs


def test_a_run_that_is_over_can_be_extended(tmp_path: Path) -> None:
    steady = {"lr": 0.01, "schedule": "constant", "warmup": 0.0}
    whole = finetuned(task(tmp_path / "whole", steps=12, **steady))
    finetuned(task(tmp_path / "part", steps=5, **steady))
    rest = finetuned(task(tmp_path / "part", resume=True, steps=12))
    assert rest.losses == whole.losses
    assert read_adapter(tmp_path / "part").pairs == read_adapter(tmp_path / "whole").pairs


def test_the_schedule_of_an_extended_run_follows_its_new_length(tmp_path: Path) -> None:
    told: list[Progress] = []
    made = task(tmp_path, steps=4, warmup=0.0, lr=0.01)
    finetuned(made)
    finetuned(task(tmp_path, resume=True, steps=8), progress=told.append)
    assert [made.step for made in told] == [5, 6, 7, 8]
    assert [step.rate for step in told] == [made.settings.rate_at(step, 8) for step in (4, 5, 6, 7)]
    assert told[0].rate == pytest.approx(0.005)


def test_epochs_extend_a_run_of_steps_and_fewer_steps_are_refused(tmp_path: Path) -> None:
    finetuned(task(tmp_path, steps=4))
    longer = task(tmp_path, resume=True, epochs=3)
    assert longer.settings.steps is None and longer.steps > 4
    with pytest.raises(TrainingError, match=r"checkpoint-4 is beyond the 2 steps of this training\. Ask for more"):
        task(tmp_path, resume=True, steps=2)


def test_a_checkpoint_is_an_adapter_too(tmp_path: Path) -> None:
    result = finetuned(task(tmp_path, steps=4, save_every=2))
    assert read_adapter(tmp_path / f"checkpoint-{result.steps}").pairs == read_adapter(tmp_path).pairs
    assert read_adapter(tmp_path / "checkpoint-2").pairs.keys() == read_adapter(tmp_path).pairs.keys()
    assert read_adapter(tmp_path / "checkpoint-2").pairs != read_adapter(tmp_path).pairs


def test_two_trainings_into_one_folder_are_refused_before_and_after_the_model_is_loaded(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first, second = task(out), task(out)
    refusals: list[str] = []

    def meanwhile(made: Progress) -> None:
        for attempt in (lambda: finetuned(second), lambda: task(out), lambda: task(out, resume=True)):
            with pytest.raises(TrainingError) as caught:
                attempt()
            refusals.append(str(caught.value))

    whole = finetuned(first, progress=meanwhile)
    expected = (
        f"process {os.getpid()} on {node()} is training into {out}. Wait until it is done, or use another folder."
    )
    assert refusals == [expected] * 3 * whole.steps
    assert not (out / "training.lock").exists()
    with pytest.raises(TrainingError, match="contains a training run"):
        finetuned(second)


def test_a_training_that_was_resumed_elsewhere_is_not_resumed_again(tmp_path: Path) -> None:
    finetuned(task(tmp_path, steps=6), cancel=After(2))
    first, second = task(tmp_path, resume=True), task(tmp_path, resume=True)
    finetuned(first)
    with pytest.raises(TrainingError, match="was changed by another training"):
        finetuned(second)


def test_the_lock_a_killed_training_left_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "training.lock").write_text(f"12 {node()}")
    assert finetuned(task(tmp_path)).adapter == tmp_path


def test_a_checkpoint_beyond_the_last_step_is_refused(tmp_path: Path) -> None:
    finetuned(task(tmp_path, steps=6), cancel=After(2))
    state = json.loads((tmp_path / "checkpoint-3" / "state.json").read_text())
    (tmp_path / "checkpoint-3").rename(tmp_path / "checkpoint-7")
    state |= {"step": 7, "losses": [1.0] * 7}
    (tmp_path / "checkpoint-7" / "state.json").write_text(json.dumps(state))
    with pytest.raises(TrainingError, match="checkpoint-7 is beyond the 6 steps"):
        task(tmp_path, resume=True)


def test_without_a_folder_there_is_no_training(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="out is missing"):
        run(prepare_task(RECORDS, None, {}, TOKENIZER, "small", context=512))
    for out in ("a\0b", 5):
        with pytest.raises(SettingsError, match="is not a path"):
            task(out)  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match="File name too long"):
        finetuned(task(tmp_path / ("x" * 300)))


def test_a_stop_that_comes_with_the_last_step_is_an_end(tmp_path: Path) -> None:
    asked = Event()
    asked.set()
    assert finetuned(task(tmp_path / "out", steps=1), cancel=asked).adapter == tmp_path / "out"


def test_without_checkpoints_a_training_that_ends_early_gives_what_it_learnt(tmp_path: Path) -> None:
    made = run(prepare_task(RECORDS, tmp_path / "out", {"seq": 64}, TOKENIZER, "small", context=512, checkpoints=False))
    stopped = finetuned(made, cancel=After(0))
    assert stopped.stopped and stopped.adapter == tmp_path / "out" and len(stopped.losses) == 1
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert "adapter.gguf" in files and not any(name.startswith("checkpoint") for name in files)
    for name in ("poisoned", "spoilt"):  # one example is bad, or an update has left nothing to go on with
        given = {"seq": 64, "lr": 0.01, "batch": 1, "packing": False}
        made = run(prepare_task(RECORDS, tmp_path / name, given, TOKENIZER, "small", context=512, checkpoints=False))
        *others, last = (set(step.packs[0][0].ids) for step in made.batches.epoch(0))
        learner = BigramLearner(len(TOKENIZER), made.settings, last.difference(*others) if name == "poisoned" else ())
        if name == "spoilt":
            learner.first[1][:] = float("nan")
        with pytest.raises(TrainingError):
            run(finetune(made, learner, base="x", model="m"))
        assert (tmp_path / name / "adapter.gguf").exists() == (name == "poisoned")


def test_other_data_or_settings_do_not_resume(tmp_path: Path) -> None:
    finetuned(task(tmp_path / "out", steps=3))
    with pytest.raises(TrainingError, match="other examples"):
        task(tmp_path / "out", RECORDS[:-1], resume=True)
    with pytest.raises(TrainingError, match="rank 2, now 3"):
        task(tmp_path / "out", resume=True, rank=3)
    with pytest.raises(TrainingError, match="belongs to another model"):
        made = task(tmp_path / "out", resume=True)
        run(finetune(made, BigramLearner(len(TOKENIZER), made.settings), base="x", model="other"))
    with pytest.raises(TrainingError, match="has no checkpoint"):
        task(tmp_path / "none", resume=True)


def test_a_folder_with_work_in_it_is_not_written_over(tmp_path: Path) -> None:
    finetuned(task(tmp_path / "out", steps=3))
    with pytest.raises(TrainingError, match=r"a training run that reached step 3\. Continue it with --resume"):
        task(tmp_path / "out")
    for folder in (tmp_path / "out").glob("checkpoint-*"):
        folder.rename(tmp_path / folder.name)
    with pytest.raises(TrainingError, match="already contains an adapter"):
        task(tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="is a file"):
        task(tmp_path / "file")


def test_a_file_of_its_own_validates(tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(map(json.dumps, RECORDS[:2])))
    made = task(tmp_path / "out", validation=str(other), steps=3)
    assert len(made.examples) == 5 and sum(map(len, made.held)) == 2
    assert len(finetuned(made).validation) == 3
    other.write_text(json.dumps(RECORDS[0]))
    with pytest.raises(TrainingError, match="other examples"):
        task(tmp_path / "out", resume=True)


def test_what_cannot_work_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="seq is 1024; this model's context is 512 tokens"):
        task(tmp_path, seq=1024)
    with pytest.raises(DataError, match="contains no example"):
        task(tmp_path, [])
    with pytest.raises(DataError, match="line 1: not an object"):
        task(tmp_path, [7])


def test_a_folder_that_cannot_be_made_is_told_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told: list[Progress] = []
    with pytest.raises(TrainingError, match="cannot be created: Not a directory"):
        finetuned(task(tmp_path / "file" / "out"), progress=told.append)
    assert not told


def test_what_was_left_out_and_cut_is_told(tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("nonsense\n" + json.dumps(RECORDS[0]))
    long = {"prompt": "Say it.", "completion": "word " * 90}
    result = finetuned(task(tmp_path / "out", [7, long, *RECORDS], skip_bad=True, validation=str(other), steps=1))
    assert [(bad.line, bad.reason.partition(":")[0]) for bad in result.bad] == [(1, "not an object"), (1, "not JSON")]
    assert result.truncated == 1
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| bad lines skipped | 2 |" in card and "| truncated to the sequence length | 1 |" in card


def test_a_disk_that_is_full_at_the_very_end_can_be_made_good(tmp_path: Path) -> None:
    made = task(tmp_path / "out", steps=2)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "adapter_model.safetensors").mkdir()  # in the way of the file
    with pytest.raises(AdapterError, match="cannot be written"):
        finetuned(made)
    (tmp_path / "out" / "adapter_model.safetensors").rmdir()
    assert finetuned(task(tmp_path / "out", resume=True)).adapter is not None


# -- with the real learner


@pytest.fixture(scope="module")
def plain() -> Iterator[NativeDevice]:
    """Computes as a software adapter should, by plain kernels, quick to compile: they are not what is tested."""
    device = NativeDevice(compact=True)
    yield device
    device.close()


def test_a_model_learns_resumes_exactly_and_stays_what_it_was(plain: NativeDevice, tmp_path: Path) -> None:
    small = {"rank": 2, "steps": 3, "seq": 32, "batch": 4, "lr": 0.01, "targets": "all", "validation": 0.2}
    with wgemma.load(TINY, device=plain) as model:
        before, held = model.logits([2, 30, 31]), plain.allocated
        whole = model.finetune(RECORDS, out=tmp_path / "whole", **small)
        assert len(whole.losses) == whole.steps == 3 and whole.losses[-1] < whole.losses[0]
        first = model.finetune(RECORDS, out=tmp_path / "part", cancel=After(0), **small)
        assert first.stopped and first.losses == whole.losses[:1]
        rest = model.finetune(RECORDS, out=tmp_path / "part", resume=True)
        assert (rest.losses, rest.validation) == (whole.losses, whole.validation)
        assert read_adapter(tmp_path / "part").pairs == read_adapter(tmp_path / "whole" / "adapter.gguf").pairs
        assert plain.allocated == held  # everything was given back
        assert (model.logits([2, 30, 31]) == before).all()
        assert whole.adapter is not None
        model.load_adapter(whole.adapter, name="mine")
        assert (model.logits([2, 30, 31]) != before).any()


def test_what_was_learnt_is_what_a_chat_meets(plain: NativeDevice, tmp_path: Path) -> None:
    """The losses that training computed before its step and after it are those of a chat's own logits, without the
    adapter and with it: from the PEFT folder and from the GGUF."""
    record = {"prompt": "Who?", "completion": "I am here."}
    (tmp_path / "same.jsonl").write_text(json.dumps(record))
    small: dict[str, Any] = {"rank": 2, "steps": 1, "seq": 64, "targets": "all", "lr": 0.05, "warmup": 0}
    with wgemma.load(TINY, device=plain, kv="f32") as model:
        result = model.finetune([record], out=tmp_path / "out", validation=tmp_path / "same.jsonl", **small)
        asked = wgemma.render([{"role": "user", "content": "Who?"}])
        prompt = model.tokenizer.encode(asked, special=True)
        reply = [*model.tokenizer.encode("I am here."), model.tokenizer.id("<turn|>")]
        assert result.losses == pytest.approx([loss_of(model, prompt, reply)], rel=1e-4)
        ((_, after),) = result.validation
        assert after < 0.9 * result.losses[0]
        for path in (tmp_path / "out", tmp_path / "out" / "adapter.gguf"):
            model.load_adapter(path, name="mine")
            assert after == pytest.approx(loss_of(model, prompt, reply), rel=1e-4)


def loss_of(model: wgemma.Model, prompt: list[int], reply: list[int]) -> float:
    """By NumPy, from the logits before every token of the reply."""
    import numpy as np

    logits = model.logits([*prompt, *reply])[len(prompt) - 1 : -1].astype(np.float64)
    nll = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(reply)), reply]
    return float(nll.mean())


def test_eight_examples_are_learnt_by_heart(plain: NativeDevice, tmp_path: Path) -> None:
    """In far fewer than a hundred steps: it stops as soon as it has."""
    chance, learnt = random.Random(0), Event()
    rows = [[chance.randrange(300, 1000) for _ in range(8)] for _ in range(8)]
    records = [{"ids": ids, "labels": ids} for ids in rows]

    def hear(made: Progress) -> None:
        if made.loss < 0.01:
            learnt.set()

    with wgemma.load(TINY, device=plain) as model:
        small: dict[str, Any] = {"rank": 8, "alpha": 16, "batch": 8, "seq": 8, "lr": 0.02, "save_every": 100}
        result = model.finetune(records, out=tmp_path / "out", steps=100, progress=hear, cancel=learnt, **small)
    assert result.losses[0] > 10 and result.losses[-1] < 0.01 and result.steps < 60


def test_a_model_says_that_it_needs_a_folder(plain: NativeDevice) -> None:
    with wgemma.load(TINY, device=plain) as model, pytest.raises(SettingsError, match="out is missing"):
        model.finetune(RECORDS)


def test_a_rate_that_spoils_everything_ends_in_a_sentence(plain: NativeDevice, tmp_path: Path) -> None:
    with wgemma.load(TINY, device=plain) as model:
        held = plain.allocated
        told = r"no longer give a finite loss after step 1, and no single example .* with a lower --lr\.$"
        with pytest.raises(TrainingError, match=told):
            model.finetune(RECORDS, out=tmp_path / "out", rank=2, steps=3, seq=32, lr=1e8, alpha=1e8, warmup=0)
        assert plain.allocated == held and not list((tmp_path / "out").iterdir())


def test_a_model_with_an_adapter_of_its_own_is_not_trained(
    plain: NativeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(STORE))
    told = pytest.raises(wgemma.ModelError, match="already includes an adapter; train one for gemma4:tiny instead")
    with wgemma.load("someone/mygemma:v1", device=plain) as model, told:
        model.finetune(RECORDS, out=tmp_path / "out")


@pytest.mark.parametrize("kind", ["IQ4_XS", "Q3_K", "MXFP4"])
def test_a_type_that_cannot_be_trained_is_refused_by_name(
    plain: NativeDevice, shared: Path, tmp_path: Path, kind: str
) -> None:
    path = randomised(shared / "models/tiny-31b-F16.gguf", tmp_path / "model.gguf", kind)
    told = rf"^token_embd.weight has type {kind}, which wgemma runs but cannot train on. Train on .* this one, too.$"
    with wgemma.load(path, device=plain) as model, pytest.raises(wgemma.ModelError, match=told):
        model.finetune(RECORDS, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_table_without_gradients_may_have_any_type(plain: NativeDevice, shared: Path, tmp_path: Path) -> None:
    name, losses = "per_layer_token_embd.weight", []
    with Gguf.open(shared / "models/tiny-e2b-F16.gguf") as gguf:
        tensors = {each: NewTensor(was.type, was.shape, gguf.read(each)) for each, was in gguf.tensors.items()}
        columns, rows = shape = gguf.tensors[name].shape
        raw = random_blocks(np.random.default_rng(1), "IQ4_NL", rows * columns // 32).tobytes()
        for kind, data in (("IQ4_NL", raw), ("F32", dequantize(raw, "IQ4_NL", (rows, columns)).tobytes())):
            write_gguf(tmp_path / kind, gguf.metadata, {**tensors, name: NewTensor(kind, shape, data)})
            with wgemma.load(tmp_path / kind, device=plain, precision="exact") as model:
                losses.append(model.finetune(RECORDS, out=tmp_path / "out" / kind, rank=2, steps=2, seq=32).losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_without_a_gpu_training_is_refused(tmp_path: Path) -> None:
    with wgemma.load(TINY, device="reference") as model, pytest.raises(wgemma.DeviceError, match="need a GPU"):
        model.finetune(RECORDS, out=tmp_path / "out")
