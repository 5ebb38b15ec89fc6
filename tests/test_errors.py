"""Errors are sentences that can be printed."""

import wgemma


def test_a_message_can_be_encoded_whatever_it_quotes() -> None:
    assert str(wgemma.Error("the key \ud800 is odd, the key é is not")) == r"the key \ud800 is odd, the key é is not"
