"""A JSON Schema document: its subschemas by place, and where its references lead.

Nothing is fetched: a reference must lead to somewhere inside the document. A document is walked once, with a loop, so
neither its depth nor its size can hurt.
"""

from math import isfinite
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from wgemma.errors import GrammarError

_MAX_VALUES, _MAX_DEPTH = 300_000, 200


_DATA = ("enum", "const", "default", "examples")  # what stands in there is no schema


class Place:
    """A schema and where it stands. Two places of the same schema are the same object."""

    __slots__ = ("base", "path", "schema")

    def __init__(self, schema: Any, path: str, base: str) -> None:
        self.schema = schema
        self.path = path
        self.base = base

    def error(self, keyword: str, complaint: str) -> GrammarError:
        return GrammarError(f"{self.path}/{keyword} {complaint}")


class Document:
    def __init__(self, root: Any) -> None:
        self._places: dict[int, Place] = {}
        self._kept: list[Any] = []  # schemas that are not in the document, so that their ids stay theirs
        self._resources: dict[str, tuple[Any, str]] = {"": (root, "#")}
        self._anchors: dict[str, tuple[Any, str, str]] = {}
        self._named: dict[str, tuple[Any, str, str]] = {}
        self._dynamic: dict[str, int] = {}
        self.old = False  # before 2019, what stands beside a $ref does not count
        if isinstance(root, dict) and isinstance(root.get("$schema"), str):
            self.old = any(f"draft-0{version}" in root["$schema"] for version in "34567")
        self._walk(root)
        self.root = self.place(root, "#", _base(root, ""))

    def place(self, schema: Any, path: str, base: str) -> Place:
        if isinstance(schema, bool):
            return TRUE if schema else Place(False, path, base)
        if not isinstance(schema, dict):
            raise GrammarError(f"{path} is not a schema; it must be an object, true or false.")
        found = self._places.get(id(schema))
        if found is None:
            found = self._places[id(schema)] = Place(schema, path, base)
        return found

    def inside(self, place: Place, *way: str) -> Place:
        """The subschema at the end of `way`, like ("properties", "name")."""
        schema, path, base = place.schema, place.path, place.base
        for step in way:
            schema = schema[int(step)] if isinstance(schema, list) else schema[step]
            path = f"{path}/{_escaped(step)}"
            base = _base(schema, base)
        return self.place(schema, path, base)

    def derived(self, schema: dict[str, Any] | bool, place: Place) -> Place:
        """A schema that follows from the one at `place`."""
        if isinstance(schema, dict) and id(schema) not in self._places:
            self._kept.append(schema)
        return self.place(schema, place.path, place.base)

    def target(self, place: Place, keyword: str = "$ref") -> Place:
        """Where the reference at `place` leads."""
        reference = place.schema[keyword]
        if not isinstance(reference, str):
            raise place.error(keyword, "is not a string.")
        uri, fragment = urldefrag(_join(place.base, reference))
        if uri in self._resources and (not fragment or fragment.startswith("/")):
            # Many schemas mean the whole document, although an $id in between says otherwise.
            found = self._follow(*self._resources[uri], uri, fragment) or self._follow(
                *self._resources[""], place.base, fragment
            )
            if found is None:
                raise place.error(keyword, f"leads to {reference[:100]!r}, which does not exist.")
            return found
        known = self._anchors.get(f"{uri}#{fragment}") or self._named.get(reference) or self._named.get(uri)
        if known is None:
            raise place.error(
                keyword, f"leads to {reference[:100]!r}, which is not in the schema; put what it means into $defs."
            )
        return self.place(*known)

    def dynamic_target(self, place: Place) -> Place:
        """Where the dynamic reference at `place` leads, if that does not depend on how one got there."""
        found = self.target(place, "$dynamicRef")
        name = str(place.schema["$dynamicRef"]).partition("#")[2]
        anchors = self._dynamic.get(name, 0)
        if anchors > 1 or (anchors and found.schema.get("$dynamicAnchor") != name):
            raise place.error("$dynamicRef", "has several targets, which cannot be enforced; write $ref instead.")
        return found

    def _follow(self, schema: Any, path: str, base: str, pointer: str) -> Place | None:
        """What a JSON pointer leads to from `schema` on."""
        for step in pointer.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            path = f"{path}/{_escaped(step)}"
            try:
                schema = schema[int(step)] if isinstance(schema, list) else schema[step]
            except (KeyError, IndexError, ValueError, TypeError):
                return None
            base = _base(schema, base)
        return self.place(schema, path, base)

    def _walk(self, root: Any) -> None:
        """Notes every $id and $anchor."""
        waiting: list[tuple[Any, str, str, str, int]] = [(root, "#", "", "", 0)]
        seen: set[int] = set()
        count = 0
        while waiting:
            value, path, base, key, depth = waiting.pop()
            if not isinstance(value, dict | list) or id(value) in seen:
                if not isinstance(value, dict | list | str | int | float | None):
                    raise GrammarError(f"{path} is a {type(value).__name__}, which JSON does not have.")
                if isinstance(value, float) and not isfinite(value):
                    raise GrammarError(f"{path} is not a finite number, and JSON has no others.")
                continue
            seen.add(id(value))
            count += len(value)
            if count > _MAX_VALUES:
                raise GrammarError(f"the schema is too large: more than {_MAX_VALUES} values.")
            if depth > _MAX_DEPTH:
                raise GrammarError(f"the schema nests deeper than {_MAX_DEPTH} levels, at {path[:60]}…; use $ref.")
            if isinstance(value, list):
                waiting += [(item, f"{path}/{i}", base, key, depth + 1) for i, item in enumerate(value)]
                continue
            if key not in ("properties", *_DATA):
                inner = _base(value, base)
                if inner != base:
                    base = inner
                    self._resources.setdefault(urldefrag(base)[0], (value, path))
                self._note(value, path, base)
            for name, item in value.items():
                inside = "" if key == "properties" else key if key in _DATA else name
                waiting.append((item, f"{path}/{_escaped(str(name))}", base, inside, depth + 1))

    def _note(self, schema: dict[str, Any], path: str, base: str) -> None:
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = schema.get(keyword)
            if isinstance(name, str):
                self._anchors.setdefault(f"{urldefrag(base)[0]}#{name}", (schema, path, base))
                if keyword == "$dynamicAnchor":
                    self._dynamic[name] = self._dynamic.get(name, 0) + 1
        for keyword in ("id", "$id"):
            if isinstance(schema.get(keyword), str):
                self._named.setdefault(schema[keyword], (schema, path, base))


TRUE = Place(True, "#", "")


def _base(schema: Any, base: str) -> str:
    name = schema.get("$id") if isinstance(schema, dict) else None
    return _join(base, name) if isinstance(name, str) and not name.startswith("#") else base


def _join(base: str, reference: str) -> str:
    try:
        if base.startswith("urn:") and reference.startswith("#"):
            return urldefrag(base)[0] + reference
        return urljoin(base, reference)
    except ValueError:
        return reference


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")
