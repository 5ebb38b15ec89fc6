"""The small closed world: who lives in it, what they have, and what is always true there.

A `World` is a handful of people with facts, drawn at random. Names of people and places are built from syllables, and
one in eight belongs to the held-out worlds alone, so no training story ever speaks of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from string import ascii_lowercase, ascii_uppercase
from zlib import crc32

_FIRST = [
    "Mi", "To", "Ka", "Lu", "Ne", "Ra", "So", "Be", "Fi", "Jo", "Da", "Ve", "Ha", "Pi", "Su", "Ro", "El", "An", "Ol",
    "Ti", "Ma", "Lo", "Zu", "Ki", "Wen", "Bri", "Tar", "Cal", "Dor", "Fen",
]  # fmt: skip
_SECOND = [
    "ra", "bo", "li", "ma", "no", "vi", "den", "ric", "la", "sha", "mi", "to", "na", "ko", "lin", "ren", "ta", "di",
    "so", "bel", "mon", "nia", "vo", "ro", "ki", "len", "dra",
]  # fmt: skip
_STEM = [
    "Oak",
    "River",
    "Stone",
    "Maple",
    "Fox",
    "Lake",
    "Hill",
    "Silver",
    "Green",
    "Moss",
    "Sun",
    "Wind",
    "Star",
    "Rose",
    "Iron",
    "Bear",
    "Cloud",
    "Amber",
    "Frost",
    "Pine",
]
_END = ["ton", "field", "bridge", "wood", "ville", "haven", "mere", "dale", "ford", "port"]

COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "black", "white", "pink", "brown")
OBJECTS = [
    "kite", "ball", "book", "lamp", "hat", "boat", "drum", "bell", "cup", "key", "coin", "box", "ring", "map",
    "scarf", "basket", "clock", "flute", "ladder", "mirror", "rope", "candle", "button", "blanket",
]  # fmt: skip
ANIMALS = [
    "cat", "dog", "horse", "rabbit", "duck", "goat", "hen", "mouse", "fox", "owl", "turtle", "frog", "sheep", "pony",
    "parrot",
]  # fmt: skip
FOODS = [
    "bread", "soup", "cheese", "rice", "honey", "plums", "apples", "pears", "cake", "beans", "noodles", "carrots",
    "berries", "pancakes",
]  # fmt: skip
JOBS = [
    "baker", "farmer", "teacher", "painter", "sailor", "doctor", "gardener", "miller", "cook", "tailor", "singer",
    "builder", "shepherd", "potter",
]  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip
SKIES = ("sunny", "rainy", "cloudy", "windy", "snowy", "foggy")
GAMES = ["chess", "football", "tag", "cards", "hide-and-seek", "marbles"]
NUMBERS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
]  # fmt: skip


def held_out(name: str) -> bool:
    return crc32(name.encode()) % 8 == 0


PEOPLE = [first + second for first in _FIRST for second in _SECOND]
PLACES = [stem + end for stem in _STEM for end in _END]
LETTERS = (ascii_lowercase, ascii_uppercase)
SYLLABLES = (_FIRST + _STEM, _SECOND + _END)


def article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def plural(noun: str) -> str:
    if noun == "mouse":
        return "mice"
    if noun == "sheep":
        return "sheep"
    if noun.endswith(("x", "ch", "sh", "s")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun if count == 1 else plural(noun)}"


def listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


@dataclass(frozen=True)
class Fact:
    """A fact about one person. `said` are ways to state it, `asked` ways to ask for it; `answer` is the full sentence
    and `short` the short form."""

    kind: str
    who: str
    said: tuple[str, ...]
    asked: tuple[str, ...]
    answer: str
    short: str


@dataclass
class World:
    """People with their facts, in the order a story tells them."""

    people: list[str]
    facts: list[Fact] = field(default_factory=list)

    def of(self, kind: str, who: str) -> Fact | None:
        return next((fact for fact in self.facts if (fact.kind, fact.who) == (kind, who)), None)


class Names:
    """Hands out names of one side of the split, none twice."""

    def __init__(self, random: Random, *, test: bool) -> None:
        self._random = random
        self._test = test
        self._used: set[str] = set()

    def person(self) -> str:
        """One of the world's people, or as often a name never heard before, so that copying is learnt."""
        return self.invented() if self._random.random() < 0.5 else self._pick(lambda: self._random.choice(PEOPLE))

    def place(self) -> str:
        return self._pick(lambda: self._random.choice(PLACES))

    def invented(self) -> str:
        return self._pick(self._invented)

    def letters(self) -> str:
        """Two to six letters that need not sound like anything: xqt, OBWK."""
        return self._pick(
            lambda: "".join(self._random.choices(self._random.choice(LETTERS), k=self._random.randint(2, 6)))
        )

    def _pick(self, make: Callable[[], str]) -> str:
        while True:
            name = make()
            if held_out(name) == self._test and name not in self._used:
                self._used.add(name)
                return name

    def _invented(self) -> str:
        """Consonants and vowels by turns, sometimes doubled: Bettora, Osk, Quinn."""
        r, letters = self._random, ""
        vowel = r.random() < 0.3
        for _ in range(r.randint(3, 7)):
            letters += r.choice("aeiouy" if vowel else "bcdfghjklmnpqrstvwxz")
            vowel = not vowel if r.random() < 0.85 else vowel
        return letters.capitalize()


def _lives(r: Random, names: Names, who: str) -> Fact:
    place = names.place()
    return Fact(
        "lives",
        who,
        (f"{who} lives in {place}.", f"{who}'s home is in {place}.", f"{who} has a house in {place}."),
        (f"Where does {who} live?", f"In which town does {who} live?", f"Where is {who}'s home?"),
        f"{who} lives in {place}.",
        place,
    )


def _age(r: Random, names: Names, who: str) -> Fact:
    age = r.randint(2, 99)
    return Fact(
        "age",
        who,
        (f"{who} is {age} years old.", f"{who} is {age}.", f"This year {who} turned {age}."),
        (f"How old is {who}?", f"What is {who}'s age?"),
        f"{who} is {age} years old.",
        str(age),
    )


def _job(r: Random, names: Names, who: str) -> Fact:
    job = r.choice(JOBS)
    return Fact(
        "job",
        who,
        (f"{who} works as {article(job)}.", f"{who} is {article(job)}."),
        (f"What is {who}'s job?", f"What does {who} do for work?"),
        f"{who} is {article(job)}.",
        job,
    )


def _pet(r: Random, names: Names, who: str) -> Fact:
    animal, colour, name = r.choice(ANIMALS), r.choice(COLOURS), names.person()
    if r.random() < 0.5:
        return Fact(
            "pet",
            who,
            (f"{who} has {article(animal)} called {name}.", f"{who} owns {article(animal)} named {name}."),
            (f"What is the name of {who}'s {animal}?", f"What is {who}'s {animal} called?"),
            f"{who}'s {animal} is called {name}.",
            name,
        )
    return Fact(
        "pet",
        who,
        (f"{who} has {article(colour)} {animal}.", f"{who} keeps {article(colour)} {animal}."),
        (f"What pet does {who} have?", f"Which animal does {who} have?"),
        f"{who} has {article(colour)} {animal}.",
        animal,
    )


def _likes(r: Random, names: Names, who: str) -> Fact:
    what, thing = r.choice(
        [
            ("food", r.choice(FOODS)),
            ("colour", r.choice(COLOURS)),
            ("game", r.choice(GAMES)),
            ("animal", r.choice(ANIMALS)),
        ]
    )
    return Fact(
        f"likes {what}",
        who,
        (f"{who}'s favourite {what} is {thing}.", f"The {what} {who} likes best is {thing}."),
        (f"What is {who}'s favourite {what}?", f"Which {what} does {who} like best?"),
        f"{who}'s favourite {what} is {thing}.",
        thing,
    )


def _thing(r: Random, names: Names, who: str) -> Fact:
    thing, colour = r.choice(OBJECTS), r.choice(COLOURS)
    return Fact(
        f"thing {thing}",
        who,
        (
            f"{who} has {article(colour)} {thing}.",
            f"{who} found {article(colour)} {thing}.",
            f"{who}'s {thing} is {colour}.",
        ),
        (f"What colour is {who}'s {thing}?", f"Which colour does {who}'s {thing} have?"),
        f"{who}'s {thing} is {colour}.",
        colour,
    )


def _count(r: Random, names: Names, who: str) -> Fact:
    thing, count = r.choice(OBJECTS), r.randint(2, 40)
    return Fact(
        f"count {thing}",
        who,
        (f"{who} has {counted(count, thing)}.", f"{who} owns {counted(count, thing)}."),
        (f"How many {plural(thing)} does {who} have?", f"How many {plural(thing)} are {who}'s?"),
        f"{who} has {counted(count, thing)}.",
        str(count),
    )


def _trip(r: Random, names: Names, who: str) -> Fact:
    place, day = names.place(), r.choice(DAYS)
    said = (f"On {day} {who} went to {place}.", f"{who} travelled to {place} on {day}.")
    if r.random() < 0.5:
        asked: tuple[str, ...] = (f"Where did {who} go on {day}?", f"To which town did {who} travel on {day}?")
        return Fact("trip", who, said, asked, f"On {day} {who} went to {place}.", place)
    asked = (f"When did {who} go to {place}?", f"On which day did {who} travel to {place}?")
    return Fact("trip", who, said, asked, f"{who} went to {place} on {day}.", day)


def _gift(r: Random, names: Names, who: str) -> Fact:
    other, thing = names.person(), r.choice(OBJECTS)
    said = (f"{who} gave {other} {article(thing)}.", f"{who} gave {article(thing)} to {other}.")
    if r.random() < 0.5:
        return Fact(
            "gift", who, said, (f"What did {who} give {other}?",), f"{who} gave {other} {article(thing)}.", thing
        )
    return Fact(
        "gift",
        who,
        said,
        (f"Who got {article(thing)} from {who}?",),
        f"{other} got {article(thing)} from {who}.",
        other,
    )


KINDS = (_lives, _age, _job, _pet, _likes, _thing, _count, _trip, _gift)


def draw(random: Random, *, test: bool, people: int, facts: int) -> World:
    """A world with this many people and about this many facts each; a person's facts are all of different kinds."""
    names = Names(random, test=test)
    world = World([names.person() for _ in range(people)])
    for who in world.people:
        for make in random.sample(KINDS, min(facts, len(KINDS))):
            world.facts.append(make(random, names, who))
    return world


def story(random: Random, world: World) -> str:
    """The world as a story: person by person, or mixed."""
    facts = list(world.facts)
    if random.random() < 0.4:
        random.shuffle(facts)
    return " ".join(random.choice(fact.said) for fact in facts)


# What is always true. Each is asked in several ways and answered in one.
TRUTHS: list[tuple[tuple[str, ...], str]] = []


def _truth(answer: str, *questions: str) -> None:
    TRUTHS.append((questions, answer))


for _thing_name, _colour in (
    ("the sky", "blue"), ("grass", "green"), ("snow", "white"), ("coal", "black"), ("a lemon", "yellow"),
    ("a strawberry", "red"), ("a carrot", "orange"), ("chocolate", "brown"), ("the sun", "yellow"),
    ("a cloud", "white"),
):  # fmt: skip
    _truth(
        f"{_thing_name[0].upper() + _thing_name[1:]} is {_colour}.",
        f"What colour is {_thing_name}?",
        f"Which colour does {_thing_name} have?",
    )
for _animal, _sound in (
    ("cow", "moo"), ("dog", "woof"), ("cat", "meow"), ("duck", "quack"), ("sheep", "baa"), ("owl", "hoot"),
    ("frog", "croak"), ("hen", "cluck"), ("horse", "neigh"), ("mouse", "squeak"),
):  # fmt: skip
    _truth(
        f"A {_animal} says {_sound}." if _animal != "owl" else "An owl says hoot.",
        f"What does {article(_animal)} say?",
        f"What sound does {article(_animal)} make?",
        f"How does {article(_animal)} sound?",
    )
for _animal, _legs in (
    ("dog", 4),
    ("hen", 2),
    ("spider", 8),
    ("ant", 6),
    ("cat", 4),
    ("fish", 0),
    ("duck", 2),
    ("horse", 4),
):
    _truth(f"{article(_animal).capitalize()} has {_legs} legs.", f"How many legs does {article(_animal)} have?")
for _a, _b in (
    ("hot", "cold"), ("big", "small"), ("up", "down"), ("day", "night"), ("fast", "slow"), ("happy", "sad"),
    ("open", "closed"), ("wet", "dry"), ("light", "dark"), ("old", "young"), ("full", "empty"), ("left", "right"),
):  # fmt: skip
    for _x, _y in ((_a, _b), (_b, _a)):
        _truth(f"The opposite of {_x} is {_y}.", f"What is the opposite of {_x}?", f"Tell me the opposite of {_x}.")
for _names_of, _unit in ((DAYS, "day"), (tuple(MONTHS), "month")):
    for _i, _name in enumerate(_names_of):
        _next, _last = _names_of[(_i + 1) % len(_names_of)], _names_of[_i - 1]
        _truth(f"{_next} comes after {_name}.", f"Which {_unit} comes after {_name}?", f"What {_unit} follows {_name}?")
        _truth(f"{_last} comes before {_name}.", f"Which {_unit} comes before {_name}?")
for _i, _letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXY"):
    _truth(f"{chr(ord(_letter) + 1)} comes after {_letter}.", f"Which letter comes after {_letter}?")
_truth("A week has 7 days.", "How many days does a week have?", "How many days are in a week?")
_truth("A year has 12 months.", "How many months does a year have?", "How many months are in a year?")
_truth("A triangle has 3 sides.", "How many sides does a triangle have?", "How many corners does a triangle have?")
_truth("A square has 4 sides.", "How many sides does a square have?")
_truth("A day has 24 hours.", "How many hours does a day have?", "How many hours are in a day?")
