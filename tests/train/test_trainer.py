"""The loop learns, resumes exactly, stops politely, and names the example that spoils everything."""

import asyncio
import random
from array import array
from pathlib import Path
from typing import Any

import pytest

from bigram_learner import After, BigramLearner
from full_disk import files_of_at_most
from wgemma.errors import TrainingError
from wgemma.sync import run
from wgemma.train.batches import Batches, pack, split
from wgemma.train.checkpoints import Folder, latest, steps_saved
from wgemma.train.data import IGNORED, Example
from wgemma.train.settings import TrainingSettings
from wgemma.train.trainer import Progress, Trainer

VOCABULARY = 12
POISON = 11


def examples(count: int = 24, poisoned: tuple[int, ...] = ()) -> list[Example]:
    """Tokens that go up by two or, more rarely, by one."""
    made, chance = [], random.Random(0)
    for line in range(1, count + 1):
        ids = [chance.randrange(VOCABULARY - 1)]
        for _ in range(chance.randint(3, 9)):
            ids.append((ids[-1] + (1 if chance.random() < 0.2 else 2)) % (VOCABULARY - 1))
        if line in poisoned:
            ids[1] = POISON
        made.append(Example(array("i", ids), array("i", [IGNORED, *ids[1:]]), line))
    return made


def trainer(out: Path, data: list[Example] | None = None, *, cancel: Any = None, **given: Any) -> Trainer:
    settings = TrainingSettings.of({"rank": 8, "lr": 0.05, "epochs": 10, "batch": 2, "seq": 32, **given})
    share = settings.validation if isinstance(settings.validation, float) else 0.0
    kept, held = split(data or examples(), share, settings.seed)
    batches = Batches(kept, settings.batch, settings.seq, settings.seed, settings.packing)
    learner = BigramLearner(VOCABULARY, settings, poison=[POISON])
    return Trainer(
        learner, batches, settings, Folder(out), held=pack(held, settings.seq), model="m", data="d", cancel=cancel
    )


def steps_of(made: Trainer) -> list[Progress]:
    async def collect() -> list[Progress]:
        return [progress async for progress in made.run()]

    return run(collect())


def state_of(made: Trainer) -> dict[str, bytes]:
    return run(made.learner.state())


def resumed(out: Path, **given: Any) -> Trainer:
    made = trainer(out, **given)
    run(made.resume(run(latest(made.storage))))
    return made


# -- learning


def test_the_loss_falls_and_every_step_is_told(tmp_path: Path) -> None:
    made = trainer(tmp_path, validation=0.2)
    told = steps_of(made)
    assert made.losses[-1] < 0.5 * made.losses[0]
    assert [progress.step for progress in told] == list(range(1, made.steps + 1))
    assert [progress.loss for progress in told] == made.losses
    assert told[-1].epoch == 10 and told[-1].seconds_left == 0
    assert all(progress.steps == made.steps and progress.norm > 0 for progress in told)
    assert all(progress.tokens_per_second > 0 for progress in told)
    assert [progress.rate for progress in told] == [made.settings.rate_at(i, made.steps) for i in range(made.steps)]


def test_validation_comes_with_each_checkpoint_and_falls_too(tmp_path: Path) -> None:
    made = trainer(tmp_path, validation=0.2, save_every=4, steps=30)
    told = steps_of(made)
    assert [step for step, _ in made.validation] == [4, 8, 12, 16, 20, 24, 28, 30]
    assert made.validation[-1][1] < made.validation[0][1]
    assert [(p.step, p.validation) for p in told if p.validation is not None] == made.validation


def test_a_number_of_steps_takes_the_place_of_epochs(tmp_path: Path) -> None:
    made = trainer(tmp_path, steps=7)
    assert len(steps_of(made)) == made.steps == len(made.losses) == 7


def test_the_loss_of_a_step_is_the_same_with_and_without_packing(tmp_path: Path) -> None:
    packed, alone = (trainer(tmp_path / str(p), packing=p, batch=100, epochs=5) for p in (True, False))
    steps_of(packed)
    steps_of(alone)
    assert packed.losses == pytest.approx(alone.losses, rel=1e-12)


def test_the_same_seed_learns_the_same_and_another_does_not(tmp_path: Path) -> None:
    one, same, other = (trainer(tmp_path / str(i), seed=seed, steps=9) for i, seed in enumerate((1, 1, 2)))
    for made in (one, same, other):
        steps_of(made)
    assert one.losses == same.losses and state_of(one) == state_of(same)
    assert one.losses != other.losses


# -- checkpoints


@pytest.mark.parametrize("stop", [1, 3, 4, 11])
def test_a_run_that_was_stopped_and_resumed_equals_one_that_was_not(stop: int, tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", validation=0.2, save_every=4, steps=14)
    steps_of(whole)
    part = trainer(tmp_path / "part", validation=0.2, save_every=4, steps=14, cancel=After(stop - 1))
    assert [progress.step for progress in steps_of(part)][-1] == stop
    assert part.stopped and run(steps_saved(part.storage))[-1] == stop
    rest = resumed(tmp_path / "part", validation=0.2, save_every=4, steps=14)
    told = steps_of(rest)
    assert told[0].step == stop + 1 and not rest.stopped
    assert (rest.losses, rest.validation) == (whole.losses, whole.validation)
    assert state_of(rest) == state_of(whole)


def test_checkpoints_come_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    steps_of(trainer(tmp_path / "often", save_every=5, steps=13))
    assert run(steps_saved(Folder(tmp_path / "often"))) == [10, 13]


def test_a_run_that_is_over_has_nothing_left_to_do(tmp_path: Path) -> None:
    made = trainer(tmp_path, steps=4)
    steps_of(made)
    again = resumed(tmp_path, steps=4)
    assert steps_of(again) == [] and again.losses == made.losses


def test_only_the_same_run_is_resumed(tmp_path: Path) -> None:
    steps_of(trainer(tmp_path, steps=4))
    with pytest.raises(TrainingError, match="rank 8, now 4"):
        resumed(tmp_path, steps=4, rank=4)


def test_a_full_disk_ends_the_run_with_the_old_checkpoint_intact(tmp_path: Path) -> None:
    made = trainer(tmp_path, save_every=2, steps=6)
    stream = made.run()

    async def one() -> Progress:
        return await anext(stream)

    assert [run(one()).step for _ in range(3)] == [1, 2, 3]
    told = r"checkpoint-4 cannot be written.*checkpoint-2 is intact"
    with files_of_at_most(100), pytest.raises(TrainingError, match=told):
        run(one())
    rest = resumed(tmp_path, save_every=2, steps=6)
    steps_of(rest)
    whole = trainer(tmp_path / "whole", save_every=2, steps=6)
    steps_of(whole)
    assert state_of(rest) == state_of(whole)


def test_an_event_loop_goes_on_while_it_trains(tmp_path: Path) -> None:
    async def both() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count())
        async for _ in trainer(tmp_path, steps=10).run():
            pass
        other.cancel()
        return turns

    assert asyncio.run(both()) >= 10


# -- losses that are no numbers


def test_the_example_that_makes_the_loss_nan_is_named_and_the_checkpoint_kept(tmp_path: Path) -> None:
    made = trainer(tmp_path, examples(poisoned=(17,)), batch=1, save_every=1, epochs=1, seed=3)
    with pytest.raises(TrainingError) as caught:
        steps_of(made)
    told = str(caught.value)
    assert "the loss became nan in step" in told and "caused by the example in line 17. Fix it or remove it." in told
    assert run(steps_saved(made.storage))[-1] == made.step == len(made.losses)
    assert f"checkpoint-{made.step} in {tmp_path} is the last good one" in told
    assert all(value == value for value in made.losses)


def test_an_example_that_spoils_the_validation_is_named_too(tmp_path: Path) -> None:
    made = trainer(tmp_path, steps=4)
    made.held = pack(examples(poisoned=(5,)), 32)
    with pytest.raises(TrainingError, match="validation loss became nan after step 1, caused by the example in line 5"):
        steps_of(made)


def test_several_bad_examples_are_all_named(tmp_path: Path) -> None:
    made = trainer(tmp_path, examples(poisoned=(3, 17)), batch=100, epochs=1)
    with pytest.raises(TrainingError, match=r"by the example in lines (3, 17|17, 3)"):
        steps_of(made)
    assert not list(tmp_path.iterdir())


def test_weights_that_are_no_numbers_are_nobodys_fault(tmp_path: Path) -> None:
    made = trainer(tmp_path, batch=100, epochs=2)
    made.learner.values[0][:] = float("nan")  # type: ignore[attr-defined]
    with pytest.raises(TrainingError, match=r"no single example is to blame .* with a lower --lr\."):
        steps_of(made)


def test_weights_that_an_update_spoilt_are_not_saved_as_good_ones(tmp_path: Path) -> None:
    made = trainer(tmp_path, batch=100, steps=4, save_every=1)
    update = made.learner.update

    async def spoiling(rate: float, step: int) -> float:
        norm = await update(rate, step)
        if step == 2:
            made.learner.values[0][:] = float("nan")  # type: ignore[attr-defined]
        return norm

    made.learner.update = spoiling  # type: ignore[method-assign]
    told = r"no longer give .* after step 3.* checkpoint-2 .* good one\. Continue .*--resume and a lower --lr\."
    with pytest.raises(TrainingError, match=told):
        steps_of(made)
    assert run(steps_saved(made.storage)) == [1, 2]
