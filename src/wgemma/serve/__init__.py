"""The server behind `wgemma serve`: Ollama's, OpenAI's and Anthropic's APIs over the models of this machine.

A request travels through these files, top to bottom:

    listening  uvicorn on a socket (web.listening), and how it ends: no new requests, the open ones, then the models
    guard      who may ask: Host, Origin, key; and how much all bodies together may hold
    app        which address is whose, from each API's *_routes; made by `make_app(Service)`
    ollama, openai, anthropic   each API's JSON → Ask, and Events → its JSON, NDJSON or SSE (some in *_events)
    exchange   one request's life: answer in one piece or as a stream, and stop when the client leaves
    service    the queue in front of the models, where a full one answers 503; counts everything for metrics
    models     which models of the catalogue are loaded, and when they go
    working    from an Ask to its Events, on a loaded model

One `Ask` (ask.py) is everything an API can want of a model, in wgemma's own words; `Started`, `Text`, `Thinking`,
`Call` and `Finish` are all that an answer consists of. The translators between them and the APIs are pure: they know no
server and no model, so tests call them as functions. fields.py reads hostile JSON, content.py messages and media, and
bounds.py has every limit. An error is a `Problem` (problems.py): a status and a sentence for the caller, in which no
path, traceback or library's text ever stands; each API has its own JSON for it.

Everything runs in one event loop. `Model.achat` never blocks it, and the answers of all callers are one batch on the
GPU; what would block (loading, closing, embedding, decoding a recording) runs in a thread. A slow reader stops the
server from sending, so its answer rests in the engine after 64 tokens and holds up nobody. A model that fails ends its
own requests only.
"""
