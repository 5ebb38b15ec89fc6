"""Bytes on disk or on the wire: GGUF files, their block formats, where they are read from, Ollama's store."""
