"""Wrong settings are told in a sentence, and the learning rate follows its schedule."""

import json
import math
from itertools import pairwise
from typing import Any

import pytest

from wgemma.errors import SettingsError
from wgemma.train.settings import TARGETS, TrainingSettings

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"rank": 0}, "rank is 0; it must be a whole number from 1 to 1024"),
    ({"rank": True}, "rank is True"),
    ({"rank": 2.0}, "rank is 2.0"),
    ({"alpha": 0}, "alpha is 0; it must be a number above 0"),
    ({"alpha": "32"}, "alpha is '32'"),
    ({"lr": math.nan}, "lr is nan"),
    ({"lr": -1e-4}, "lr is -0.0001; it must be a number above 0"),
    ({"epochs": 0}, "epochs is 0; it must be a whole number from 1 to 10000"),
    ({"epochs": None}, "epochs is None"),
    ({"steps": 0}, "steps is 0"),
    ({"batch": 0}, "batch is 0"),
    ({"seq": 1}, "seq is 1; it must be a whole number from 2 to 1000000000"),
    ({"seed": -1}, "seed is -1"),
    ({"dropout": 1.0}, "dropout is 1.0; it must be a number from 0 to below 1"),
    ({"weight_decay": math.inf}, "weight_decay is inf"),
    ({"lr": 1e39}, "lr is 1e+39; it must be a number above 0 to below 1e+09"),
    ({"clip": -1.0}, "clip is -1.0; it must be a number from 0"),
    ({"eps": 0.0}, "eps is 0.0"),
    ({"betas": (0.9,)}, "betas is"),
    ({"betas": (0.9, 1.0)}, "betas is 1.0; it must be a number from 0 to below 1"),
    ({"warmup": 2.5}, "warmup is 2.5; it must be a share below 1, or a whole number of steps"),
    ({"warmup": -1}, "warmup is -1"),
    ({"schedule": "cosy"}, "schedule is 'cosy'; it must be cosine, linear or constant"),
    ({"validation": 1.0}, "validation is 1.0"),
    ({"save_every": 0}, "save_every is 0"),
    ({"packing": 1}, "packing is 1; it must be True or False"),
    ({"targets": ()}, "targets is empty; known are q, k"),
    ({"targets": "q,w"}, "targets has 'w'; known are q, k, v, o, gate, up, down, ple_gate, ple_projection, and all"),
    ({"targets": 7}, "targets is 7"),
    ({"lr": 10**400}, "lr is 1000000000"),
    ({"rank": 10**5000}, "rank is an unprintable int"),
    ({"steps": 10**400}, "steps is 10000000000"),
    ({"schedule": ["cosine"] * 1000}, "schedule is ['cosine', 'cosine'"),
    ({"learning_rate": 1}, "there is no setting 'learning_rate'. Known: alpha, "),
]


@pytest.mark.parametrize(("given", "told"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_setting_is_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        TrainingSettings.of(given)
    assert told in str(caught.value) and len(str(caught.value)) < 400


def test_targets_go_by_any_of_their_names_and_keep_their_order() -> None:
    assert TrainingSettings().targets == ("q", "k", "v", "o", "gate", "up", "down")
    assert TrainingSettings(targets="v_proj, q").targets == ("q", "v")  # type: ignore[arg-type]
    assert TrainingSettings(targets=("proj", "ffn_up", "per_layer_input_gate", "up_proj")).targets == (
        "up",
        "ple_gate",
        "ple_projection",
    )
    assert TrainingSettings(targets=("all",)).targets == tuple(TARGETS)
    assert TARGETS["o"] == "attn_output" and TARGETS["ple_projection"] == "proj"


def test_settings_survive_json() -> None:
    chosen = TrainingSettings(rank=4, targets=("q",), steps=7, validation="other.jsonl", betas=(0.8, 0.9), save_every=3)
    assert TrainingSettings.of(json.loads(json.dumps(chosen.record()))) == chosen


def test_the_scale_is_alpha_by_rank_or_its_root() -> None:
    assert TrainingSettings(rank=16, alpha=32).scale == 2
    assert TrainingSettings(rank=16, alpha=32, rslora=True).scale == 8


def test_checkpoints_come_ten_times_in_a_run_or_as_often_as_is_said() -> None:
    assert [TrainingSettings().every(steps) for steps in (1, 7, 10, 95, 2500, 90_000)] == [1, 1, 1, 10, 250, 250]
    assert TrainingSettings(save_every=7).every(90_000) == 7


def rates(steps: int, **given: Any) -> list[float]:
    chosen = TrainingSettings.of({"lr": 1.0, **given})
    return [chosen.rate_at(step, steps) for step in range(steps)]


def test_the_rate_rises_in_a_line_and_falls_by_the_schedule() -> None:
    assert rates(8, warmup=4, schedule="constant") == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]
    assert rates(6, warmup=2, schedule="linear") == [0.5, 1, 1, 0.75, 0.5, 0.25]
    cosine = rates(12, warmup=2)
    assert cosine[2] == 1 and cosine[7] == pytest.approx(0.5) and 0 < cosine[-1] < 0.03
    assert all(later < earlier for earlier, later in pairwise(cosine[2:]))


def test_a_warm_up_below_one_is_a_share() -> None:
    assert rates(100, warmup=0.1, schedule="constant")[8:11] == [0.9, 1, 1]
    assert rates(10, warmup=0.0, schedule="constant") == [1] * 10
    assert rates(3, warmup=100, schedule="cosine") == pytest.approx([1 / 3, 2 / 3, 1])


def test_what_changes_no_number_may_differ_when_a_run_is_taken_up() -> None:
    begun = TrainingSettings()
    assert begun.differences(TrainingSettings(save_every=5, checkpointing=False)) == []
    assert begun.differences(TrainingSettings(rank=8, targets=("q", "v"))) == [
        "rank 16, now 8",
        "targets q,k,v,o,gate,up,down, now q,v",
    ]
