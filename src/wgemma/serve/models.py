"""The models in memory: loaded when first asked for, kept while they are used and for a while after, unloaded when
others need the room. Requests wait meanwhile.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from wgemma.api import Model
from wgemma.engine.options import Options
from wgemma.errors import DeviceError, OutOfMemory
from wgemma.files.locate import ModelFiles
from wgemma.loading import Loading, open_files
from wgemma.serve.catalogue import Catalogue, Wanted
from wgemma.serve.problems import Problem, log, problem_of
from wgemma.serve.settings import Settings
from wgemma.sync import run

Load: TypeAlias = Callable[[ModelFiles, Settings, int | None], Model]


def load_files(files: ModelFiles, settings: Settings, context: int | None) -> Model:
    """Loads a model; blocks until it is there."""
    options = Options(
        context=context, kv=settings.kv, precision=settings.precision, memory=settings.memory, slots=settings.slots
    )
    return run(open_files(files, Loading(options, settings.device)))


class Resident:
    """A model on its way into memory, in it, or on its way out."""

    def __init__(self, files: ModelFiles) -> None:
        self.files = files
        self.name = files.name
        self.model: Model | None = None
        self.failure: BaseException | None = None
        self.ready = asyncio.Event()  # loaded, or failed
        self.free = asyncio.Event()  # nobody uses it
        self.free.set()
        self.gone = asyncio.Event()
        self.leaving = False  # whoever asks now waits until it is gone
        self.users = 0
        self.used = time.monotonic()
        self.keep_alive = 0.0
        self.load_seconds = 0.0
        self.expires = math.inf  # in the time of time.time()
        self.timer: asyncio.TimerHandle | None = None
        self.adapting = asyncio.Lock()
        self.own: dict[str, float] = {}  # the adapters it came with

    @property
    def memory(self) -> int:
        """Bytes of GPU memory it takes right now."""
        try:
            return self.model.backend.runner.engine.device.allocated if self.model else 0
        except DeviceError:
            return 0


@dataclass(frozen=True, slots=True)
class Lent:
    """A model for one request: which adapters it uses, and how long the request waited for it to be loaded."""

    name: str
    model: Model
    adapter: dict[str, float] | None
    load_seconds: float


class Models:
    """All of them, and who uses which."""

    def __init__(self, settings: Settings, load: Load = load_files) -> None:
        self.settings = settings
        self.catalogue = Catalogue(settings)
        self._load_model = load
        self._residents: dict[str, Resident] = {}
        self._loading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def resident(self) -> list[Resident]:
        """Those that can be used at once, the last used first."""
        there = [one for one in self._residents.values() if one.model is not None and not one.leaving]
        return sorted(there, key=lambda one: -one.used)

    @asynccontextmanager
    async def borrow(
        self, wanted: Wanted, keep_alive: float | None = None, context: int | None = None
    ) -> AsyncIterator[Lent]:
        """A model, which stays loaded inside the block and for `keep_alive` seconds after it. Who has borrowed one must
        not borrow it again: a model that is to be unloaded waits for the first, and the second for a new one."""
        begun = time.perf_counter()
        one = await self._enter(wanted, context)
        try:
            assert one.model is not None
            adapter = await self._adapted(one, wanted.adapter)
            yield Lent(wanted.name, one.model, adapter, time.perf_counter() - begun)
        finally:
            self._leave(one, self.settings.keep_alive if keep_alive is None else keep_alive)

    def find(self, name: str) -> Wanted:
        """The model that a request names; raises `Problem` 404 if there is none. One that has been deleted since it was
        loaded is let go."""
        try:
            return self.catalogue.find(name)
        except Problem:
            self._dismiss_deleted(self.catalogue.full_name(name))
            raise

    def _dismiss_deleted(self, name: str) -> None:
        """Lets a model go if its files are gone."""
        if (one := self._residents.get(name)) is not None:
            try:
                self.catalogue.find(name)
            except Problem:
                self._dismiss(one)

    async def unload(self, name: str) -> None:
        """Lets a model go, now or when its requests are done; does not wait for them. It may have been deleted in the
        meantime. Raises `Problem` 404 if it is neither loaded nor on offer."""
        one = self._residents.get(self.catalogue.full_name(name))
        if one is None:
            self.catalogue.find(name)
        elif one.users:
            self._dismiss(one)
        else:
            await self._let_go(one)

    async def refresh(self, name: str) -> None:
        """Lets a model go if its name stands for other files now."""
        files = self.catalogue.find(name).files
        one = self._residents.get(files.name)
        if one is not None and not _same(one.files, files):
            await self.unload(name)

    async def close(self) -> None:
        """Unloads everything."""
        for one in list(self._residents.values()):
            await self._let_go(one)

    # -- in and out

    async def _enter(self, wanted: Wanted, context: int | None) -> Resident:
        name, larger, widened = wanted.files.name, None, False
        while True:
            one = self._residents.get(name)
            if one is not None and (one.leaving or not _same(one.files, wanted.files)):
                await self._let_go(one)
                wanted = self.catalogue.find(wanted.name)  # that may have taken a while
                continue
            if one is None:
                one = self._residents[name] = Resident(wanted.files)
                self._begin(self._load(one, larger))
                widened = larger is not None
            self._use(one)
            try:
                await one.ready.wait()
            except BaseException:
                self._leave(one, self.settings.keep_alive)
                raise
            if one.failure is not None:
                self._leave(one, 0)
                raise problem_of(one.failure) from None
            assert one.model is not None
            larger = min(context or 0, one.model._config.context_length)
            if larger <= one.model.backend.context or widened:  # more than there was room for is not to be had
                return one
            self._leave(one, self.settings.keep_alive)  # it is loaded again, with more room
            await self._let_go(one)
            wanted = self.catalogue.find(wanted.name)

    def _use(self, one: Resident) -> None:
        one.users += 1
        one.free.clear()
        one.expires = math.inf
        if one.timer:
            one.timer.cancel()
            one.timer = None

    def _leave(self, one: Resident, keep_alive: float) -> None:
        one.users -= 1
        one.used, one.keep_alive = time.monotonic(), keep_alive
        if one.users:
            return
        one.free.set()
        if one.leaving or one.failure is not None:
            return
        one.expires = time.time() + keep_alive
        if keep_alive <= 0:
            self._dismiss(one)
        elif keep_alive < 1e8:
            one.timer = asyncio.get_running_loop().call_later(keep_alive, self._expire, one)

    def _expire(self, one: Resident) -> None:
        if not one.users:
            self._dismiss(one)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- loading and unloading

    async def _load(self, one: Resident, context: int | None) -> None:
        """Loads a model, after making room for it."""
        try:
            async with self._loading:
                while len(self.resident()) >= self.settings.loaded and await self._evict():
                    pass
                begun = time.perf_counter()
                while True:
                    try:
                        one.model = await asyncio.to_thread(
                            self._load_model, one.files, self.settings, context or self.settings.context
                        )
                        break
                    except OutOfMemory:
                        if not await self._evict():
                            raise
                one.load_seconds = time.perf_counter() - begun
                one.own = dict(one.model.adapters)
                log.info("loaded %s in %.1f s", one.name, one.load_seconds)
        except BaseException as error:
            one.failure = error
            self._forget(one)
        finally:
            one.ready.set()

    async def _evict(self) -> bool:
        """Lets the model go that was not used for longest, when its requests are done; False if there is none."""
        idle_first = sorted(self.resident(), key=lambda one: (one.users > 0, one.used))
        if not idle_first:
            return False
        await self._let_go(idle_first[0])
        return True

    async def _let_go(self, one: Resident) -> None:
        """Unloads a model, and waits until it is gone."""
        self._dismiss(one)
        await one.gone.wait()

    def _dismiss(self, one: Resident) -> None:
        """Unloads a model when its requests are done. From now on nobody new gets it."""
        if not one.leaving:
            one.leaving = True
            self._begin(self._close(one))  # by itself, whoever is cancelled

    async def _close(self, one: Resident) -> None:
        try:
            await one.ready.wait()
            await one.free.wait()
            if one.timer:
                one.timer.cancel()
            if one.model is not None:
                await asyncio.to_thread(one.model.close)
                log.info("unloaded %s", one.name)
        finally:
            self._forget(one)

    def _forget(self, one: Resident) -> None:
        if self._residents.get(one.name) is one:
            del self._residents[one.name]
        one.gone.set()

    # -- adapters

    async def _adapted(self, one: Resident, adapter: str | None) -> dict[str, float] | None:
        """The scales for a request: the model's own adapters, and the one it names."""
        assert one.model is not None
        if adapter is None:
            return one.own or None
        async with one.adapting:
            if adapter not in one.model.adapters:
                await asyncio.to_thread(one.model.load_adapter, self.catalogue.adapters[adapter], adapter)
        return {**one.own, adapter: 1.0}


def _same(files: ModelFiles, others: ModelFiles) -> bool:
    """Whether these are one model: a stored one's manifest names all that it is."""
    if files.stored is None or others.stored is None:
        return files.stored is others.stored
    return files.stored.digest == others.stored.digest
