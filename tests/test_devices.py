"""`device=` names an adapter by its number or by its name."""

import pytest

import wgemma
from wgemma.gpu.native import adapters
from wgemma.loading import open_device

pytestmark = pytest.mark.skipif(not adapters(), reason="there is no WebGPU adapter")


def test_every_adapter_opens_by_its_number() -> None:
    for i, adapter in enumerate(adapters()):
        for wanted in (i, str(i)):
            device = open_device(wanted)
            assert device.info.name == adapter.info["device"]
            device.close()


def test_digits_beyond_the_numbers_are_part_of_a_name() -> None:
    name = str(adapters()[0].info["device"])
    digits = next((word for word in name.split() if word.isdigit() and len(word) > 2), None)
    if digits is None:
        pytest.skip("the adapter's name has no number")
    device = open_device(digits)
    assert digits in device.info.name
    device.close()


# "15" is part of llvmpipe's name, too: that must not open it.
@pytest.mark.parametrize("wanted", [len(adapters()), -1, 1000, "15", "99"])
def test_a_number_that_no_adapter_has_is_told(wanted: int | str) -> None:
    with pytest.raises(wgemma.DeviceError, match=rf"no adapter {wanted}: this machine has \d.*wgemma doctor"):
        open_device(wanted)


def test_a_model_loads_on_a_number() -> None:
    with wgemma.load(device=0, context=64) as model:
        assert model.backend.name


@pytest.mark.parametrize("wrong", [True, 1.5, [0]])
def test_anything_else_is_refused(wrong: object) -> None:
    with pytest.raises(wgemma.SettingsError, match="number or name of a GPU adapter"):
        wgemma.load(device=wrong)  # type: ignore[arg-type]
