"""Gemma 4 itself, from token ids and embeddings to logits. Knows no strings."""
