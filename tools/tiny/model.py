"""The shapes of the two tiny models, as transformers builds them, and where their training starts."""

import torch
from torch import nn
from transformers import (
    Gemma4AudioConfig,
    Gemma4Config,
    Gemma4ForCausalLM,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
    Gemma4VisionConfig,
)
from vocabulary import SIZE, SPECIAL

CONTEXT = 2048
POSITIONS = 256  # patches a picture may have along a side
_ID = {token: i for i, token in enumerate(SPECIAL)}


def text_config(**changes: object) -> Gemma4TextConfig:
    return Gemma4TextConfig(
        vocab_size=SIZE,
        vocab_size_per_layer_input=SIZE,
        hidden_size=256,
        num_hidden_layers=8,
        layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        global_head_dim=512,
        intermediate_size=512,
        use_double_wide_mlp=True,
        num_kv_shared_layers=4,
        hidden_size_per_layer_input=256,
        sliding_window=256,
        final_logit_softcapping=30.0,
        max_position_embeddings=CONTEXT,
        pad_token_id=_ID["<pad>"],
        bos_token_id=_ID["<bos>"],
        eos_token_id=_ID["<eos>"],
        **changes,
    )


def config() -> Gemma4Config:
    """The embedded model: E2B's architecture, both towers."""
    vision = Gemma4VisionConfig(
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=512,
        position_embedding_size=POSITIONS,
        use_clipped_linears=True,
    )
    audio = Gemma4AudioConfig(
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        subsampling_conv_channels=[128, 16],
        output_proj_dims=256,
        use_clipped_linears=True,
    )
    return Gemma4Config(
        text_config=text_config(),
        vision_config=vision,
        audio_config=audio,
        boi_token_id=_ID["<|image>"],
        eoi_token_id=_ID["<image|>"],
        image_token_id=_ID["<|image|>"],
        video_token_id=_ID["<|video|>"],
        boa_token_id=_ID["<|audio>"],
        eoa_token_index=_ID["<audio|>"],
        audio_token_id=_ID["<|audio|>"],
    )


def experts_config() -> Gemma4TextConfig:
    """The test model: 26B-A4B's layers. Rows of 352 and 96 are no multiples of 256, as 2112 and 704 are not."""
    return Gemma4TextConfig(
        vocab_size=SIZE,
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_global_key_value_heads=1,
        head_dim=256,
        global_head_dim=512,
        attention_k_eq_v=True,
        intermediate_size=352,
        enable_moe_block=True,
        num_experts=8,
        top_k_experts=2,
        moe_intermediate_size=96,
        hidden_size_per_layer_input=0,
        num_kv_shared_layers=0,
        sliding_window=256,
        final_logit_softcapping=30.0,
        max_position_embeddings=CONTEXT,
        use_bidirectional_attention="vision",
        pad_token_id=_ID["<pad>"],
        bos_token_id=_ID["<bos>"],
        eos_token_id=_ID["<eos>"],
    )


def build(experts: bool) -> nn.Module:
    model = Gemma4ForCausalLM(experts_config()) if experts else Gemma4ForConditionalGeneration(config())
    start(model)
    return model


@torch.no_grad()
def start(model: nn.Module) -> None:
    """Where training starts. Attention has scale 1, so the norms of q and k carry the usual 1 / √head_dim between them;
    what a block adds to the stream starts small."""
    for name, parameter in model.named_parameters():
        last = name.split(".")[-2]
        if last in ("q_norm", "k_norm"):
            parameter.fill_(parameter.shape[0] ** -0.25)
        elif last in ("post_attention_layernorm", "post_feedforward_layernorm", "post_per_layer_input_norm"):
            parameter.fill_(0.3)
        elif "embed_tokens" in name:
            parameter.normal_(0, parameter.shape[-1] ** -0.5 if last == "embed_tokens" else 1 / 16)
        elif name.endswith("position_embedding_table"):
            parameter.normal_(0, 0.3)
        elif parameter.dim() >= 2:
            fan = parameter[0].numel() if parameter.dim() != 3 else parameter.shape[-1]
            parameter.normal_(0, fan**-0.5)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.fill_(0.8984375)  # a number that bfloat16 holds exactly
