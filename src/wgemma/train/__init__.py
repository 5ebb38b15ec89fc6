"""LoRA fine-tuning: examples, their order, the backward pass, the optimizer, and what is written at the end."""
