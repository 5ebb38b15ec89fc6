"""Which tokens have pages already, of whichever caller: a tree over pages, keyed by their tokens. Knows no GPU.

A node is one page of a sequence and holds its full layers' page. Sliding layers keep only a window of positions, so
their pages are held by marks: a mark at n lets a sequence resume at n, or as far before it as its pages reach. What
nobody has used for longest goes first.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from wgemma.engine.pages import Pages
from wgemma.engine.soft import common_start, outside
from wgemma.model.rows import PAGE, pages_of


class Node:
    """A page of tokens; only a leaf has fewer than PAGE. A root has none."""

    __slots__ = ("children", "marks", "page", "parent", "partial", "tokens", "used")

    def __init__(self, tokens: tuple[int, ...] = (), page: int = -1, parent: "Node | None" = None) -> None:
        self.tokens = tokens
        self.page = page
        self.parent = parent
        self.children: dict[tuple[int, ...], Node] = {}  # whole pages
        self.partial: list[Node] = []  # pages that are not full yet
        self.marks: set[Mark] = set()  # those that end here
        self.used = 0

    @property
    def is_leaf(self) -> bool:
        return not self.children and not self.partial


@dataclass(eq=False, slots=True)
class Mark:
    """The first `end` tokens of a path, with the sliding layers' pages by number, up to the last."""

    path: list[Node]
    end: int
    pages: dict[int, int]

    @property
    def lowest(self) -> int:
        return min(self.pages, default=0)


@dataclass(slots=True)
class Trail:
    """A sequence's way through the tree: the nodes of its whole pages, and that of its last one. Nodes stay as long as
    a sequence holds their pages."""

    root: Node
    path: list[Node] = field(default_factory=list)
    tip: Node | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The first `length` tokens are there: in whole pages, and in the first part of the page after them, which has to
    be copied. `sliding` are pages by number."""

    length: int = 0
    path: Sequence[Node] = ()
    copied: int | None = None
    sliding: Mapping[int, int] = field(default_factory=dict)


class Prefixes:
    """`window` is that of the sliding layers (0: there are none); marks hold at most `budget` of their pages."""

    def __init__(self, full: Pages, sliding: Pages, window: int, budget: int) -> None:
        self.full = full
        self.sliding = sliding
        self.window = window
        self.budget = budget
        self._roots: dict[Hashable, Node] = {}
        self._marks: OrderedDict[Mark, None] = OrderedDict()  # by their last use
        self._pinned: Counter[int] = Counter()  # sliding pages that marks hold
        self._time = 0

    # -- finding

    def trail(self, key: Hashable) -> Trail:
        """The beginning of every sequence with this key."""
        return Trail(self._roots.setdefault(key, Node()))

    def find(self, key: Hashable, ids: Sequence[int], most: int, images: Sequence[tuple[int, int]] = ()) -> Found:
        """The longest prefix of `ids` that a sequence can go on from, at most `most` tokens and never a part of one of
        the `images`."""
        images = [(start, end + 1) for start, end in images]  # what ends with an image may be the start of a longer one
        path, beside = self._walk(key, ids, most)
        length = len(path) * PAGE + (common_start(beside.tokens, ids[len(path) * PAGE : most]) if beside else 0)
        length = outside(length, images)
        if not self.window:
            whole, rest = divmod(length, PAGE)
            last = path[whole] if whole < len(path) else beside
            return self._touched(Found(length, path[:whole], last.page if rest and last else None), last)
        best, chosen = 0, None
        for mark in self._marks:
            if mark.path and mark.path[0].parent is self._roots.get(key):
                end = outside(min(mark.end, length, self._shared(mark, path, ids)), images)
                if end > best and (mark.lowest == 0 or (end - self.window) // PAGE >= mark.lowest):
                    best, chosen = end, mark
        if chosen is None:
            return Found()
        self._marks.move_to_end(chosen)
        whole, rest = divmod(best, PAGE)
        needed = range(max(best - self.window, 0) // PAGE, pages_of(best))
        last = chosen.path[whole] if rest else None
        found = Found(best, chosen.path[:whole], last.page if last else None, {i: chosen.pages[i] for i in needed})
        return self._touched(found, last)

    def _walk(self, key: Hashable, ids: Sequence[int], most: int) -> tuple[list[Node], Node | None]:
        """The nodes of whole pages, and the node that has most of the next."""
        node, path = self._roots.get(key), list[Node]()
        if node is None:
            return path, None
        while (len(path) + 1) * PAGE <= most:
            child = node.children.get(tuple(ids[len(path) * PAGE : (len(path) + 1) * PAGE]))
            if child is None:
                break
            path.append(child)
            node = child
        rest = ids[len(path) * PAGE : most]
        beside = [*node.children.values(), *node.partial] if rest else []
        return path, max(beside, key=lambda other: common_start(other.tokens, rest), default=None)

    @staticmethod
    def _shared(mark: Mark, path: Sequence[Node], ids: Sequence[int]) -> int:
        """How many tokens a mark's path shares with `ids`, whose whole pages are `path`."""
        low, high = 0, min(len(mark.path), len(path))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if mark.path[middle - 1] is path[middle - 1] else (low, middle - 1)
        rest = common_start(mark.path[low].tokens, ids[low * PAGE :]) if low < len(mark.path) else 0
        return low * PAGE + rest

    def _touched(self, found: Found, last: Node | None) -> Found:
        self._time += 1
        for node in (*found.path, *([last] if last else [])):
            node.used = self._time
        return found

    # -- remembering

    def record(self, trail: Trail, ids: Sequence[int], pages: list[int]) -> bool:
        """Makes the tokens `ids`, computed into `pages`, findable for others. Where others have computed the same page,
        theirs takes its place in `pages`; returns whether that happened."""
        self._time += 1
        replaced = False
        while (len(trail.path) + 1) * PAGE <= len(ids):
            number = len(trail.path)
            self._put_tip(trail, tuple(ids[number * PAGE : (number + 1) * PAGE]), pages[number])
            tip, parent = trail.tip, self._last(trail)
            assert tip is not None
            parent.partial.remove(tip)
            same = parent.children.get(tip.tokens)
            if same is None:
                parent.children[tip.tokens] = same = tip
            else:
                self._replace(tip, same)
                self.full.release(pages[number])
                pages[number], replaced = self.full.hold(same.page), True
            trail.path.append(same)
            trail.tip = None
        rest = tuple(ids[len(trail.path) * PAGE :])
        if rest:
            self._put_tip(trail, rest, pages[len(trail.path)])
        return replaced

    def _put_tip(self, trail: Trail, tokens: tuple[int, ...], page: int) -> None:
        if trail.tip is None:
            parent = self._last(trail)
            trail.tip = Node(tokens, self.full.hold(page), parent)
            parent.partial.append(trail.tip)
        trail.tip.tokens, trail.tip.used = tokens, self._time

    @staticmethod
    def _last(trail: Trail) -> Node:
        return trail.path[-1] if trail.path else trail.root

    def _replace(self, tip: Node, same: Node) -> None:
        """Another sequence's page has the same tokens: its node takes the marks of this one."""
        for mark in tip.marks:
            mark.path[-1] = same
        same.marks |= tip.marks
        self.full.release(tip.page)

    def mark(self, trail: Trail, end: int, pages: Mapping[int, int]) -> None:
        """Lets others resume at `end`, the number of tokens recorded last, from these sliding pages."""
        last = trail.tip or trail.path[-1]
        there = [mark for node in (last, *self._twins(last)) for mark in node.marks if mark.end == end]
        for mark in there:
            self._marks.move_to_end(mark)
        if there or not self.window or not end or len(pages) > self.budget:
            return
        made = Mark([*trail.path, *([trail.tip] if trail.tip else [])], end, dict(pages))
        for page in pages.values():
            self._pinned[self.sliding.hold(page)] += 1
        last.marks.add(made)
        self._marks[made] = None
        while len(self._pinned) > self.budget:
            self._drop(next(iter(self._marks)))

    @staticmethod
    def _twins(node: Node) -> list[Node]:
        """Pages beside a part of a page that begin with the same tokens."""
        if node.parent is None or len(node.tokens) == PAGE:
            return []
        beside = (*node.parent.children.values(), *node.parent.partial)
        return [twin for twin in beside if twin is not node and twin.tokens[: len(node.tokens)] == node.tokens]

    # -- forgetting

    def leave(self, trail: Trail) -> None:
        """The sequence of this trail has ended; what others have, too, goes."""
        tip = trail.tip
        twins = self._twins(tip) if tip else []
        if tip and not tip.marks and twins:
            twins[0].used = self._time
            self._remove(tip)
            trail.tip = None

    def drop_mark(self) -> bool:
        """Forgets the mark that was not used for longest; False if there is none."""
        for mark in self._marks:
            self._drop(mark)
            return True
        return False

    def _drop(self, mark: Mark) -> None:
        del self._marks[mark]
        mark.path[-1].marks.discard(mark)
        for page in mark.pages.values():
            self._pinned[page] -= 1
            if not self._pinned[page]:
                del self._pinned[page]
            self.sliding.release(page)

    @property
    def marks(self) -> int:
        return len(self._marks)

    @property
    def spare(self) -> int:
        """Full pages that nobody but the tree holds."""
        return sum(self.full.holders(node.page) == 1 for node in self._nodes())

    def evict(self, count: int) -> int:
        """Frees up to `count` full pages that nobody but the tree holds, those that were not used for longest first;
        returns how many."""
        waiting = [(node.used, id(node), node) for node in self._nodes() if node.is_leaf]
        heapify(waiting)
        freed = 0
        while waiting and freed < count:
            node = heappop(waiting)[2]
            if self.full.holders(node.page) > 1:
                continue
            self._remove(node)
            freed += 1
            parent = node.parent
            if parent is not None and parent.parent is not None and parent.is_leaf:
                heappush(waiting, (parent.used, id(parent), parent))
        return freed

    def _remove(self, node: Node) -> None:
        for mark in list(node.marks):
            self._drop(mark)
        assert node.parent is not None
        if node.parent.children.get(node.tokens) is node:
            del node.parent.children[node.tokens]
        else:
            node.parent.partial.remove(node)
        self.full.release(node.page)

    def _nodes(self) -> Iterable[Node]:
        waiting = [child for root in self._roots.values() for child in (*root.children.values(), *root.partial)]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += [*node.children.values(), *node.partial]

    def clear(self) -> None:
        """Forgets everything that no sequence is working on."""
        while self.drop_mark():
            pass
        self.evict(self.full.count)
