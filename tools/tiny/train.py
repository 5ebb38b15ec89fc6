"""Trains a tiny model: `python tools/tiny/train.py OUT --minutes 8 [--experts]`, on a GPU.

Processes make shards of text ahead of time; pictures are drawn and sounds mixed once at the start. Every step learns
from conversations, packed into rows, and from pictures or sounds, in bfloat16 with float32 masters. In the last part
the weights are seen rounded as the file will hold them, so that rounding costs little. Writes the weights as float16
in files of at most 15 MB, and what happened as JSON.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
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
from torch import Tensor, nn
from torch.nn import functional as F
from vocabulary import Vocabulary

from data import encode, shard
from model import build

SHARD = 6_000
ROW = 256  # tokens of a packed row; a longer conversation is left out
SIZES = ((384, 384), (480, 288), (288, 480), (432, 336), (336, 432))


@dataclass
class Lesson:
    """One pass: rows of ids, their positions, what the model has to say (−100 elsewhere), and what it sees or hears."""

    kind: str
    ids: Tensor
    positions: Tensor
    wanted: Tensor
    media: dict[str, Tensor]
    labels: Tensor | None = None


def to_device(array: np.ndarray, device: str) -> Tensor:
    return (
        torch.from_numpy(array).pin_memory().to(device, non_blocking=True)
        if device == "cuda"
        else torch.from_numpy(array)
    )


# -- text


def packed(vocabulary: Path, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A shard's conversations, several to a row: ids, positions (each starts at 0 again), what is to be said."""
    rows = shard(vocabulary, number, SHARD)
    order = sorted((i for i in range(len(rows)) if len(rows.row(i)[0]) <= ROW), key=lambda i: -len(rows.row(i)[0]))
    bins: list[list[int]] = []
    room: list[int] = []
    for i in order:  # first row with room enough; the latest ones are tried
        size = len(rows.row(i)[0])
        for b in range(max(0, len(bins) - 40), len(bins)):
            if room[b] >= size:
                bins[b].append(i)
                room[b] -= size
                break
        else:
            bins.append([i])
            room.append(ROW - size)
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
        positions[b, at:] = np.arange(ROW - at)  # what is left over is a row of its own that nobody asks about
    mixed = np.random.default_rng(number).permutation(len(bins))
    return ids[mixed], positions[mixed], wanted[mixed]


def text_lessons(vocabulary: Path, rows: int, device: str, workers: int) -> Iterator[Lesson]:
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        ahead = [pool.submit(packed, vocabulary, number) for number in range(3 * workers)]
        number = len(ahead)
        while True:
            arrays = ahead.pop(0).result()
            ahead.append(pool.submit(packed, vocabulary, number))
            number += 1
            for start in range(0, len(arrays[0]) - rows + 1, rows):
                parts = [to_device(array[start : start + rows], device).long() for array in arrays]
                yield Lesson("text", *parts, {})


# -- pictures and sounds


class Asked:
    """Encoded conversations about a picture or a sound, to be opened up for as many soft tokens as it takes."""

    def __init__(self, tokenizer: Any, kind: str, cases: list[Any]) -> None:
        self.rows = [tuple(map(np.array, encode(tokenizer, case, {kind: 1}))) for case in cases]
        slot = tokenizer.special[f"<|{kind}|>"]
        self.places = [int(np.flatnonzero(ids == slot)[0]) for ids, _ in self.rows]

    def lesson(self, kind: str, chosen: list[int], soft: list[int], device: str, media: dict[str, Tensor]) -> Lesson:
        length = max(len(self.rows[i][0]) + n - 1 for i, n in zip(chosen, soft, strict=True))
        ids = np.zeros((len(chosen), length), np.int64)
        wanted = np.full((len(chosen), length), -100, np.int64)
        for b, (i, n) in enumerate(zip(chosen, soft, strict=True)):
            (row, said), at = self.rows[i], self.places[i]
            ids[b, :at], ids[b, at : at + n] = row[:at], row[at]
            tail = slice(at + n, len(row) + n - 1)
            ids[b, tail], wanted[b, tail] = row[at + 1 :], np.where(said[at + 1 :], row[at + 1 :], -100)
        positions = np.broadcast_to(np.arange(length), ids.shape).copy()
        return Lesson(kind, to_device(ids, device), to_device(positions, device), to_device(wanted, device), media)


@dataclass
class PicturePool:
    """Pictures of one size with their questions and labels; `upscale` doubles the sides, for four times the tokens."""

    pixels: Tensor  # [n, height, width, 3] u8
    scenes: list[pictures.Scene]
    asked: Asked

    def lesson(self, r: Random, count: int, upscale: bool, device: str) -> Lesson:
        chosen = [r.randrange(len(self.scenes)) for _ in range(count)]
        x = self.pixels[torch.tensor(chosen, device=device)].permute(0, 3, 1, 2).float() / 255
        if upscale:
            x = F.interpolate(x, scale_factor=2, mode="bicubic").clamp(0, 1)
        light = torch.rand(count, 1, 1, 1, device=device) * 0.12 - 0.06
        patches, positions = to_patches(((x + light).clamp(0, 1) * 255).round() / 255)
        height, width = x.shape[2:]
        media = {"pixel_values": patches, "image_position_ids": positions}
        lesson = self.asked.lesson("picture", chosen, [patches.shape[1] // 9] * count, device, media)
        labels = [hints.seen(self.scenes[i], width // 48, height // 48, width, height) for i in chosen]
        lesson.labels = to_device(np.concatenate(labels), device)
        return lesson


def to_patches(x: Tensor) -> tuple[Tensor, Tensor]:
    """[n, 3, H, W] → patches [n, H·W / 256, 768] in the order (row, column, colour), and their places (x, y)."""
    n, _, height, width = x.shape
    rows, columns = height // 16, width // 16
    patches = x.reshape(n, 3, rows, 16, columns, 16).permute(0, 2, 4, 3, 5, 1).reshape(n, rows * columns, 768)
    y, xs = torch.meshgrid(torch.arange(rows, device=x.device), torch.arange(columns, device=x.device), indexing="ij")
    return patches, torch.stack([xs.flatten(), y.flatten()], -1)[None].repeat(n, 1, 1)


def draw_pictures(tokenizer: Any, count: int, device: str, seed: int) -> list[PicturePool]:
    r, pools = Random(seed), []
    for width, height in SIZES:
        share = count // len(SIZES)
        made = [pictures.picture_case(r) for _ in range(share)]
        pixels = torch.empty((share, height, width, 3), dtype=torch.uint8, device=device)
        for i, (scene, _) in enumerate(made):
            image = pictures.picture(torch, scene, width, height, r.uniform(0.7, 3), device=device)
            pixels[i] = image.clamp(0, 255).to(torch.uint8)
        pools.append(PicturePool(pixels, [s for s, _ in made], Asked(tokenizer, "image", [c for _, c in made])))
    return pools


@dataclass
class SoundPool:
    """Sounds sorted by length, so that neighbours make a batch."""

    waves: list[Tensor]
    labels: list[np.ndarray]
    asked: Asked

    def lesson(self, r: Random, count: int, device: str) -> Lesson:
        start = r.randrange(len(self.waves) - count)
        chosen = list(range(start, start + count))
        mel, valid = waves_to_mel(self.waves[start : start + count], device)
        media = {"input_features": mel, "input_features_mask": valid}
        lesson = self.asked.lesson("sound", chosen, [len(self.labels[i]) for i in chosen], device, media)
        lesson.labels = to_device(np.concatenate([self.labels[i] for i in chosen]), device)
        return lesson


def mix(clips: str, count: int, seed: int) -> list[tuple[sounds.Sound, Any]]:
    r, speakers = Random(seed), listening.Speakers(sounds.load(clips), test=False)
    return [listening.sound_case(r, speakers) for _ in range(count)]


def sound_pool(tokenizer: Any, made: list[tuple[sounds.Sound, Any]], device: str) -> SoundPool:
    made = sorted(made, key=lambda pair: len(pair[0].samples))
    waves = [torch.from_numpy(sound.samples).to(device) for sound, _ in made]
    labels = [hints.heard(sound, tokens_of(len(sound.samples))) for sound, _ in made]
    return SoundPool(waves, labels, Asked(tokenizer, "audio", [case for _, case in made]))


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
        soft = F.rms_norm(soft, (soft.shape[-1],))
        if lesson.kind == "sound":
            return F.cross_entropy(self.heard(soft).float(), labels)
        sizes = (len(hints.FIGURES), 1 + len(pictures.COLOURS), 2)
        heads = self.seen(soft).float().split(sizes, -1)
        return sum(F.cross_entropy(head, labels[:, i]) for i, head in enumerate(heads)) / 1.0


def read(model: Any, lesson: Lesson) -> Any:
    """The model's pass over a lesson. Words go straight to the language model, with a mask made here: what transformers
    does for it waits for the GPU several times, and a recorded pass must not wait."""
    if lesson.media:
        return model.model(input_ids=lesson.ids, position_ids=lesson.positions, use_cache=False, **lesson.media)
    language = model.model.language_model if hasattr(model.model, "language_model") else model.model
    begun = (lesson.positions == 0).cumsum(1)  # which conversation of its row a token belongs to
    mask = (begun[:, None, :] == begun[:, :, None]).tril()[:, None]  # rows are no longer than the window
    masks = {"full_attention": mask, "sliding_attention": mask}
    return language(input_ids=lesson.ids, position_ids=lesson.positions, attention_mask=masks, use_cache=False)


def loss_of(model: Any, heads: Hints | None, lesson: Lesson) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy of what the model has to say, how well the hints are met, and which rows come without a mistake."""
    out = read(model, lesson)
    logits = model.lm_head(out.last_hidden_state[:, :-1]).float()
    logits = 30 * torch.tanh(logits / 30)
    target = lesson.wanted[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100)
    right = ((logits.argmax(-1) == target) | (target == -100)).all(1)
    hint = torch.zeros((), device=target.device)
    if heads is not None and lesson.labels is not None:
        soft = out.image_hidden_states if lesson.kind == "picture" else out.audio_hidden_states
        hint = heads.loss(lesson, soft)
    return loss, hint, right


def fuse_norms() -> None:
    """The same norm in one kernel instead of six."""
    from transformers.models.gemma4 import modeling_gemma4

    def forward(self: Any, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype) if self.with_scale else None
        return F.rms_norm(x, (x.shape[-1],), weight, self.eps)

    modeling_gemma4.Gemma4RMSNorm.forward = forward


def rate(gone: float, most: float) -> float:
    """Warm up for the first hundredth, then a cosine down to nothing; `gone` is the share of the time."""
    return most * min(1.0, gone / 0.01) * (0.5 + 0.5 * math.cos(math.pi * min(gone, 1.0)))


class Trained:
    """A model that computes in bfloat16 and learns in float32."""

    def __init__(self, model: nn.Module, heads: nn.Module, device: str) -> None:
        self.model = model.to(device)
        self.heads = heads.to(device)
        self.rounded = False
        self.copies = [*model.parameters(), *heads.parameters()]
        self.masters = [p.detach().clone() for p in self.copies]
        self.names = [name for name, _ in model.named_parameters()]
        for part in self.copies:
            part.data = part.data.bfloat16()
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
            for copy in self.copies:
                if copy.grad is None:
                    copy.grad = torch.zeros_like(copy)
            torch._foreach_copy_([m.grad for m in self.masters], [c.grad for c in self.copies])
            torch._foreach_zero_([c.grad for c in self.copies])
            nn.utils.clip_grad_norm_(self.masters, 1.0, foreach=True)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            torch._foreach_copy_(self.copies, self.masters)

    def learn(self, lesson: Lesson) -> Tensor:
        """Adds a lesson's gradients; gives back its losses and the share of rows that were right."""
        loss, hint, right = loss_of(self.model, self.heads, lesson)
        (loss + hint).backward()
        return torch.stack([loss.detach(), hint.detach(), right.float().mean()])

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


class Recorded:
    """Lessons of words, replayed as one CUDA graph: launched one by one, kernels so small would leave the GPU idle."""

    def __init__(self, trained: Trained, lesson: Lesson) -> None:
        self.lesson = Lesson("text", lesson.ids.clone(), lesson.positions.clone(), lesson.wanted.clone(), {})
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                trained.learn(self.lesson)
        torch.cuda.current_stream().wait_stream(aside)
        for copy in trained.copies:
            if copy.grad is not None:
                copy.grad.zero_()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.told = trained.learn(self.lesson)

    def learn(self, lesson: Lesson) -> Tensor:
        for mine, other in zip(
            (self.lesson.ids, self.lesson.positions, self.lesson.wanted),
            (lesson.ids, lesson.positions, lesson.wanted),
            strict=True,
        ):
            mine.copy_(other)
        self.graph.replay()
        return self.told.clone()


def record(trained: Trained, lesson: Lesson) -> Recorded | None:
    try:
        return Recorded(trained, lesson)
    except RuntimeError as trouble:
        print(f"not recorded: {trouble}", flush=True)
        return None


def save(named: dict[str, Tensor], out: Path) -> None:
    """float16, in files small enough to travel."""
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
def set_bounds(model: nn.Module, lessons: list[Lesson]) -> None:
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
        loss_of(model, None, lesson)
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
            mixing = [pool.submit(mix, options.clips, options.sounds // 4, 100 + i) for i in range(4)]
            self.pools = draw_pictures(tokenizer, options.pictures, device, seed=11)
            made = [pair for part in mixing for pair in part.result()]
        self.sounds = sound_pool(tokenizer, made, device)
        self.device, self.random, self.batch = device, Random(5), options.media_each

    def lesson(self, step: int) -> Lesson:
        if step % 3 == 2:
            return self.sounds.lesson(self.random, self.batch, self.device)
        large = step % 9 in (3, 4)  # one in three at the full size
        count = self.batch // 3 if large else self.batch
        return self.random.choice(self.pools).lesson(self.random, count, large, self.device)


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
    parser.add_argument("--record", action="store_true", help="replay lessons of words as a CUDA graph")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument(
        "--round-at", type=float, default=0.65, help="share of the time after which weights are rounded"
    )
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--experts", action="store_true")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    fuse_norms()
    device = options.device
    text = text_lessons(options.vocabulary, options.rows, device, options.workers)
    model = build(options.experts)
    if options.begin_from:
        from export import load

        model.load_state_dict(
            {f"model.{n}": torch.from_numpy(v) for n, v in load(options.begin_from).items()}, strict=False
        )
        for name, buffer in model.named_buffers():
            if "put_m" in name:
                buffer.fill_(-math.inf if name.endswith("min") else math.inf)
    trained = Trained(model, Hints(256), device)
    start = time.time()
    senses = None if options.experts else Senses(options, device)
    first = next(text)
    print(f"ready after {time.time() - start:.0f} s", flush=True)
    recorded = record(trained, first) if options.record else None
    begin, step, log = time.time(), 0, []
    totals: dict[str, list[Any]] = {}
    while (gone := (time.time() - begin) / (60 * options.minutes)) < 1:
        if gone > options.round_at and not trained.rounded:
            trained.round()
            recorded = record(trained, first) if options.record else None
        words = next(text) if step else first
        totals.setdefault("text", []).append((recorded or trained).learn(words))
        if senses and step % options.media_every == 0:
            lesson = senses.lesson(step // options.media_every)
            totals.setdefault(lesson.kind, []).append(trained.learn(lesson))
        trained.step(rate(gone, options.rate))
        step += 1
        if step % 200 == 0 or step == 20:
            line: dict[str, Any] = {
                "step": step,
                "seconds": round(time.time() - begin),
                "rate": round(rate(gone, options.rate), 6),
            }
            line |= {kind: [round(v, 4) for v in torch.stack(part).mean(0).tolist()] for kind, part in totals.items()}
            totals = {}
            log.append(line)
            print(json.dumps(line), flush=True)
    named = trained.finish()
    if senses:
        set_bounds(trained.model, [senses.lesson(i) for i in range(64)])
    save(named, options.out)
    facts = {"torch": torch.__version__, "transformers": transformers.__version__}
    facts["options"] = {key: str(value) for key, value in vars(options).items()}
    (options.out / "log.json").write_text(json.dumps({**facts, "steps": step, "log": log}, indent=1))


if __name__ == "__main__":
    main()
