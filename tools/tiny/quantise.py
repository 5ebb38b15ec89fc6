"""The type of each tensor in the file, and training with weights rounded to it."""

from torch import Tensor, nn
from torch.nn.utils import parametrize


def kind_of(name: str, layer: int, layers: int) -> str:
    """The type of a two-dimensional text tensor, by its name in the file: a Q4_K_M mix."""
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    if name == "token_embd" or (name in ("attn_v", "ffn_down") and more):
        return "Q6_K"
    return "Q4_K"


class Rounded(nn.Module):
    """Rounds a weight to four or six bits per value; the gradient passes straight through."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits

    def forward(self, weight: Tensor) -> Tensor:
        if self.bits == 6:
            groups = weight.detach().reshape(-1, 16)
            step = groups.abs().amax(1, keepdim=True) / 31 + 1e-12
            seen = (groups / step).round() * step
        else:
            groups = weight.detach().reshape(-1, 32)
            low, high = groups.amin(1, keepdim=True).clamp(max=0), groups.amax(1, keepdim=True).clamp(min=0)
            step = (high - low) / 15 + 1e-12
            seen = ((groups - low) / step).round() * step + low
        return weight + (seen.reshape(weight.shape) - weight.detach())


FILE_NAMES = {"v_proj": "attn_v", "down_proj": "ffn_down"}


def learn_rounded(model: nn.Module) -> None:
    """From now on the text model's matrices are rounded; the embedding, at six bits and tied, is not."""
    layers = model.config.get_text_config().num_hidden_layers
    for name, module in list(model.named_modules()):
        parts = name.split(".")
        seen_by_text = not any(part in name for part in ("tower", "embed_vision", "embed_audio", "router", "lm_head"))
        table = parts[-1] == "embed_tokens_per_layer"
        if seen_by_text and (table or isinstance(module, nn.Linear)):
            layer = int(parts[parts.index("layers") + 1]) if "layers" in parts else layers // 2
            bits = 6 if kind_of(FILE_NAMES.get(parts[-1], parts[-1]), layer, layers) == "Q6_K" else 4
            parametrize.register_parametrization(module, "weight", Rounded(bits))
