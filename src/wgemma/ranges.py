"""The least and the most that each setting of sampling may be, whoever gives it: a call, a request, a stored model."""

MAX_ALTERNATIVES = 31  # tokens whose log-probabilities are told beside the sampled one's

NUMBERS: dict[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repeat_penalty": (1e-3, 1e3),
    "presence_penalty": (-1e3, 1e3),
    "frequency_penalty": (-1e3, 1e3),
}
WHOLE: dict[str, tuple[int, int]] = {
    "top_k": (0, 1 << 31),
    "repeat_last_n": (-1, 1 << 31),
    "seed": (-(1 << 63), (1 << 64) - 1),
    "logprobs": (0, MAX_ALTERNATIVES),
}
