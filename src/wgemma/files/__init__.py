"""Bytes on disk or on the wire: GGUF files and their block formats, sources to read them from, Ollama's store."""
