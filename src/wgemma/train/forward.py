"""Training's forward pass: the decoder's own, on packed rows, keeping everything the backward pass needs."""

from wgemma.gpu.device import Buffer
from wgemma.gpu.ledger import Ledger
from wgemma.model.decoder import Decoder
from wgemma.model.passes import Pass, Stream
from wgemma.model.text import TextWeights
from wgemma.train.activations import KeptActivations
from wgemma.train.dropout import DirectManyRows, ManyRows


class KeptStream(Stream):
    """The residual stream of one layer; each sum goes to its own buffer."""

    def __init__(self, h: Buffer, pending: Buffer, scale: float, sums: list[Buffer]) -> None:
        super().__init__(h, sums[0], pending, scale)
        self._sums = [*sums[1:], h]

    def advance(self) -> None:
        self.h, self.spare, self.scale = self.spare, self._sums.pop(0), 1.0


class TrainingDecoder(Decoder):
    """Records the forward pass layer by layer. `inputs` are the layers' inputs, which are kept."""

    keeps = True

    def __init__(self, ledger: Ledger, weights: TextWeights, kept: KeptActivations, inputs: list[Buffer]) -> None:
        self.products = (DirectManyRows if ledger.device.compact else ManyRows)(ledger.device, weights.config.eps)
        super().__init__(ledger, weights, self.products, kept)
        self.kept = kept
        self.inputs = inputs

    def forward(self, p: Pass) -> None:
        """From the rows' tokens to the input of the head, in "head x"."""
        kept, h = self.kept, self.kept["h"]
        self.embed(p.tape, p.rows, p.row_buffer, self.weights.embedding, h, self.config.width**0.5)
        stream: Stream = KeptStream(h, kept["zeros"], 1.0, [kept["final h"]])
        if self.config.ple_dim:
            self._per_layer_inputs(p, stream)
        for index in range(len(self.weights.layers)):
            stream = self._run(p, index, stream.h, stream.pending, stream.scale, self.inputs[index])
        last = KeptStream(stream.h, stream.pending, stream.scale, [kept["final h"]])
        self.settle(p, last)

    def again(self, p: Pass, index: int) -> None:
        """Recomputes one layer from its input."""
        self._run(p, index, self.inputs[index], self.kept["zeros"], 1.0, self.kept["h0"])

    def _run(self, p: Pass, index: int, h: Buffer, pending: Buffer, scale: float, start: Buffer) -> KeptStream:
        """Runs a layer; its summed-up input goes to `start`."""
        self.kept.layer = index
        sums = [start, self.kept["h1"]]
        if self.weights.layers[index].per_layer:
            sums.append(self.kept["h2"])
        stream = KeptStream(h, pending, scale, sums)
        self.layer(p, index, stream)
        return stream
