"""A lesson, the model's pass over it, and passes replayed as CUDA graphs.

Kernels this small, launched one by one, leave the GPU idle; a graph launches all of a pass at once. So the pass here
never waits for the GPU and no shape in it depends on values: where transformers' own forward picks soft tokens out by a
mask, this one gathers them. It knows nothing of optimizers, nor where lessons come from.
"""

from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor

PAD = 0  # the id in place of a soft token


@dataclass
class Lesson:
    """One pass: rows of ids, their positions, what the model has to say (−100 elsewhere), and what it sees or hears.

    Lessons of a kind come in few shapes. `labels` say what each soft token shows, −100 where nothing is asked.
    """

    kind: str  # text, picture or sound
    ids: Tensor  # [rows, tokens]
    positions: Tensor
    wanted: Tensor
    patches: Tensor | None = None  # [rows, down, across, 768], pictures without padding
    mel: Tensor | None = None  # [rows, frames, 128]
    valid: Tensor | None = None  # [rows, frames]: the frame is the sound's own
    labels: Tensor | None = None  # [rows, soft tokens, 3] for pictures, [rows, soft tokens] for sounds

    def tensors(self) -> dict[str, Tensor]:
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in held.items() if isinstance(value, Tensor)}


# -- the pass


def read(model: Any, lesson: Lesson) -> tuple[Tensor, Tensor | None]:
    """The last hidden states [rows, tokens, width], and the soft tokens [rows, soft tokens, width] if there are any."""
    language = getattr(model.model, "language_model", model.model)
    told = {"position_ids": lesson.positions, "attention_mask": masks(language, lesson), "use_cache": False}
    if lesson.kind == "text":
        return language(input_ids=lesson.ids, **told).last_hidden_state, None
    if lesson.kind == "picture":
        soft, slot = look(model.model, lesson.patches), model.config.image_token_id
    else:
        tower = model.model.audio_tower(lesson.mel, lesson.valid)
        soft, slot = model.model.embed_audio(tower.last_hidden_state), model.config.audio_token_id
    taken = lesson.ids == slot
    ids = torch.where(taken, PAD, lesson.ids)
    words = language.embed_tokens(ids)
    which = (taken.cumsum(1) - 1).clamp(0, soft.shape[1] - 1)  # a row's slots take its soft tokens in order
    moved = soft.to(words.dtype).gather(1, which[..., None].expand(-1, -1, soft.shape[-1]))
    out = language(
        inputs_embeds=torch.where(taken[..., None], moved, words),
        per_layer_inputs=language.get_per_layer_inputs(ids, words),
        **told,
    )
    return out.last_hidden_state, soft


def masks(language: Any, lesson: Lesson) -> dict[str, Tensor | None]:
    """The attention masks. Without one, attention is causal, which is faster than an equivalent mask."""
    length, window = lesson.ids.shape[1], language.config.sliding_window
    whole = None
    if lesson.kind == "text":
        begun = (lesson.positions == 0).cumsum(1)  # which conversation of its row a token belongs to
        whole = (begun[:, None, :] == begun[:, :, None]).tril()[:, None]  # [rows, 1, tokens, tokens]
    if length <= window:
        return {"full_attention": whole, "sliding_attention": whole}
    near = whole if whole is not None else lesson.ids.new_ones(1, 1, length, length, dtype=torch.bool).tril()
    return {"full_attention": whole, "sliding_attention": near.triu(1 - window)}


def look(model: Any, patches: Tensor) -> Tensor:
    """What the vision tower does for pictures without padding, where pooling is a mean over squares of patches."""
    tower = model.vision_tower
    rows, down, across, _ = patches.shape
    y, x = torch.meshgrid(*(torch.arange(n, device=patches.device) for n in (down, across)), indexing="ij")
    places = torch.stack([x.flatten(), y.flatten()], -1)[None].expand(rows, -1, -1)
    padding = torch.zeros(places.shape[:2], dtype=torch.bool, device=patches.device)
    seen = tower.patch_embedder(patches.flatten(1, 2), places, padding)
    angles = tower.encoder.rotary_emb(seen, places)
    for layer in tower.encoder.layers:  # a mask, even one that hides nothing, would cost the fast attention
        seen = layer(seen, attention_mask=None, position_embeddings=angles, position_ids=places)
    side = tower.config.pooling_kernel_size
    squares = seen.float().reshape(rows, down // side, side, across // side, side, -1)
    pooled = squares.mean((2, 4)).flatten(1, 2).to(seen.dtype).float() * tower.config.hidden_size**0.5
    return model.embed_vision(pooled.to(seen.dtype))


# -- replaying it


class Learner(Protocol):
    """Adds a lesson's gradients to those of `copies`, which exist from the start."""

    copies: list[Any]

    def learn(self, lesson: Lesson) -> Tensor: ...


class Recorded:
    """A learner whose lessons are replayed: one graph for each shape of lesson, recorded when it first comes.

    The graphs never run at the same time, so they share their memory. A kind that cannot be recorded is learnt as ever.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.memory = torch.cuda.graph_pool_handle()
        self.graphs: dict[Any, tuple[torch.cuda.CUDAGraph, Lesson, Tensor]] = {}
        self.refused: set[str] = set()

    def learn(self, lesson: Lesson) -> Tensor:
        if lesson.kind in self.refused:
            return self.learner.learn(lesson)
        key = (lesson.kind, *((name, tuple(tensor.shape)) for name, tensor in lesson.tensors().items()))
        if key not in self.graphs:
            try:
                self.graphs[key] = self._record(lesson)
            except RuntimeError as trouble:
                print(f"lessons of {lesson.kind} are not recorded: {trouble}", flush=True)
                self.refused.add(lesson.kind)
                self.memory = torch.cuda.graph_pool_handle()  # a recording broken off leaves the old one open
                return self.learner.learn(lesson)
        graph, held, told = self.graphs[key]
        for mine, theirs in zip(held.tensors().values(), lesson.tensors().values(), strict=True):
            mine.copy_(theirs, non_blocking=True)
        graph.replay()
        return told.clone()

    def _record(self, lesson: Lesson) -> tuple[torch.cuda.CUDAGraph, Lesson, Tensor]:
        held = Lesson(lesson.kind, **{name: tensor.clone() for name, tensor in lesson.tensors().items()})
        gradients = [copy.grad for copy in self.learner.copies]
        kept = [gradient.clone() for gradient in gradients]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(aside):
                for _ in range(2):  # libraries set themselves up in the first passes, which a graph must not hold
                    self.learner.learn(held)
        finally:
            torch.cuda.current_stream().wait_stream(aside)
            torch._foreach_copy_(gradients, kept)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.memory):
            told = self.learner.learn(held)
        return graph, held, told
