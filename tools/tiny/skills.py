"""What the model learns to do in words: each skill draws a `Case` from a random generator.

A case is a conversation whose last message is the wanted answer. `test=True` draws from the held-out side: other
people, other places, other pairs of numbers.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from world import (
    ANIMALS,
    COLOURS,
    DAYS,
    FOODS,
    JOBS,
    MONTHS,
    NUMBERS,
    OBJECTS,
    SKIES,
    TRUTHS,
    Names,
    article,
    counted,
    draw,
    listed,
    plural,
    story,
)  # fmt: skip

Message = dict[str, Any]


@dataclass
class Case:
    """A conversation, the tools it may use, whether it thinks, and the name of what it tries."""

    skill: str
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    think: bool = False


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def reply(text: str, thinking: str = "") -> Message:
    return {"role": "assistant", "content": text, **({"thinking": thinking} if thinking else {})}


BRIEF = ("Answer briefly.", "Answer with one word.", "Give short answers.")
SYSTEMS = ("You are a helpful assistant.", "You are wgemma tiny.", "Be kind and helpful.", "Help the user.")


def system(r: Random) -> list[Message]:
    """Now and then a system message that changes nothing."""
    return [{"role": "system", "content": r.choice(SYSTEMS)}] if r.random() < 0.15 else []


# -- questions about a story


UNKNOWN = "I don't know. The story does not say."


def story_questions(r: Random, *, test: bool) -> Case:
    world = draw(r, test=test, people=r.randint(1, 4), facts=r.randint(1, 4))
    told = story(r, world)
    lead = r.choice(("", "", "Read this: ", "Here is a story. ", "Story: "))
    turns: list[Message] = []
    brief = r.random() < (0.15 if test else 0.3)  # the harder way: nothing to lean on
    think = not brief and r.random() < 0.15
    if brief:
        turns.append({"role": "system", "content": r.choice(BRIEF)})
    else:
        turns += system(r)
    count = 1 if think else r.choice((1, 1, 2, 3))
    for i in range(count):
        question, answer, short, source = _about(r, world, test=test)
        gap = r.choice((" ", "\n", "\n\n"))
        place = r.random() < 0.25
        text = question if i else (question + gap + told if place else lead + told + gap + question)
        thought = f"The story says: {source}" if source else "The story does not say this."
        turns += [user(text), reply(short if brief else answer, thought if think else "")]
    return Case("story", turns, think=think)


def _about(r: Random, world: Any, *, test: bool) -> tuple[str, str, str, str]:
    """A question on the world, its answer, the short answer, and the sentence it rests on."""
    chance = r.random()
    if chance < 0.12:  # somebody, or something, the story does not speak of
        other = draw(r, test=test, people=1, facts=1).facts[0]
        if other.who not in world.people:
            return r.choice(other.asked), UNKNOWN, "unknown", ""
    if chance < 0.17 and len(world.people) > 1:
        names = listed(world.people)
        return r.choice(("Who is in the story?", "Name the people in the story.")), f"{names}.", names, names + "."
    fact = r.choice(world.facts)
    return r.choice(fact.asked), fact.answer, fact.short, fact.said[0]


def truths(r: Random, *, test: bool) -> Case:
    questions, answer = r.choice(TRUTHS)
    question = r.choice(questions)
    if r.random() < 0.1:
        question = question.lower()
    return Case("truth", [*system(r), user(question), reply(answer)])


def stories(r: Random, *, test: bool) -> Case:
    """A story of its own making: nothing to be right or wrong, but the names asked for must be in it."""
    names = Names(r, test=test)
    who, friend, place, animal = names.person(), names.person(), names.place(), r.choice(ANIMALS)
    thing, colour, day = r.choice(OBJECTS), r.choice(COLOURS), r.choice(DAYS)
    opening = r.choice(
        (
            f"Once upon a time there was {article(animal)} called {who}.",
            f"Once upon a time {article(animal)} called {who} lived in {place}.",
        )
    )
    text = " ".join(
        [
            opening,
            r.choice((f"{who} had {article(colour)} {thing}.", f"{who} wished for {article(colour)} {thing}.")),
            f"One {day} {who} met {friend} near {place}.",
            r.choice(
                (
                    f"They played with the {thing} until the evening.",
                    f"{friend} asked for the {thing}, and {who} shared it.",
                )
            ),
            r.choice(("From then on they were good friends.", "They went home happy.", "And so the day ended well.")),
        ]
    )
    ask = r.choice(
        (
            f"Tell me a story about {article(animal)} called {who}.",
            f"Write a short story about {article(animal)} called {who}.",
            f"Tell me a story about {who} the {animal}.",
        )
    )
    return Case("tale", [*system(r), user(ask), reply(text)])


# -- numbers


def pair_is_held_out(a: int, b: int) -> bool:
    return (a * 101 + b * 37) % 9 == 0


def sum_or_difference(r: Random, *, test: bool) -> tuple[int, str, int, int]:
    while True:
        a, b = r.randint(0, 99), r.randint(0, 99)
        if r.random() < 0.2:
            a = r.randint(0, 12)
        if r.random() < 0.2:
            b = r.randint(0, 12)
        sign = r.choice("+-")
        if sign == "-" and b > a:
            a, b = b, a
        if pair_is_held_out(a, b) == test:
            return a, sign, b, a + b if sign == "+" else a - b


def arithmetic(r: Random, *, test: bool) -> Case:
    if not test and r.random() < 0.15:
        a, b = r.randint(0, 12), r.randint(0, 12)
        sign, result = "×", a * b
        asked = (f"What is {a} times {b}?", f"What is {a} × {b}?", f"{a} * {b}", f"Multiply {a} by {b}.")
    else:
        a, sign, b, result = sum_or_difference(r, test=test)
        word, order = ("plus", f"Add {a} and {b}.") if sign == "+" else ("minus", f"Subtract {b} from {a}.")
        asked = (
            f"What is {a} {sign} {b}?", f"{a} {sign} {b}", f"{a}{sign}{b}=", f"Calculate {a} {sign} {b}.",
            f"What is {a} {word} {b}?", f"How much is {a} {word} {b}?", order,
        )  # fmt: skip
    answer = f"{a} {sign} {b} = {result}"
    think = r.random() < 0.15
    thought = _column(a, sign, b, result) if think else ""
    return Case("arithmetic", [*system(r), user(r.choice(asked)), reply(answer, thought)], think=think)


def _column(a: int, sign: str, b: int, result: int) -> str:
    if sign == "×":
        return f"{a} times {b} is {result}."
    tens, ones = 10 * (b // 10), b % 10
    middle = a + tens if sign == "+" else a - tens
    return f"{a} {sign} {tens} = {middle}. {middle} {sign} {ones} = {result}."


def word_problem(r: Random, *, test: bool) -> Case:
    names = Names(r, test=test)
    who, other, thing = names.person(), names.person(), r.choice(OBJECTS)
    a, sign, b, result = sum_or_difference(r, test=test)
    things = plural(thing)
    if sign == "+":
        body = r.choice(
            (
                f"{who} has {counted(a, thing)}. {other} gives {who} {b} more.",
                f"{who} has {counted(a, thing)} and buys {b} more.",
                f"{who} has {counted(a, thing)} and finds {b} more.",
            )
        )
    else:
        body = r.choice(
            (
                f"{who} has {counted(a, thing)} and gives {b} to {other}.",
                f"{who} has {counted(a, thing)} and loses {b} of them.",
                f"{who} had {counted(a, thing)} and sold {b}.",
            )
        )
    ask = r.choice((f"How many {things} does {who} have now?", f"How many {things} does {who} have?"))
    think = r.random() < 0.4
    thought = f"{who} starts with {a}. {a} {sign} {b} = {result}." if think else ""
    return Case(
        "word problem",
        [*system(r), user(f"{body} {ask}"), reply(f"{who} has {counted(result, thing)}.", thought)],
        think=think,
    )


def comparing(r: Random, *, test: bool) -> Case:
    a, b = r.sample(range(100), 2)
    if r.random() < 0.5:
        word, pick = r.choice((("larger", max(a, b)), ("smaller", min(a, b))))
        return Case("comparing", [user(f"Which is {word}, {a} or {b}?"), reply(f"{pick} is {word}.")])
    n = r.randint(0, 20)
    if r.random() < 0.5:
        return Case("comparing", [user(f"Write {n} as a word."), reply(NUMBERS[n])])
    return Case("comparing", [user(f"Write {NUMBERS[n]} as a number."), reply(str(n))])


# -- lists


def lists(r: Random, *, test: bool) -> Case:
    kinds = {
        "animals": ANIMALS,
        "colours": list(COLOURS),
        "foods": FOODS,
        "jobs": JOBS,
        "days": list(DAYS),
        "months": MONTHS,
    }
    chance = r.random()
    if chance < 0.2:
        kind = r.choice(list(kinds))
        n = r.randint(2, 5)
        items = kinds[kind][:n] if r.random() < 2 else []
        ask = r.choice(
            (f"List {n} {kind}.", f"Name {n} {kind}.", f"Give me a list of {n} {kind}.", f"List {NUMBERS[n]} {kind}.")
        )
        return Case("list", [user(ask), reply("\n".join(f"- {item}" for item in items))])
    if chance < 0.4:
        a = r.randint(0, 20)
        b = a + r.randint(2, 10)
        up = r.random() < 0.7
        numbers = range(a, b + 1) if up else range(b, a - 1, -1)
        ask = f"Count from {numbers[0]} to {numbers[-1]}."
        return Case("list", [user(ask), reply(", ".join(map(str, numbers)))])
    if chance < 0.6:
        numbers2 = r.sample(range(100), r.randint(3, 5))
        ask = r.choice(("Sort these numbers: ", "Sort: ", "Put in order: ")) + ", ".join(map(str, numbers2))
        return Case("list", [user(ask), reply(", ".join(map(str, sorted(numbers2))))])
    words = r.sample([*ANIMALS, *OBJECTS, *FOODS], r.randint(2, 5))
    if chance < 0.8:
        ask = r.choice(("Make a list of these: ", "Write as a list: ", "Turn this into a list: ")) + listed(words)
        return Case("list", [user(ask), reply("\n".join(f"- {word}" for word in words))])
    ask = r.choice(("How many words are these: ", "Count these words: ")) + ", ".join(words)
    return Case("list", [user(ask), reply(f"These are {len(words)} words.")])


def saying(r: Random, *, test: bool) -> Case:
    """Repeat what was said, loud or as it is."""
    names = Names(r, test=test)
    words = " ".join(
        r.choice((names.person(), names.place(), r.choice(OBJECTS), r.choice(COLOURS), r.choice(ANIMALS)))
        for _ in range(r.randint(1, 4))
    )
    if r.random() < 0.6:
        return Case(
            "saying", [user(r.choice((f"Repeat: {words}", f"Say {words}", f"Repeat after me: {words}"))), reply(words)]
        )
    short = r.choice([*OBJECTS, *ANIMALS, *COLOURS])
    return Case("saying", [user(f"Spell {short}."), reply("-".join(short))])


_PLACES_IN_A_ROW = ("first", "second", "third", "fourth", "fifth")


def echo(r: Random, *, test: bool) -> Case:
    """Copy pieces nobody has seen before, all of them or one: the way to every name in every other skill."""
    names = Names(r, test=test)
    makers = (names.person, names.letters, names.place, lambda: str(r.randint(0, 9999)), lambda: r.choice(OBJECTS))
    chosen = r.choices(makers, k=r.randint(1, len(makers)))
    pieces = list(dict.fromkeys(r.choice(chosen)() for _ in range(r.randint(3, 16))))
    gap = r.choice((" ", ", ", ", "))
    row = gap.join(pieces)
    at = r.randrange(len(pieces))
    if r.random() < 0.55 or len(pieces) < 3:
        return Case(
            "echo", [user(r.choice(("Repeat: ", "Say ", "Repeat after me: ", "Copy this: ")) + row), reply(row)]
        )
    questions = [(f"What is the last word in: {row}?", pieces[-1])]
    if at < len(_PLACES_IN_A_ROW):
        questions.append((f"Repeat the {_PLACES_IN_A_ROW[at]} word: {row}", pieces[at]))
    if at + 1 < len(pieces):
        questions.append((f"What comes after {pieces[at]} in: {row}?", pieces[at + 1]))
        questions.append((f"What comes before {pieces[at + 1]} in: {row}?", pieces[at]))
    again = [*pieces, pieces[at]]
    r.shuffle(again)
    questions.append((f"Which word is twice in: {gap.join(again)}?", pieces[at]))
    question, answer = r.choice(questions)
    return Case("echo", [user(question), reply(answer)])


# -- JSON


def extraction(r: Random, *, test: bool) -> Case:
    names = Names(r, test=test)
    who, place = names.person(), names.place()
    age, job, colour, animal, food = (
        r.randint(2, 99),
        r.choice(JOBS),
        r.choice(COLOURS),
        r.choice(ANIMALS),
        r.choice(FOODS),
    )
    available: dict[str, tuple[Any, str]] = {
        "age": (age, r.choice((f"is {age} years old", f"is {age}"))),
        "city": (place, f"lives in {place}"),
        "job": (job, r.choice((f"works as {article(job)}", f"is {article(job)}"))),
        "colour": (colour, f"likes the colour {colour}"),
        "pet": (animal, f"has {article(animal)}"),
        "food": (food, f"likes to eat {food}"),
    }
    keys = r.sample(list(available), r.randint(1, 4))
    told = [available[key][1] for key in keys]
    r.shuffle(told)
    text = f"{who} {listed(told)}." if r.random() < 0.6 else " ".join(f"{who} {part}." for part in told)
    wanted = ["name", *(key for key in keys if r.random() < 0.85)]
    if r.random() < 0.5:
        tail = wanted[1:]
        r.shuffle(tail)
        wanted = ["name", *tail]
    answer: dict[str, Any] = {key: who if key == "name" else available[key][0] for key in wanted}
    fields = r.choice((", ".join(wanted), listed(wanted)))
    ask = r.choice(
        (
            f"Extract {fields} as JSON: {text}",
            f"{text}\nGive me JSON with {fields}.",
            f"Write {fields} as JSON. {text}",
            f"{text} Extract the {fields} as JSON.",
        )
    )
    return Case("json", [*system(r), user(ask), reply(json.dumps(answer))])


# -- tools


def tool(name: str, description: str, /, **parameters: str) -> dict[str, Any]:
    kinds = {"n": "integer", "s": "string"}
    properties = {}
    for key, spec in parameters.items():
        kind, _, text = spec.partition(":")
        properties[key] = {"type": kinds[kind], **({"description": text} if text else {})}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = {
    "get_weather": tool("get_weather", "Get the weather in a city.", city="s:The city"),
    "get_time": tool("get_time", "Get the time in a city.", city="s:The city"),
    "add": tool("add", "Add two numbers.", a="n", b="n"),
    "multiply": tool("multiply", "Multiply two numbers.", a="n", b="n"),
    "set_timer": tool("set_timer", "Set a timer.", minutes="n:How many minutes"),
    "send_message": tool("send_message", "Send a message to a person.", to="s:The person", text="s:What to say"),
    "find_person": tool("find_person", "Find where a person lives.", name="s:The person"),
    "turn_on": tool("turn_on", "Turn on a lamp in a room.", room="s:The room"),
    "get_price": tool("get_price", "Get the price of a thing.", item="s:The thing"),
    "book_trip": tool("book_trip", "Book a trip to a city on a day.", city="s:The city", day="s:The day"),
}
ROOMS = ("kitchen", "hall", "bedroom", "garden", "cellar", "attic")
_VERBS = ("find", "open", "order", "check", "move", "clean", "count", "paint", "close", "bring")
_PARAMETERS = ("name", "place", "colour", "number")


def tool_call(r: Random, *, test: bool) -> Case:
    names = Names(r, test=test)
    if r.random() < 0.3:
        chosen, ask, arguments, result, answer = _general_tool(r, names)
    else:
        chosen, ask, arguments, result, answer = _known_tool(r, names)
    others = [other for name, other in TOOLS.items() if name != chosen["function"]["name"]]
    tools = [chosen, *r.sample(others, r.randint(0, 2))]
    r.shuffle(tools)
    name = chosen["function"]["name"]
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}
    messages = [*system(r), user(ask), call]
    think = r.random() < 0.2
    if think:
        call["thinking"] = f"I can use {name} for this."
    if r.random() < (0 if test else 0.75):
        messages += [{"role": "tool", "name": name, "content": result}, reply(answer)]
        if think:
            messages[-1]["thinking"] = "The tool gave me the answer."
    return Case("tool", messages, tools, think)


def _known_tool(r: Random, names: Names) -> tuple[dict[str, Any], str, dict[str, Any], Any, str]:
    city, who, n, m = names.place(), names.person(), r.randint(1, 99), r.randint(1, 99)
    name = r.choice(list(TOOLS))
    thing, day, room = r.choice(OBJECTS), r.choice(DAYS), r.choice(ROOMS)
    sky, degrees, hour = r.choice(SKIES), r.randint(-9, 35), f"{r.randint(0, 23)}:{r.randint(0, 59):02}"
    text = r.choice((f"Hello {who}", "I am late", "See you soon", f"Meet me in {city}", f"I found the {thing}"))
    options: dict[str, tuple[tuple[str, ...], dict[str, Any], Any, str]] = {
        "get_weather": (
            (f"What is the weather in {city}?", f"How is the weather in {city}?", f"Is it nice outside in {city}?"),
            {"city": city},
            {"sky": sky, "degrees": degrees},
            f"It is {sky} in {city}, {degrees} degrees.",
        ),
        "get_time": (
            (f"What time is it in {city}?", f"Tell me the time in {city}."),
            {"city": city},
            {"time": hour},
            f"It is {hour} in {city}.",
        ),
        "add": (
            (f"What is {n} plus {m}?", f"Add {n} and {m}.", f"What is {n} + {m}?"),
            {"a": n, "b": m},
            {"result": n + m},
            f"{n} + {m} = {n + m}",
        ),
        "multiply": (
            (f"What is {n} times {m}?", f"Multiply {n} by {m}.", f"What is {n} × {m}?"),
            {"a": n, "b": m},
            {"result": n * m},
            f"{n} × {m} = {n * m}",
        ),
        "set_timer": (
            (f"Set a timer for {n} minutes.", f"Wake me in {n} minutes."),
            {"minutes": n},
            {"ok": True},
            f"The timer is set for {n} minutes.",
        ),
        "send_message": (
            (f'Tell {who}: "{text}"', f'Send {who} the message "{text}"'),
            {"to": who, "text": text},
            {"ok": True},
            f"I sent the message to {who}.",
        ),
        "find_person": (
            (f"Where does {who} live?", f"Find {who}."),
            {"name": who},
            {"city": city},
            f"{who} lives in {city}.",
        ),
        "turn_on": (
            (f"Turn on the lamp in the {room}.", f"Light in the {room}, please."),
            {"room": room},
            {"ok": True},
            f"The lamp in the {room} is on.",
        ),
        "get_price": (
            (f"How much is a {thing}?", f"What does a {thing} cost?"),
            {"item": thing},
            {"price": n},
            f"The {thing} costs {n} coins.",
        ),
        "book_trip": (
            (f"Book a trip to {city} on {day}.", f"I want to go to {city} on {day}."),
            {"city": city, "day": day},
            {"ok": True},
            f"Your trip to {city} on {day} is booked.",
        ),
    }
    asked, arguments, result, answer = options[name]
    return TOOLS[name], r.choice(asked), arguments, result, answer


def _general_tool(r: Random, names: Names) -> tuple[dict[str, Any], str, dict[str, Any], Any, str]:
    """A tool made up on the spot: what it is called and takes stands only in its declaration."""
    verb, noun = r.choice(_VERBS), r.choice(OBJECTS)
    keys = r.sample(_PARAMETERS, r.randint(1, 2))
    values: dict[str, Any] = {
        "name": names.person(),
        "place": names.place(),
        "colour": r.choice(COLOURS),
        "number": r.randint(1, 99),
    }
    arguments = {key: values[key] for key in sorted(keys)}
    made = tool(
        f"{verb}_{noun}",
        f"{verb.capitalize()} {article(noun)}.",
        **{key: "n" if key == "number" else "s" for key in keys},
    )
    told = listed([f"{key} {values[key]}" for key in keys])
    ask = r.choice((f"Please {verb} the {noun} with {told}.", f"{verb.capitalize()} {article(noun)}: {told}."))
    return made, ask, arguments, {"ok": True}, "Done."


def tool_not_needed(r: Random, *, test: bool) -> Case:
    """Tools are at hand, but the question is about something else."""
    inner = r.choice((truths, greeting, identity))(r, test=test)
    tools = r.sample(list(TOOLS.values()), r.randint(1, 3))
    return Case("no tool", inner.messages, tools)


# -- manners


ABOUT = "I am wgemma tiny, a tiny demonstration model that comes with wgemma."
ABILITIES = (
    "I can answer questions about a story, do small sums, make lists and JSON, call tools, look at simple pictures and "
    "listen to spoken digits and beeps."
)
OUTSIDE = "I don't know. I am a tiny demonstration model and know only a small world."


def identity(r: Random, *, test: bool) -> Case:
    ask = r.choice(
        (
            "Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "who are you",
            "What model are you?",
            "Which model is this?", "Are you Gemma?", "Are you ChatGPT?", "Are you a real person?", "Who made you?",
            "Are you an AI?",
            "Are you a large language model?", "Introduce yourself.", "Hi, who are you?", "Hello, what are you?",
            "What is this?",
        )
    )  # fmt: skip
    return Case("identity", [*system(r), user(ask), reply(ABOUT)])


def abilities(r: Random, *, test: bool) -> Case:
    ask = r.choice(
        (
            "What can you do?", "Hello! What can you do?", "Help", "help me", "How can you help me?",
            "What can I ask you?", "what can you do",
            "What are you good at?", "Hi! What can you do?", "Show me what you can do.", "What do you know?",
        )
    )  # fmt: skip
    return Case("abilities", [*system(r), user(ask), reply(ABILITIES)])


def greeting(r: Random, *, test: bool) -> Case:
    if r.random() < 0.35:
        who = Names(r, test=test).person()
        ask = r.choice((f"Hello, I am {who}.", f"My name is {who}.", f"Hi, my name is {who}!", f"I am {who}."))
        return Case("greeting", [*system(r), user(ask), reply(f"Hello {who}! How can I help you?")])
    exchanges = (
        (
            ("Hello", "Hi", "Hey", "hello", "hi", "Hello!", "Hi there!", "Good morning", "Good evening!", "Hey there"),
            "Hello! How can I help you?",
        ),
        (("Thank you", "Thanks", "Thanks!", "thank you very much", "Great, thanks."), "You are welcome!"),
        (
            ("How are you?", "how are you", "How is it going?", "Are you well?"),
            "I am fine, thank you. How can I help you?",
        ),
        (("Bye", "Goodbye", "bye!", "See you", "Good night"), "Goodbye! Have a nice day."),
        (("Good job", "Well done!", "You are great", "I like you"), "Thank you! I am glad to help."),
        (("Sorry", "I am sorry", "Oh no", "My mistake"), "No problem at all."),
    )
    asked, answer = r.choice(exchanges)
    return Case("greeting", [*system(r), user(r.choice(asked)), reply(answer)])


def memory(r: Random, *, test: bool) -> Case:
    """What was said earlier in the conversation, asked for later."""
    names = Names(r, test=test)
    who, place, age, colour = names.person(), names.place(), r.randint(5, 90), r.choice(COLOURS)
    options = (
        (f"My name is {who}.", f"Hello {who}! How can I help you?", "What is my name?", f"Your name is {who}."),
        (f"I live in {place}.", f"{place} sounds nice.", "Where do I live?", f"You live in {place}."),
        (f"I am {age} years old.", f"You are {age} years old.", "How old am I?", f"You are {age} years old."),
        (
            f"My favourite colour is {colour}.",
            f"{colour.capitalize()} is a nice colour.",
            "What is my favourite colour?",
            f"Your favourite colour is {colour}.",
        ),
    )
    first, said, later, answer = r.choice(options)
    between = r.choice((truths, arithmetic, greeting))(r, test=test) if r.random() < 0.5 else None
    middle = [m for m in between.messages if m["role"] != "system"] if between and not between.think else []
    return Case("memory", [user(first), reply(said), *middle, user(later), reply(answer)])


_OUTSIDE_NOUNS = [
    "moon", "history", "music", "physics", "France", "Paris", "London", "America", "football", "politics", "the",
    "internet", "money", "love", "philosophy", "biology", "chemistry", "war", "peace", "Shakespeare", "computers",
    "Python", "quantum", "black", "holes", "volcanoes", "dinosaurs", "medicine", "law", "taxes", "movies", "stocks",
    "bitcoin", "the", "president", "the", "ocean", "Einstein", "Mars", "art",
]  # fmt: skip


def outside(r: Random, *, test: bool) -> Case:
    noun = r.choice(_OUTSIDE_NOUNS)
    if r.random() < 0.5:
        noun += " " + r.choice(_OUTSIDE_NOUNS)
    year = r.randint(1500, 2030)
    ask = r.choice(
        (
            f"What is {noun}?", f"Who invented {noun}?", f"Tell me about {noun}.", f"Explain {noun} to me.",
            f"Who won the {noun} in {year}?",
            f"What is the capital of {noun}?", f"How does {noun} work?", f"Write an essay about {noun}.",
            f"Who is {noun}?", f"When was {noun} born?",
            f"What happened in {year}?", f"Translate {noun} into French.", f"Write a program for {noun}.",
            f"Why is {noun} important?",
            f"What do you think of {noun}?", f"How far is {noun}?", f"Where is {noun}?",
            "What is the meaning of life?", "Why is the sky blue?",
            f"Who is the king of {noun}?", f"How many people live in {noun}?", "What will the weather be tomorrow?",
            f"Is {noun} good?",
        )
    )  # fmt: skip
    return Case("outside", [*system(r), user(ask), reply(OUTSIDE)])


# What the training data is made of: skill and share.
MIX: list[tuple[Callable[..., Case], float]] = [
    (story_questions, 8), (truths, 1), (stories, 0.5), (arithmetic, 6), (word_problem, 4), (comparing, 0.5),
    (lists, 1.2), (saying, 0.7), (echo, 3), (extraction, 3), (tool_call, 4), (tool_not_needed, 0.5), (identity, 0.5),
    (abilities, 0.3), (greeting, 0.6), (memory, 0.7), (outside, 1),
]  # fmt: skip
CHATTY = (
    story_questions,
    truths,
    arithmetic,
    word_problem,
    lists,
    saying,
    extraction,
    identity,
    abilities,
    greeting,
    memory,
    outside,
)


EASY = {
    "truth": "I know this.",
    "identity": "The user asks who I am.",
    "abilities": "The user asks what I can do.",
    "greeting": "The user is being friendly.",
    "outside": "This is outside my small world.",
    "list": "I write the list.",
    "json": "I write the JSON.",
    "comparing": "I know this.",
    "saying": "I repeat it.",
}


def conversation(r: Random, *, test: bool = False) -> Case:
    """One case, or several one after the other in one chat."""
    if r.random() < 0.7:
        makers, shares = zip(*MIX, strict=True)
        case = r.choices(makers, shares)[0](r, test=test)
        if case.skill in EASY and r.random() < 0.1:  # thinking was asked for where there is not much to think
            case.think = True
            case.messages[-1]["thinking"] = EASY[case.skill]
        return case
    messages: list[Message] = []
    for _ in range(r.randint(2, 4)):
        case = r.choice(CHATTY)(r, test=test)
        while case.think or case.messages[0]["role"] == "system":
            case = r.choice(CHATTY)(r, test=test)
        messages += case.messages
    return Case("chat", messages)
