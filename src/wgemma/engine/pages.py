"""Pages of one kind: which are free, and the reference counts of the others. Knows no GPU."""


class Pages:
    """Numbers of pages, from 0 on; `most` bounds how many there may ever be."""

    def __init__(self, count: int, most: int) -> None:
        self.count = 0
        self.most = max(count, most)
        self._free: list[int] = []
        self._holders: list[int] = []
        self.grow(count)

    def grow(self, count: int) -> None:
        """Adds pages until there are `count`."""
        self._free += range(count - 1, self.count - 1, -1)  # the lowest number is taken first
        self._holders += [0] * (count - self.count)
        self.count = max(count, self.count)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def held(self) -> int:
        return self.count - len(self._free)

    def take(self) -> int | None:
        """A free page, held once; None if there is none."""
        if not self._free:
            return None
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> int:
        """One more holder of a page that somebody holds."""
        assert self._holders[page] > 0, "a free page cannot be shared"
        self._holders[page] += 1
        return page

    def release(self, page: int) -> None:
        """One holder less; without any the page is free."""
        assert self._holders[page] > 0, "a page was released twice"
        self._holders[page] -= 1
        if self._holders[page] == 0:
            self._free.append(page)

    def holders(self, page: int) -> int:
        return self._holders[page]
