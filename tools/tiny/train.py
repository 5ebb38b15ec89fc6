"""Trains a tiny model: `python tools/tiny/train.py OUT --minutes 8 [--experts]`, on a GPU.

Processes make shards of text ahead of time; pictures are drawn and sounds mixed once at the start, and stay on the GPU.
Every step learns from conversations, packed into rows, and from pictures or sounds, in bfloat16 with float32 masters;
of the words it only reads it learns a little too: stories repeat names, which teaches copying. In the last part
the weights are seen rounded as the file will hold them, so that rounding costs little. Writes the weights as float16
in files of at most 15 MB, and what happened as JSON.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import hints
import listening
import numpy as np
import pictures
import sounds
import torch
import transformers
from mel import tokens_of, waves_to_mel
from quantise import learn_rounded
from recording import PAD, Lesson, Recorded, read
from torch import Tensor, nn
from torch.nn import functional as F
from vocabulary import Vocabulary

from data import Size, encode, shard
from model import build

SHARD = 6_000
ROW = 256  # tokens of a packed row; a longer conversation is left out
LENGTHS = 6  # pools of sounds, by how long they are
SIZES = ((384, 384), (480, 288), (288, 480), (432, 336), (336, 432))


def to_device(array: np.ndarray, device: str) -> Tensor:
    return (
        torch.from_numpy(array).pin_memory().to(device, non_blocking=True)
        if device == "cuda"
        else torch.from_numpy(array)
    )


# -- text


def packed(vocabulary: Path, number: int, size: Size) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A shard's conversations, several to a row: ids, positions (each starts at 0 again), what is to be said."""
    rows = shard(vocabulary, number, SHARD, size)
    order = sorted((i for i in range(len(rows)) if len(rows.row(i)[0]) <= ROW), key=lambda i: -len(rows.row(i)[0]))
    bins: list[list[int]] = []
    open_with: list[list[int]] = [[] for _ in range(ROW + 1)]  # the rows that have so much room left
    for i in order:  # the longest first, each where it leaves the least room
        size = len(rows.row(i)[0])
        room = next((room for room in range(size, ROW + 1) if open_with[room]), ROW)
        if not open_with[room]:
            open_with[room].append(len(bins))
            bins.append([])
        b = open_with[room].pop()
        bins[b].append(i)
        open_with[room - size].append(b)
    shape = (len(bins), ROW)
    ids, positions, wanted = np.zeros(shape, np.int16), np.zeros(shape, np.int16), np.full(shape, -100, np.int16)
    for b, members in enumerate(bins):
        at = 0
        for i in members:
            row, said = rows.row(i)
            span = slice(at, at + len(row))
            ids[b, span], positions[b, span] = row, np.arange(len(row))
            wanted[b, span] = np.where(said, row.astype(np.int16), -100)
            at += len(row)
        positions[b, at:] = np.arange(ROW - at)  # the rest of the row is padding that is not trained on
    mixed = np.random.default_rng(number).permutation(len(bins))
    return ids[mixed], positions[mixed], wanted[mixed]


def text_lessons(vocabulary: Path, rows: int, device: str, workers: int, seed: int, size: Size) -> Iterator[Lesson]:
    numbers = itertools.count(seed * 1_000_000)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        ahead = [pool.submit(packed, vocabulary, next(numbers), size) for _ in range(3 * workers)]
        while True:
            arrays = ahead.pop(0).result()
            ahead.append(pool.submit(packed, vocabulary, next(numbers), size))
            for start in range(0, len(arrays[0]) - rows + 1, rows):
                parts = [to_device(array[start : start + rows], device).long() for array in arrays]
                yield Lesson("text", *parts)


# -- pictures and sounds


@dataclass
class Asked:
    """Conversations about pictures or sounds, opened up for their soft tokens and all padded to one length."""

    kind: str
    ids: Tensor  # [n, tokens]
    wanted: Tensor
    labels: Tensor  # [n, soft tokens, …], −100 where a sound has ended

    def lesson(self, chosen: Tensor, **media: Tensor) -> Lesson:
        ids = self.ids[chosen].long()
        positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        wanted, labels = self.wanted[chosen].long(), self.labels[chosen].long()
        return Lesson(self.kind, ids, positions, wanted, labels=labels, **media)


def open_up(tokenizer: Any, kind: str, cases: list[Any], labels: list[np.ndarray], device: str) -> Asked:
    """As many slots as there are labels, where a conversation has its picture or sound."""
    media = {"picture": "image", "sound": "audio"}[kind]
    rows = [encode(tokenizer, case, {media: len(said)}) for case, said in zip(cases, labels, strict=True)]
    length = 8 * math.ceil(max(len(ids) for ids, _ in rows) / 8)  # what a GPU likes to multiply
    ids, wanted = np.zeros((len(rows), length), np.int16), np.full((len(rows), length), -100, np.int16)
    told = np.full((len(rows), max(map(len, labels)), *labels[0].shape[1:]), -100, np.int16)
    for i, (row, own) in enumerate(rows):
        ids[i, : len(row)] = row
        wanted[i, : len(row)] = np.where(own, row, -100)
        told[i, : len(labels[i])] = labels[i]
    return Asked(kind, to_device(ids, device), to_device(wanted, device), to_device(told, device))


def some(r: Random, among: int, count: int, device: str) -> Tensor:
    return to_device(np.array([r.randrange(among) for _ in range(count)]), device)


@dataclass
class PicturePool:
    """Pictures of one size with their conversations, as they are and at twice the sides: four times the tokens."""

    pixels: Tensor  # [n, height, width, 3] u8
    small: Asked
    large: Asked

    def lesson(self, r: Random, count: int, upscale: bool) -> Lesson:
        chosen = some(r, len(self.pixels), count, self.pixels.device.type)
        x = self.pixels[chosen].permute(0, 3, 1, 2).float() / 255
        if upscale:
            x = F.interpolate(x, scale_factor=2, mode="bicubic").clamp(0, 1)
        light = torch.rand(count, 1, 1, 1, device=x.device) * 0.12 - 0.06
        patches = to_patches(((x + light).clamp(0, 1) * 255).round() / 255)
        return (self.large if upscale else self.small).lesson(chosen, patches=patches)


def to_patches(x: Tensor) -> Tensor:
    """[n, 3, H, W] → patches [n, H / 16, W / 16, 768], each in the order (row, column, colour)."""
    n, _, height, width = x.shape
    squares = x.reshape(n, 3, height // 16, 16, width // 16, 16)
    return squares.permute(0, 2, 4, 3, 5, 1).reshape(n, height // 16, width // 16, 768)


def draw_pictures(tokenizer: Any, count: int, device: str, seed: int) -> list[PicturePool]:
    r, pools = Random(seed), []
    for width, height in SIZES:
        share = count // len(SIZES)
        made = [pictures.picture_case(r) for _ in range(share)]
        pixels = torch.empty((share, height, width, 3), dtype=torch.uint8, device=device)
        for i, (scene, _) in enumerate(made):
            image = pictures.picture(torch, scene, width, height, r.uniform(0.7, 3), device=device)
            pixels[i] = image.clamp(0, 255).to(torch.uint8)
        asked = []
        for w, h in ((width, height), (2 * width, 2 * height)):
            labels = [hints.seen(scene, w // 48, h // 48, w, h) for scene, _ in made]
            asked.append(open_up(tokenizer, "picture", [case for _, case in made], labels, device))
        pools.append(PicturePool(pixels, *asked))
    return pools


@dataclass
class SoundPool:
    """Sounds of about one length, padded to the longest, with their conversations."""

    mel: Tensor  # [n, frames, 128]
    valid: Tensor  # [n, frames]
    asked: Asked

    def lesson(self, r: Random, count: int) -> Lesson:
        chosen = some(r, len(self.mel), count, self.mel.device.type)
        return self.asked.lesson(chosen, mel=self.mel[chosen], valid=self.valid[chosen])


def mix(clips: str, count: int, seed: int) -> list[tuple[sounds.Sound, Any]]:
    r, speakers = Random(seed), listening.Speakers(sounds.load(clips), test=False)
    return [listening.sound_case(r, speakers) for _ in range(count)]


def sound_pools(tokenizer: Any, made: list[tuple[sounds.Sound, Any]], device: str) -> list[SoundPool]:
    """Equally many sounds in each, from the shortest to the longest."""
    made = sorted(made, key=lambda pair: len(pair[0].samples))
    pools = []
    for members in np.array_split(np.arange(len(made)), LENGTHS):
        heard = [made[i][0] for i in members]
        mel, valid = waves_to_mel([torch.from_numpy(sound.samples) for sound in heard], device)
        labels = [hints.heard(sound, tokens_of(len(sound.samples))) for sound in heard]
        pools.append(SoundPool(mel, valid, open_up(tokenizer, "sound", [made[i][1] for i in members], labels, device)))
    return pools


# -- learning


class Hints(nn.Module):
    """The heads that name what a soft token shows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.seen = nn.Linear(width, hints.SEEN)
        self.heard = nn.Linear(width, hints.HEARD)

    def loss(self, lesson: Lesson, soft: Tensor) -> Tensor:
        labels = lesson.labels
        assert labels is not None
        soft = F.rms_norm(soft, (soft.shape[-1],)).flatten(0, 1)
        if lesson.kind == "sound":
            return F.cross_entropy(self.heard(soft).float(), labels.flatten())
        sizes = (len(hints.FIGURES), 1 + len(pictures.COLOURS), 2)
        heads = self.seen(soft).float().split(sizes, -1)
        return sum(F.cross_entropy(head, labels[..., i].flatten()) for i, head in enumerate(heads)) / 1.0


def loss_of(model: Any, heads: Hints, lesson: Lesson, along: float) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy of what the model has to say; what else it learns by: how well the hints are met or, for words,
    `along` times the cross-entropy of what it only reads; and which rows come without a mistake."""
    hidden, soft = read(model, lesson)
    logits = model.lm_head(hidden[:, :-1]).float()
    logits = 30 * torch.tanh(logits / 30)
    following = lesson.ids[:, 1:]
    said = lesson.wanted[:, 1:] != -100
    each = F.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="none").view(following.shape)
    right = ((logits.argmax(-1) == following) | ~said).all(1)
    if soft is not None:
        aside = heads.loss(lesson, soft)
    else:  # a conversation's first token cannot be predicted, and the rest of a row is padding
        aside = along * mean_over(each, ~said & (lesson.positions[:, 1:] > 0) & (following != PAD))
    return mean_over(each, said), aside, right


def mean_over(values: Tensor, chosen: Tensor) -> Tensor:
    """The mean of the chosen values; 0 when there are none."""
    return (values * chosen).sum() / chosen.sum().clamp(min=1)


def fuse_norms() -> None:
    """The same norm in one kernel instead of six."""
    from transformers.models.gemma4 import modeling_gemma4

    def forward(self: Any, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype) if self.with_scale else None
        return F.rms_norm(x, (x.shape[-1],), weight, self.eps)

    modeling_gemma4.Gemma4RMSNorm.forward = forward


def rate(gone: float, most: float) -> float:
    """Warm-up for the first hundredth, then cosine decay to zero; `gone` is the share of time used."""
    return most * min(1.0, gone / 0.01) * (0.5 + 0.5 * math.cos(math.pi * min(gone, 1.0)))


class Trained:
    """A model that computes in bfloat16 and learns in float32."""

    def __init__(self, model: nn.Module, heads: Hints, device: str, along: float) -> None:
        self.along = along
        self.model = model.to(device)
        self.heads = heads.to(device)
        self.rounded = False
        self.copies = [*model.parameters(), *heads.parameters()]
        self.masters = [p.detach().clone() for p in self.copies]
        self.names = [name for name, _ in model.named_parameters()]
        for part in self.copies:
            part.data = part.data.bfloat16()
            part.grad = torch.zeros_like(part)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):  # the other buffers hold angles, which stay exact
                buffer.data = buffer.data.bfloat16()
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        matrices = [m for m in self.masters if m.dim() >= 2]
        rest = [m for m in self.masters if m.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=device == "cuda")

    def step(self, rate: float) -> None:
        with torch.no_grad():
            torch._foreach_copy_([m.grad for m in self.masters], [c.grad for c in self.copies])
            torch._foreach_zero_([c.grad for c in self.copies])
            nn.utils.clip_grad_norm_(self.masters, 1.0, foreach=True)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            torch._foreach_copy_(self.copies, self.masters)

    def learn(self, lesson: Lesson) -> Tensor:
        """Adds a lesson's gradients; returns its losses and the share of rows that were right."""
        loss, aside, right = loss_of(self.model, self.heads, lesson, self.along)
        (loss + aside).backward()
        return torch.stack([loss.detach(), aside.detach(), right.float().mean()])

    def round(self) -> None:
        self.rounded = True
        learn_rounded(self.model)

    def finish(self) -> dict[str, Tensor]:
        """The masters take the model's place; says them by name, with the buffers that belong into the file."""
        self.model.eval()
        for copy, master in zip(self.copies, self.masters, strict=True):
            copy.data = master.data
        kept = {}
        for name, buffer in self.model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.data = buffer.data.float()
            if "layer_scalar" in name or "put_m" in name:
                kept[name] = buffer
        return dict(zip(self.names, self.masters, strict=False)) | kept


def save(named: dict[str, Tensor], out: Path) -> None:
    """Saves float16 weights in files small enough to transfer."""
    part: dict[str, np.ndarray] = {}
    number = size = 0
    for name, tensor in named.items():
        array = tensor.detach().float().cpu().numpy()
        array = array.astype(np.float16) if array.size > 1 else array
        if size + array.nbytes > 15_000_000:
            np.savez(out / f"weights-{number}.npz", **part)
            part, number, size = {}, number + 1, 0
        part[name] = array
        size += array.nbytes
    np.savez(out / f"weights-{number}.npz", **part)


@torch.no_grad()
def set_bounds(model: nn.Module, lessons: Iterable[Lesson]) -> None:
    """The clipped linears get bounds a tenth wider than anything these lessons make them see."""
    linears = [m for m in model.modules() if type(m).__name__ == "Gemma4ClippableLinear"]
    seen: dict[int, list[float]] = {}

    def watch(module: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> None:
        x, old = args[0], seen.get(id(module), [0.0, 0.0, 0.0, 0.0])
        new = [float(x.min()), float(x.max()), float(result.min()), float(result.max())]
        seen[id(module)] = [
            min(a, b) if i % 2 == 0 else max(a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))
        ]

    hooks = [linear.register_forward_hook(watch) for linear in linears]
    for lesson in lessons:
        read(model, lesson)
    for hook in hooks:
        hook.remove()
    for linear in linears:
        for name, bound in zip(("input_min", "input_max", "output_min", "output_max"), seen[id(linear)], strict=True):
            getattr(linear, name).fill_(1.1 * bound)


class Senses:
    """Lessons about pictures and sounds, in turns."""

    def __init__(self, options: Any, device: str) -> None:
        tokenizer = Vocabulary.load(options.vocabulary).tokenizer()
        with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
            mixing = [
                pool.submit(mix, options.clips, options.sounds // 4, 100 + 4 * options.seed + i) for i in range(4)
            ]
            self.pools = draw_pictures(tokenizer, options.pictures, device, seed=11 + options.seed)
            made = [pair for part in mixing for pair in part.result()]
        self.sounds = sound_pools(tokenizer, made, device)
        self.random, self.batch = Random(5 + options.seed), options.media_each

    def lesson(self, step: int) -> Lesson:
        if step % 4 == 3:
            return self.random.choice(self.sounds).lesson(self.random, self.batch)
        large = step % 2 == 0  # two of three pictures at the full size, as they are shown later
        count = self.batch // 3 if large else self.batch
        return self.random.choice(self.pools).lesson(self.random, count, large)


def breakdown(learner: Any, trained: Trained, words: Lesson, senses: Senses | None, rate: float) -> dict[str, float]:
    """Milliseconds to make a lesson of each kind, to learn from it, and to take a step, with nothing else running."""
    took = {}

    def measured(name: str, work: Callable[[], Any]) -> Any:
        wait(words)
        start = time.perf_counter()
        result = work()
        wait(words)
        took[name] = round(1000 * (time.perf_counter() - start), 2)
        return result

    makers: dict[str, Callable[[], Lesson]] = {"text": lambda: words}
    if senses:
        makers["picture"] = lambda: senses.lesson(1)
        makers["large picture"] = lambda: senses.lesson(0)
        makers["sound"] = lambda: senses.lesson(3)
    for name, make in makers.items():
        lesson = measured(f"make {name}", make)
        learner.learn(lesson)  # the first of a shape takes longer
        measured(name, partial(learner.learn, lesson))
    measured("optimizer", partial(trained.step, rate))
    return took


def wait(lesson: Lesson) -> None:
    if lesson.ids.is_cuda:
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--clips", default="")
    parser.add_argument("--from", dest="begin_from", type=Path, help="a folder of weights to go on from")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--rows", type=int, default=96, help=f"rows of {ROW} tokens of text in a step")
    parser.add_argument("--pictures", type=int, default=24_000, help="pictures to draw")
    parser.add_argument("--sounds", type=int, default=24_000, help="sounds to mix")
    parser.add_argument("--media-each", type=int, default=72, help="pictures or sounds in a step")
    parser.add_argument("--media-every", type=int, default=1, help="steps from one of them to the next")
    parser.add_argument("--record", action="store_true", help="replay lessons as CUDA graphs")
    parser.add_argument("--read-along", type=float, default=0.15, help="weight of the words the model only reads")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument(
        "--round-at", type=float, default=0.65, help="share of the time after which weights are rounded"
    )
    parser.add_argument("--seed", type=int, default=0, help="another one, other lessons")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--experts", action="store_true")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    torch.manual_seed(1 + options.seed)
    torch.set_float32_matmul_precision("high")
    fuse_norms()
    device = options.device
    size: Size = "large" if options.experts else "small"
    text = text_lessons(options.vocabulary, options.rows, device, options.workers, options.seed, size)
    model = build(options.experts)
    if options.begin_from:
        from export import load

        model.load_state_dict(
            {f"model.{n}": torch.from_numpy(v) for n, v in load(options.begin_from).items()}, strict=False
        )
        for name, buffer in model.named_buffers():
            if "put_m" in name:
                buffer.fill_(-math.inf if name.endswith("min") else math.inf)
    trained = Trained(model, Hints(256), device, options.read_along)
    start = time.time()
    senses = None if options.experts else Senses(options, device)
    first = next(text)
    print(f"ready after {time.time() - start:.0f} s", flush=True)
    replayed = options.record and device == "cuda"
    learner = Recorded(trained) if replayed else trained
    begin, step, log = time.time(), 0, []
    since = (begin, 0)
    totals: dict[str, list[Any]] = {}
    while (gone := (time.time() - begin) / (60 * options.minutes)) < 1:
        if gone > options.round_at and not trained.rounded:
            trained.round()
            learner = Recorded(trained) if replayed else trained
        words = next(text) if step else first
        totals.setdefault("text", []).append(learner.learn(words))
        if senses and step % options.media_every == 0:
            lesson = senses.lesson(step // options.media_every)
            totals.setdefault(lesson.kind, []).append(learner.learn(lesson))
        trained.step(rate(gone, options.rate))
        step += 1
        if step == 100:
            print(json.dumps({"ms": breakdown(learner, trained, words, senses, rate(gone, options.rate))}), flush=True)
        if step % 200 == 0 or step == 20:
            means = {kind: torch.stack(part).mean(0).tolist() for kind, part in totals.items()}
            now = time.time()
            line: dict[str, Any] = {
                "step": step,
                "seconds": round(now - begin),
                "ms": round(1000 * (now - since[0]) / (step - since[1]), 1),  # per step
                "rate": round(rate(gone, options.rate), 6),
            }
            line |= {kind: [round(v, 4) for v in values] for kind, values in means.items()}
            totals, since = {}, (now, step)
            log.append(line)
            print(json.dumps(line), flush=True)
    named = trained.finish()
    if senses:
        set_bounds(trained.model, (senses.lesson(i) for i in range(64)))
    save(named, options.out)
    facts = {"torch": torch.__version__, "transformers": transformers.__version__}
    facts["options"] = {key: str(value) for key, value in vars(options).items()}
    (options.out / "log.json").write_text(json.dumps({**facts, "steps": step, "log": log}, indent=1))


if __name__ == "__main__":
    main()
