"""A tag finds the right file of a repository, all its parts, and the projector beside it."""

import pytest

from registry_server import digest
from wgemma.errors import StoreError
from wgemma.files.choosing import HubFile, choose
from wgemma.files.labels import label_of
from wgemma.files.names import Name


def name(tag: str = "latest") -> Name:
    return Name.parse(f"hf.co/acme/gemma-4-E2B-it-GGUF:{tag}")


def chosen(there: list[HubFile], tag: str = "latest") -> tuple[str, str | None]:
    """The model's first file, and its projector."""
    choice = choose(there, name(tag))
    return choice.model[0].path, choice.projector.path if choice.projector else None


def files(*paths: str) -> list[HubFile]:
    return [HubFile(path, digest(path.encode()), len(path)) for path in paths]


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("gemma-4-E2B-it-Q4_K_M.gguf", "Q4_K_M"),
        ("gemma-4-E2B-it-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("gemma.q8_0.gguf", "Q8_0"),
        ("gemma_BF16.gguf", "BF16"),
        ("gemma-IQ4_XS.gguf", "IQ4_XS"),
        ("gemma-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("BF16/gemma-4-31B-it-BF16.gguf", "BF16"),
        ("Q6_K/model.gguf", "Q6_K"),
        ("gemma-4-E2B_q4_0-it.gguf", "Q4_0"),
        ("gemma-4-12b-it-qat-q4_0.gguf", "Q4_0"),
        ("gemma-4-E2B-it-qat-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("gemma-4-E2B-it.i1-IQ3_XXS.gguf", "IQ3_XXS"),
        ("gemma-Q4_K_M_imat.v2.gguf", "Q4_K_M"),
        ("gemma-f16-Q6_K_L-00001-of-00002.gguf", "Q6_K_L"),
        ("gemma-4-E2B-it.gguf", ""),
    ],
)
def test_the_quantisation_is_in_the_name(path: str, label: str) -> None:
    assert label_of(path) == label


SEVERAL = files(
    *("g-Q8_0.gguf", "g-Q4_K_M.gguf", "g-UD-Q4_K_XL.gguf", "g-UD-Q2_K_XL.gguf", "imatrix.gguf", "mmproj-BF16.gguf"),
    *("mmproj-F16.gguf", "mmproj-F32.gguf", "BF16/g-BF16-00001-of-00002.gguf", "BF16/g-BF16-00002-of-00002.gguf"),
)


@pytest.mark.parametrize(
    ("tag", "chosen"),
    [
        ("latest", "g-Q4_K_M.gguf"),
        ("Q8_0", "g-Q8_0.gguf"),
        ("q8_0", "g-Q8_0.gguf"),
        ("UD-Q4_K_XL", "g-UD-Q4_K_XL.gguf"),
        ("Q2_K_XL", "g-UD-Q2_K_XL.gguf"),
        ("g-Q8_0.gguf", "g-Q8_0.gguf"),
        ("g-Q8_0", "g-Q8_0.gguf"),
    ],
)
def test_a_tag_names_a_file(tag: str, chosen: str) -> None:
    choice = choose(SEVERAL, name(tag))
    assert [file.path for file in choice.model] == [chosen]
    assert choice.projector is not None and choice.projector.path == "mmproj-F16.gguf"
    assert choice.title == f"{chosen} and mmproj-F16.gguf"


def test_all_parts_belong_to_a_file() -> None:
    choice = choose(list(reversed(SEVERAL)), name("BF16"))
    assert [file.path for file in choice.model] == [f"BF16/g-BF16-0000{i}-of-00002.gguf" for i in (1, 2)]
    assert choice.title == "BF16/g-BF16.gguf in 2 parts and mmproj-F16.gguf"
    with pytest.raises(StoreError, match=r"BF16/g-BF16.gguf has 1 of 2 parts"):
        choose(SEVERAL[:-1], name("BF16"))


def test_a_repository_of_one_file_needs_no_tag() -> None:
    assert choose(files("some model.gguf"), name()).model[0].path == "some model.gguf"
    assert choose(files("a-IQ1_S.gguf", "b-IQ1_M.gguf"), name()).model[0].path == "a-IQ1_S.gguf"


def test_without_a_tag_a_poor_file_is_taken_before_a_huge_one_or_one_that_cannot_be_run() -> None:
    there = files("g-BF16.gguf", "g-IQ1_M.gguf", "g-Q2_K.gguf", "g-Q3_K_M.gguf")
    assert choose(there, name()).model[0].path == "g-Q3_K_M.gguf"


def test_an_unknown_tag_says_what_there_is() -> None:
    with pytest.raises(StoreError, match=r"has no Q3_K_M\. It has BF16, Q4_K_M, Q8_0, UD-Q2_K_XL, UD-Q4_K_XL."):
        choose(SEVERAL, name("Q3_K_M"))
    with pytest.raises(StoreError, match="there is no GGUF file"):
        choose(files("mmproj-F16.gguf"), name())


# -- as real uploaders name their files

GOOGLE = files("gemma-4-E2B_q4_0-it.gguf", "gemma-4-E2B-it-mmproj.gguf")
UNSLOTH = files(
    *("gemma-4-12B-it-qat-UD-Q4_K_XL.gguf", "gemma-4-12B-it-qat-UD-Q2_K_XL.gguf", "mtp-gemma-4-12B-it.gguf"),
    *("MTP/mtp-gemma-4-12B-it-Q4_0.gguf", "MTP/mtp-gemma-4-12B-it-Q8_0.gguf", "MTP/mtp-gemma-4-12B-it-BF16.gguf"),
    *("mmproj-BF16.gguf", "mmproj-F16.gguf", "imatrix_unsloth.gguf"),
)
BARTOWSKI = files(
    *("google_gemma-4-E4B-it-Q4_K_M.gguf", "google_gemma-4-E4B-it-IQ4_XS.gguf", "google_gemma-4-E4B-it-imatrix.gguf"),
    *("mmproj-google_gemma-4-E4B-it-f16.gguf", "mmproj-google_gemma-4-E4B-it-bf16.gguf"),
)
GGML = files("gemma-4-E2B-it-Q8_0.gguf", "gemma-4-e2b-it-f16.gguf", "mmproj-gemma-4-E2B-it-Q8_0.gguf")


@pytest.mark.parametrize("tag", ["latest", "Q4_0", "q4_0", "gemma-4-E2B_q4_0-it", "gemma-4-E2B_q4_0-it.gguf"])
def test_google_writes_the_quantisation_in_the_middle(tag: str) -> None:
    assert chosen(GOOGLE, tag) == ("gemma-4-E2B_q4_0-it.gguf", "gemma-4-E2B-it-mmproj.gguf")


@pytest.mark.parametrize("tag", ["latest", "Q4_K_XL", "UD-Q4_K_XL"])
def test_unsloth_keeps_drafters_beside_the_model(tag: str) -> None:
    assert chosen(UNSLOTH, tag) == ("gemma-4-12B-it-qat-UD-Q4_K_XL.gguf", "mmproj-F16.gguf")


@pytest.mark.parametrize("tag", ["Q4_0", "Q8_0", "BF16"])
def test_a_drafter_is_not_what_a_quantisation_names(tag: str) -> None:
    with pytest.raises(StoreError, match=rf"has no {tag}\. It has UD-Q2_K_XL, UD-Q4_K_XL\."):
        choose(UNSLOTH, name(tag))


@pytest.mark.parametrize("drafter", ["g-MTP-Q4_K_M.gguf", "g-assistant-Q4_K_M.gguf", "dflash-g-Q4_K_M.gguf"])
def test_drafters_have_many_names(drafter: str) -> None:
    assert chosen(files(drafter, "g-it-Q4_K_M.gguf"))[0] == "g-it-Q4_K_M.gguf"
    assert chosen(files(drafter))[0] == drafter  # a model may be called so


def test_an_adapter_beside_the_model_is_not_the_model() -> None:
    assert chosen(files("g-Q4_K_M-lora.gguf", "g-Q4_K_M.gguf", "adapter/g-Q4_K_M.gguf"))[0] == "g-Q4_K_M.gguf"


def test_a_file_is_never_taken_for_another_of_its_name() -> None:
    there = files("E2B/g-Q4_K_M.gguf", "E4B/g-Q4_K_M.gguf", "E4B/G-q4_k_m.gguf")
    with pytest.raises(StoreError, match=r"several files called g-Q4_K_M.gguf: E2B/g-Q4_K_M.gguf, E4B/g-Q4_K_M.gguf\."):
        choose(there, name("g-Q4_K_M"))
    assert chosen(there, "G-q4_k_m.gguf")[0] == "E4B/G-q4_k_m.gguf"
    assert choose(there, name("Q4_K_M")).title == "E2B/g-Q4_K_M.gguf"  # which is told


def test_bartowski_names_projectors_like_the_model() -> None:
    projector = "mmproj-google_gemma-4-E4B-it-f16.gguf"
    assert chosen(BARTOWSKI) == ("google_gemma-4-E4B-it-Q4_K_M.gguf", projector)
    assert chosen(BARTOWSKI, "IQ4_XS") == ("google_gemma-4-E4B-it-IQ4_XS.gguf", projector)


def test_ggml_has_a_projector_in_eight_bits_only() -> None:
    assert chosen(GGML) == ("gemma-4-E2B-it-Q8_0.gguf", "mmproj-gemma-4-E2B-it-Q8_0.gguf")
    assert chosen(GGML, "F16")[0] == "gemma-4-e2b-it-f16.gguf"


def test_projectors_may_have_a_folder_of_their_own() -> None:
    assert chosen(files("q/g-Q8_0.gguf", "mmproj/mmproj-F16.gguf"))[1] == "mmproj/mmproj-F16.gguf"
    assert chosen(files("g-Q8_0.gguf", "mmproj/g-F16.gguf"), "Q8_0")[1] == "mmproj/g-F16.gguf"
    assert chosen(files("a/g-Q8_0.gguf", "b/mmproj-F16.gguf"))[1] is None


def test_a_repository_of_two_sizes_has_two_projectors() -> None:
    there = files(
        *("gemma-4-E2B-Q8_0.gguf", "mmproj-gemma-4-E2B-F16.gguf"),
        *("gemma-4-E4B-Q4_0.gguf", "mmproj-gemma-4-E4B-F16.gguf"),
    )
    assert chosen(there, "Q8_0") == ("gemma-4-E2B-Q8_0.gguf", "mmproj-gemma-4-E2B-F16.gguf")
    assert chosen(there, "Q4_0") == ("gemma-4-E4B-Q4_0.gguf", "mmproj-gemma-4-E4B-F16.gguf")


@pytest.mark.parametrize("number", [1, 2])
def test_any_part_may_be_named(number: int) -> None:
    tag = f"g-BF16-0000{number}-of-00002"
    for ending in ("", ".gguf"):
        assert [file.path for file in choose(SEVERAL, name(tag + ending)).model] == [
            f"BF16/g-BF16-0000{i}-of-00002.gguf" for i in (1, 2)
        ]
