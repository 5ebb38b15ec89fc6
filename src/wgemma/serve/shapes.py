"""Which API's JSON an error has, where the address alone tells."""

from collections.abc import Mapping

from wgemma.serve import openai
from wgemma.serve.exchange import Shape


def shape_for(path: str, headers: Mapping[str, str]) -> Shape:
    return openai.error
