"""What the server has done, in Prometheus' text form, under the names that vLLM's dashboards know."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

PREFIX = "wgemma:"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_COUNTERS = {
    "prompt_tokens_total": "Tokens of prompts.",
    "generation_tokens_total": "Tokens generated.",
    "prefix_cache_queries_total": "Tokens of prompts that were looked up among those computed before.",
    "prefix_cache_hits_total": "Tokens of prompts that had been computed before.",
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": "From a request's arrival to the first piece of its answer.",
    "inter_token_latency_seconds": "Between two pieces of an answer.",
    "request_queue_time_seconds": "From a request's arrival until its prompt is read.",
    "e2e_request_latency_seconds": "From a request's arrival to the end of its answer.",
}


class Histogram:
    def __init__(self, edges: Sequence[float] = SECONDS) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterable[str]:
        below = 0
        for edge, count in zip((*self.edges, "+Inf"), self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{{labels},le="{edge}"}} {below}'
        yield f"{name}_count{{{labels}}} {below}"
        yield f"{name}_sum{{{labels}}} {self.total!r}"


class Meter:
    """Counts by model. Only names of models that exist get here, so there are few."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in _COUNTERS}
        self._times: dict[str, defaultdict[str, Histogram]] = {name: defaultdict(Histogram) for name in _HISTOGRAMS}
        self._done: Counter[tuple[str, str]] = Counter()

    def count(self, name: str, model: str, amount: int) -> None:
        self._counts[name][model] += amount

    def took(self, name: str, model: str, seconds: float) -> None:
        self._times[name][model].add(seconds)

    def ended(self, model: str, reason: str) -> None:
        """A request ended: stop, length, tool, cancelled or error."""
        self._done[model, reason] += 1

    def text(self, gauges: Iterable[tuple[str, str, str, float]]) -> str:
        """All of it, with `gauges` of (name, help, model, value)."""
        lines: list[str] = []
        told: set[str] = set()
        for name, words, model, value in sorted(gauges):
            if name not in told:
                told.add(name)
                lines += _head(name, words, "gauge")
            lines.append(f"{PREFIX}{name}{{{_label(model)}}} {value:g}")
        for name, words in _COUNTERS.items():
            lines += _head(name, words, "counter")
            lines += [f"{PREFIX}{name}{{{_label(model)}}} {n}" for model, n in sorted(self._counts[name].items())]
        lines += _head("request_success_total", "Requests, by how they ended.", "counter")
        for (model, reason), n in sorted(self._done.items()):
            lines.append(f'{PREFIX}request_success_total{{{_label(model)},finished_reason="{reason}"}} {n}')
        for name, words in _HISTOGRAMS.items():
            lines += _head(name, words, "histogram")
            for model, histogram in sorted(self._times[name].items()):
                lines += histogram.lines(PREFIX + name, _label(model))
        return "\n".join(lines) + "\n"


def _head(name: str, words: str, kind: str) -> list[str]:
    return [f"# HELP {PREFIX}{name} {words}", f"# TYPE {PREFIX}{name} {kind}"]


def _label(model: str) -> str:
    escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'model_name="{escaped}"'
