"""Calls for mypy to check (tests/test_types.py); nothing runs them. A wrong line says which rule must find it."""

import threading

import wgemma

HELLO = [{"role": "user", "content": "Hello"}]


def good(model: wgemma.Model) -> None:
    answer = model.chat(HELLO, think=True, max_tokens=5, temperature=0, stop=["."], seed=None, logprobs=True)
    for part in answer:
        print(part.text, part.kind, part.finish_reason)
    answer.close()
    with model.chat(HELLO, cancel=threading.Event(), adapter=None) as reply:
        print(reply.text + reply.thinking, [call.name for call in reply.tool_calls])
    messages = [*HELLO, reply.message, {"role": "assistant", "tool_calls": reply.tool_calls}]
    pieces = model.generate([2, 30], top_k=5, logit_bias={5: 1.0}, adapter={"pirate": 0.5})
    print([piece.id for piece in pieces], pieces.usage, model.chat(messages))
    print(model.finetune("data.jsonl", out="out", rank=4, lr=0.01, targets="q,k", progress=print).losses)
    wgemma.load("gemma4:e2b", context=4096, kv="f32", progress=print, adapter=["a", "b"], slots=2, arena=None).close()
    for index, some in model.chat_many(iter([HELLO, HELLO]), max_tokens=5):
        print(index, some.text, some.index)
    answer = model.chat(HELLO, format=list[int], tools=[print, {"type": "function"}], tool_choice="print")
    print(answer.parsed, model.generate("Once", format=wgemma.Regex("a+")).parsed, wgemma.Choice(["yes", "no"]))
    print(model.generate_many(["Once", [2, 30]], seed=1).texts, [a.usage for a in model.chat(HELLO, n=3).alternatives])


async def good_async(model: wgemma.Model) -> None:
    whole = await model.achat(HELLO, max_tokens=5)
    print(whole.text, whole.message["content"])
    async for piece in model.agenerate("Once", max_tokens=5):
        print(piece.text)
    async for index, part in model.achat_many([HELLO]):
        print(index, part.kind)
    print([answer.text for answer in await model.agenerate_many(["Once"])])
    await (await wgemma.aload(context=5)).afinetune([], out="x", steps=1)


async def bad(model: wgemma.Model, options: wgemma.ChatOptions) -> None:
    wgemma.load(contxt=5)  # call-arg
    wgemma.load(context="5")  # arg-type
    wgemma.load(kv="f8")  # arg-type
    await wgemma.aload(n_ctx=5)  # call-arg
    model.chat(HELLO, temprature=1)  # call-arg
    model.chat(HELLO, max_tokens="x")  # arg-type
    model.chat("Hello")  # arg-type
    model.chat(HELLO, tools=[5], tool_choice=5)  # list-item arg-type
    model.generate("Once", tools=[print])  # call-arg
    model.chat(HELLO, think=5, cancel=5)  # arg-type arg-type
    model.achat(HELLO, num_predict=5)  # call-arg
    model.generate("Once", think=True)  # call-arg
    model.generate("Once", stop=5)  # arg-type
    model.agenerate("Once", **options)  # misc
    model.finetune([], rate=5)  # call-arg
    model.generate_many(["Once"], n=2)  # call-arg
    model.chat_many(["Hello"])  # list-item
    wgemma.load(slots="8")  # arg-type
    await model.afinetune([], rank="x")  # arg-type
    model("Hello")  # operator
    len(model)  # arg-type
    print(model.chat(HELLO)["message"], model.create_chat_completion)  # index attr-defined
    await model.chat(HELLO)  # misc
    for part in model.achat(HELLO):  # attr-defined
        print(part)
