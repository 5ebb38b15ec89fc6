"""The forward pass of training: the decoder's own, on packed rows, with everything kept that the way back needs."""

from wgemma.gpu.device import Buffer, Device
from wgemma.model.decoder import Decoder, Pass, Stream
from wgemma.model.text import TextWeights
from wgemma.train.dropout import DirectManyRows, ManyRows
from wgemma.train.ledger import Ledger
from wgemma.train.rooms import Rooms


class KeptStream(Stream):
    """The residual stream of one layer; each of its sums goes to a room of its own."""

    def __init__(self, h: Buffer, pending: Buffer, scale: float, rooms: list[Buffer]) -> None:
        super().__init__(h, rooms[0], pending, scale)
        self._rooms = [*rooms[1:], h]

    def advance(self) -> None:
        self.h, self.spare, self.scale = self.spare, self._rooms.pop(0), 1.0


class TrainingDecoder(Decoder):
    """Records the forward pass layer by layer. `inputs` are the layers' inputs, which survive it."""

    keeps = True

    def __init__(
        self, device: Device, weights: TextWeights, rooms: Rooms, inputs: list[Buffer], ledger: Ledger
    ) -> None:
        self.device = device
        self.weights = weights
        self.config = weights.config
        self.scratch = self.rooms = rooms
        self.inputs = inputs
        self.products = (DirectManyRows if device.compact else ManyRows)(device, self.config.eps)
        self.matmuls = self.products
        self.raw_table, self.raw_rows = None, None
        if weights.inputs is not None and weights.inputs.table is None:
            self._make_room_for_fetched_rows(rooms.rows, ledger.buffer)

    def forward(self, p: Pass) -> None:
        """From the rows' tokens to the input of the head, in the room "head x"."""
        rooms, h = self.rooms, self.rooms["h"]
        self.embed(p.tape, p.rows, p.row_buffer, self.weights.embedding, h, self.config.width**0.5)
        stream: Stream = KeptStream(h, rooms["zeros"], 1.0, [rooms["final h"]])
        if self.config.ple_dim:
            self._per_layer_inputs(p, stream)
        for index in range(len(self.weights.layers)):
            stream = self._run(p, index, stream.h, stream.pending, stream.scale, self.inputs[index])
        last = KeptStream(stream.h, stream.pending, stream.scale, [rooms["final h"]])
        self.settle(p, last)

    def again(self, p: Pass, index: int) -> None:
        """One layer once more, from its input."""
        self._run(p, index, self.inputs[index], self.rooms["zeros"], 1.0, self.rooms["h0"])

    def _run(self, p: Pass, index: int, h: Buffer, pending: Buffer, scale: float, start: Buffer) -> KeptStream:
        """A layer's pass; its input, summed up, goes to `start`."""
        self.rooms.layer = index
        sums = [start, self.rooms["h1"]]
        if self.weights.layers[index].per_layer:
            sums.append(self.rooms["h2"])
        stream = KeptStream(h, pending, scale, sums)
        self.layer(p, index, stream)
        return stream
