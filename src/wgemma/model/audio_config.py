"""The shape of a file's audio tower: sizes and tensor names; no tensor is read yet.

E2B and E4B have a conformer over mel spectra; the 12B has none and projects raw samples. Ollama's files and llama.cpp's
projectors name the conformer's tensors differently, and use some names for different tensors.
"""

from dataclasses import dataclass

from wgemma.errors import ModelError
from wgemma.files.gguf import Gguf, Tensor
from wgemma.model.config import Wanted
from wgemma.model.mel import BANDS
from wgemma.model.tower import Keys, find, linear_tensors

PROJECTION = "mm.a.input_projection"  # the last step of both kinds
CHUNK = 640  # samples per token without a conformer

MAX_BLOCKS = 256
MAX_WIDTH = 8192
MAX_FFN = 16_384
MAX_CHANNELS = 256  # of a convolution: kernels/subsample.wgsl keeps them in workgroup memory
MAX_TAPS = 64
MAX_HEADS = 256


@dataclass(frozen=True, slots=True)
class Names:
    """The names that differ between the two kinds of file; block tensors without their prefix."""

    subsampled: str
    output: str
    relative: str
    before_attention: str
    after_attention: str
    block_end: str


OLLAMA = Names("a.pre_encode.out", "mm.a.fc", "linear_pos", "ln1", "ln2", "layer_pre_norm")
LLAMA_CPP = Names("a.input_projection", "a.pre_encode.out", "attn_k_rel", "attn_pre_norm", "attn_post_norm", "ln2")


@dataclass(frozen=True, slots=True)
class ConformerConfig:
    names: Names
    blocks: int
    width: int
    heads: int
    ffn_width: int
    channels: tuple[int, int]  # of the two convolutions
    taps: int  # of the convolution in each block
    inner: int  # width of the conformer's output

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def subsampled(self) -> int:
        """Values per token after the convolutions: [BANDS / 4, channels]."""
        return BANDS // 4 * self.channels[1]


@dataclass(frozen=True, slots=True)
class AudioConfig:
    width: int  # of the decoder
    conformer: ConformerConfig | None  # None: raw samples

    @classmethod
    def from_gguf(cls, gguf: Gguf) -> "AudioConfig":
        try:
            if not has_audio(gguf):
                raise ModelError(
                    "there is no audio tower in this file. Audio needs E2B, E4B or 12B with its projector."
                )
            raw = not any(name.startswith("a.") for name in gguf.tensors)
            config = cls(_columns(gguf, f"{PROJECTION}.weight", 1), None if raw else _read_conformer(gguf))
            find(gguf, audio_tensors(config))
        except ModelError as error:
            raise ModelError(f"{gguf.source.name}: {error}") from None
        return config


def has_audio(gguf: Gguf) -> bool:
    return f"{PROJECTION}.weight" in gguf.tensors


def audio_tensors(config: AudioConfig) -> dict[str, Wanted]:
    """Every tensor the tower uses."""
    conformer = config.conformer
    if conformer is None:
        return linear_tensors(PROJECTION, CHUNK, config.width)
    names, d, (first, second) = conformer.names, conformer.width, conformer.channels
    wanted = {
        "a.conv1d.0.weight": Wanted((3, 3, 1, first)),
        "a.conv1d.0.norm.weight": Wanted((first,)),
        "a.conv1d.1.weight": Wanted((3, 3, first, second)),
        "a.conv1d.1.norm.weight": Wanted((second,)),
        **linear_tensors(names.subsampled, conformer.subsampled, d),
        **linear_tensors(names.output, d, conformer.inner, bias=True),
        **linear_tensors(PROJECTION, conformer.inner, config.width),
    }
    for index in range(conformer.blocks):
        wanted |= _block_tensors(conformer, f"a.blk.{index}.")
    return wanted


def _block_tensors(conformer: ConformerConfig, block: str) -> dict[str, Wanted]:
    names, d, ffn = conformer.names, conformer.width, conformer.ffn_width
    linears = {
        "attn_q": (d, d),
        "attn_k": (d, d),
        "attn_v": (d, d),
        "attn_out": (d, d),
        names.relative: (d, d),
        "conv_pw1": (d, 2 * d),
        "conv_pw2": (d, d),
    }
    norms = [names.before_attention, names.after_attention, "conv_norm", "norm_conv", names.block_end]
    for which in ("", "_1"):
        linears |= {f"ffn_up{which}": (d, ffn), f"ffn_down{which}": (ffn, d)}
        norms += [f"ffn_norm{which}", f"ffn_post_norm{which}"]
    wanted = {f"{block}{norm}.weight": Wanted((d,)) for norm in norms}
    wanted[f"{block}conv_dw.weight"] = Wanted((conformer.taps, d))
    wanted[f"{block}per_dim_scale.weight"] = Wanted((conformer.head_dim,))
    wanted[f"{block}per_dim_k_scale.weight"] = Wanted((conformer.head_dim,), optional=True)
    for name, (columns, rows) in linears.items():
        wanted |= linear_tensors(block + name, columns, rows)
    return wanted


def _read_conformer(gguf: Gguf) -> ConformerConfig:
    keys = Keys(gguf.metadata, "audio")
    names = OLLAMA if f"{OLLAMA.output}.weight" in gguf.tensors else LLAMA_CPP
    width, heads = keys.whole("embedding_length", MAX_WIDTH), keys.whole("attention.head_count", MAX_HEADS)
    if width % 32 or width % heads:
        raise ModelError(f"the audio tower's width {width} must be a multiple of 32 and of its {heads} heads.")
    bands = keys.whole("num_mel_bins", MAX_WIDTH, default=BANDS)
    if bands != BANDS:
        raise ModelError(f"the audio tower takes {bands} mel bands; Gemma 4 has {BANDS}.")
    channels = (_columns(gguf, "a.conv1d.0.weight", 3), _columns(gguf, "a.conv1d.1.weight", 3))
    if channels[0] % 4 or channels[1] % 4:
        raise ModelError(f"the audio tower's convolutions have {channels} channels; wgemma needs a multiple of 4.")
    return ConformerConfig(
        names=names,
        blocks=keys.whole("block_count", MAX_BLOCKS),
        width=width,
        heads=heads,
        ffn_width=keys.whole("feed_forward_length", MAX_FFN),
        channels=channels,
        taps=_columns(gguf, "a.blk.0.conv_dw.weight", 0),
        inner=_columns(gguf, f"{names.output}.weight", 1),
    )


# Upper bounds for dimensions that only the tensors' shapes tell.
_MOST = {"a.conv1d.0.weight": MAX_CHANNELS, "a.conv1d.1.weight": MAX_CHANNELS, "a.blk.0.conv_dw.weight": MAX_TAPS}


def _columns(gguf: Gguf, name: str, axis: int) -> int:
    tensor: Tensor | None = gguf.tensors.get(name)
    if tensor is None:
        raise ModelError(f"the tensor {name} is missing.")
    size = tensor.shape[axis] if axis < len(tensor.shape) else 1
    most = _MOST.get(name, MAX_WIDTH)
    if not 1 <= size <= most:
        raise ModelError(f"{name} has shape {list(tensor.shape)}; dimension {axis} must be 1 to {most}.")
    return size
