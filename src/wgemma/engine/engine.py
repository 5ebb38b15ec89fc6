"""One model on one device: its weights, a pass's scratch memory, its adapters, and the per-layer rows the host
fetches. A `Runner` runs it; after a device is lost, both are rebuilt."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from wgemma.engine.adapting import BARE, Adapters, Setting
from wgemma.engine.options import Options, context_of, most_rows
from wgemma.errors import OutOfMemory
from wgemma.files.gguf import Gguf
from wgemma.gpu.ledger import Ledger
from wgemma.model.adapters import Lows, load_adapters
from wgemma.model.config import Config
from wgemma.model.decoder import Decoder, matmuls_for
from wgemma.model.matmul import rounds_many
from wgemma.model.passes import PAD, SOFT
from wgemma.model.scratch import SharedActivations
from wgemma.model.text import TextWeights, load_text
from wgemma.model.weights import Uploader


class Engine:
    """A loaded text model. `ledger` owns all its GPU memory."""

    def __init__(self, ledger: Ledger, gguf: Gguf, config: Config, options: Options, weights: TextWeights) -> None:
        self.ledger = ledger
        self.device = ledger.device
        self.gguf = gguf
        self.config = config
        self.options = options
        self.weights = weights
        self.weight_bytes = ledger.nbytes
        self.context = context_of(config, options)
        self.most_rows = most_rows(config, options)
        self._build(options.chunk, options.chunk)
        self.sample = b""  # a few weights, to identify the model
        self.adapters = Adapters()
        self.lows: Lows | None = None  # the adapters on the GPU
        self.row_lows: Lows | None = None  # the same, with a setting for each row
        self.setting_rows = 0  # the most rows with settings of their own
        self.adapted = 0  # how often they changed; a recording with adapters is valid for one value
        self._lows_ledger = ledger.part()
        self._row_ledger = self._lows_ledger.part()
        self._weighed: Setting | None = None  # the scales currently on the GPU
        self._weighed_rows: dict[int, Setting] = {}  # those of rows; the others' are zeros

    @classmethod
    async def load(
        cls,
        whole: Ledger,
        gguf: Gguf,
        config: Config,
        options: Options,
        *,
        table_on_gpu: bool,
        progress: Callable[[int], None] = lambda nbytes: None,
    ) -> "Engine":
        """Loads the model, with its per-layer table on the GPU or not; on failure everything is freed."""
        ledger = whole.part()
        try:
            uploader = Uploader(ledger, gguf, progress)
            weights = await load_text(uploader, config, context_of(config, options), ple_on_gpu=table_on_gpu)
            engine = cls(ledger, gguf, config, options, weights)
            await ledger.device.confirm()
        except BaseException:
            ledger.free()
            raise
        if not ledger.plans:
            norm = gguf.tensor("output_norm.weight")
            engine.sample = bytes(await gguf.source.read(norm.offset, norm.nbytes))
        return engine

    # -- scratch memory

    def _build(self, rows: int, step: int, z: int = 0) -> None:
        """Builds the decoder for passes of up to `rows` rows."""
        part, precision = self.ledger.part(), self.options.precision
        rounds = precision == "fast" and rounds_many(self.device)
        try:
            self.scratch = SharedActivations(part, self.weights, rows, step, z=z, rounds=rounds)
            matmuls = matmuls_for(self.device, self.config.eps, precision, middle=self.options.middle)
            self.decoder = Decoder(part, self.weights, matmuls, self.scratch)
        except BaseException:
            part.free()
            raise

    async def make_room(self, rows: int) -> None:
        """Grows the scratch memory to `rows` rows. This invalidates earlier recordings, as `scratch.rows` shows."""
        before = self.scratch
        if rows <= before.rows:
            return
        before.ledger.free()
        try:
            self._build(rows, before.step // 2 * 2, before.z)
            await self.device.confirm()
        except OutOfMemory as error:
            if self.scratch is not before:
                self.scratch.ledger.free()
            self._build(before.rows, before.step, before.z)
            raise OutOfMemory(f"an image of up to {rows} tokens does not fit: {error} Lower its budget.") from None

    # -- per-layer rows

    @property
    def fetches_rows(self) -> bool:
        """Whether the host fetches each token's row of the per-layer table."""
        return self.weights.inputs is not None and self.weights.inputs.table is None

    async def fetch_rows(self, tokens: Sequence[int], decoder: Decoder | None = None) -> None:
        """Uploads the raw per-layer rows of these tokens, for this decoder or another; soft rows get PAD's."""
        target = (decoder or self.decoder).raw_rows
        assert target is not None
        self.device.write(target, 0, await self.gguf.source.rows(*self._rows_of(tokens)))

    def expect_rows(self, tokens: Sequence[int]) -> None:
        """Announces which tokens' rows will be fetched soon."""
        if self.fetches_rows:
            self.gguf.source.expect_rows(*self._rows_of(tokens))

    def _rows_of(self, tokens: Sequence[int]) -> tuple[list[int], int]:
        """The file offsets of the tokens' rows in the per-layer table, and the size of a row."""
        assert self.weights.inputs is not None
        tensor = self.weights.inputs.tensor
        size = tensor.format.row_nbytes(tensor.shape[0])
        return [tensor.offset + (PAD if token >= SOFT else token) * size for token in tokens], size

    # -- adapters

    async def adapt(self, adapters: Adapters) -> None:
        """Loads these adapters in place of the previous ones; on failure nothing changes."""
        ledger, lows, row_lows = self.ledger.part(), None, None
        row_ledger = ledger.part()
        if adapters:
            lows = await load_adapters(ledger, self.weights, adapters.files)
            try:
                if self.setting_rows:
                    row_lows = await self._by_row(row_ledger, lows, self.setting_rows)
                await self.scratch.widen(lows.columns)
            except BaseException:
                ledger.free()
                raise
        self._lows_ledger.free()
        self._lows_ledger, self._row_ledger = ledger, row_ledger
        self.lows, self.adapters, self._weighed = lows, adapters, None
        self.row_lows, self._weighed_rows = row_lows, {}
        self.adapted += 1

    async def make_settings(self, rows: int) -> None:
        """Lets up to `rows` rows of a pass have settings of their own. This invalidates earlier recordings with
        adapters, as `adapted` shows."""
        if rows <= self.setting_rows:
            return
        if self.lows is not None:
            ledger = self._lows_ledger.part()
            row_lows = await self._by_row(ledger, self.lows, rows)
            self._row_ledger.free()
            self._row_ledger, self.row_lows, self._weighed_rows = ledger, row_lows, {}
            self.adapted += 1
        self.setting_rows = rows

    async def _by_row(self, ledger: Ledger, lows: Lows, rows: int) -> Lows:
        """The adapters with a setting for each row; on failure the ledger is freed."""
        try:
            made = lows.by_row(ledger, rows)
            await self.device.confirm()
            return made
        except BaseException:
            ledger.free()
            raise

    def weigh(self, setting: Setting) -> None:
        """Sets the adapters' scales for the following replays of passes over one sequence."""
        if self.lows is not None and setting != self._weighed:
            self.lows.set_scales(self.device, setting.by_name())
            self._weighed = setting

    def weigh_rows(self, settings: Mapping[int, Setting]) -> None:
        """Sets each row's scales for the following replays of passes over several sequences; the adapters of unnamed
        rows are off."""
        if self.row_lows is None:
            return
        for row in self._weighed_rows.keys() | settings.keys():
            setting = settings.get(row, BARE)
            if setting != self._weighed_rows.get(row, BARE):
                self.row_lows.set_scales(self.device, setting.by_name(), row)
                self._weighed_rows[row] = setting

    def at_work(self, setting: Setting) -> Lows | None:
        """The adapters a pass with this setting records."""
        return self.lows if setting.scales else None

    def at_work_by_row(self, settings: Iterable[Setting]) -> Lows | None:
        """The adapters a pass over several sequences records: all, if any row uses one."""
        if not any(setting.scales for setting in settings):
            return None
        assert self.row_lows is not None  # `make_settings` comes first
        return self.row_lows

    def free(self) -> None:
        self.ledger.free()
