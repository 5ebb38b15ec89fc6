"""Strings, tokens and messages: the tokenizer, the chat template, the reply parser."""
