"""The attacks that other servers and readers of models fell for, and our tests for each. A list that cannot rot."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PLAIN, STORE, GUARD, GGUF = ("serve/test_attacks", "serve/test_store_attacks", "serve/test_guard", "files/test_gguf")
READER = [
    f"{STORE}::test_claims_of_a_header_are_checked_against_the_file",
    f"{GGUF}::test_a_hostile_file_is_refused_with_the_place_and_the_reason",
    f"{GGUF}::test_a_huge_claim_costs_no_memory",
]
TEMPLATE = [f"{PLAIN}::test_text_is_never_markup_or_a_template", f"{STORE}::test_templates_are_not_kept"]
ROWS = {
    "CVE-2026-103663, CVE-2024-37032 Probllama: a digest as a path": [
        f"{STORE}::test_a_digest_of_a_registry_is_never_a_path",
        f"{STORE}::test_bytes_are_hashed_before_they_get_their_name",
        "serve/test_store_changes::test_a_digest_is_never_a_path",
    ],
    "CVE-2024-28224: DNS rebinding": [
        f"{GUARD}::test_only_our_own_names_are_answered",
        f"{STORE}::test_no_page_changes_anything",
    ],
    "CVE-2026-5530: SSRF by a pull": [
        f"{STORE}::test_a_caller_does_not_choose_the_host",
        f"{STORE}::test_what_is_no_name_is_no_address",
        f"{STORE}::test_a_registry_does_not_lead_into_the_network",
    ],
    "Ollama 0.1.33: a pull deletes any file": [
        f"{STORE}::test_only_our_own_store_is_deleted_from",
        f"{STORE}::test_a_manifest_in_our_store_names_no_file_outside_it",
    ],
    "CVE-2025-66960: a length in the metadata": READER,
    "CVE-2024-39719, CVE-2024-39722: which files exist": [
        f"{STORE}::test_no_answer_tells_which_files_exist",
        f"{PLAIN}::test_names_do_not_tell_which_files_exist",
    ],
    "CVE-2024-39720: a file of four bytes": [f"{STORE}::test_a_file_of_a_few_bytes_is_refused"],
    "CVE-2024-39721: /dev/random as a model": [f"{STORE}::test_a_device_or_a_pipe_is_no_file"],
    "CVE-2024-45436: a zip that leaves its folder": [f"{STORE}::test_an_archive_is_not_unpacked"],
    "CVE-2024-12055, CVE-2025-0312, -0315, -0317, -1975, CVE-2024-12886: crafted files": READER,
    "CVE-2025-51471: a token for another host": [
        f"{STORE}::test_no_token_goes_where_a_registry_points",
        "files/test_pull::test_a_token_stays_with_its_host",
    ],
    "CVE-2025-63389: no authentication": [
        f"{STORE}::test_who_has_no_key_changes_nothing",
        f"{GUARD}::test_a_key_is_needed_everywhere",
        "cli/test_serve::test_off_loopback_it_needs_a_key",
    ],
    "CVE-2026-7482 Bleeding Llama: tensors beyond the file": [*READER, f"{STORE}::test_nothing_is_pushed_or_updated"],
    "CVE-2026-42248, -42249: an updater": [f"{STORE}::test_nothing_is_pushed_or_updated"],
    "CVE-2024-23496, -21802, -21825, -21836, -23605, CVE-2025-49847, -52566: counts and lengths": READER,
    "CVE-2025-53630, CVE-2026-27940, CVE-2026-33298, a padded projector (b8132): sums that overflow": READER,
    "oss-sec 2026-05-15: alignment, dimensions, empty keys": [
        *READER,
        f"{GGUF}::test_every_power_of_two_up_to_4096_aligns",
    ],
    "CVE-2026-43629: saved states": ["engine/test_saved::test_pieces_of_another_size_are_refused_before_they_are_read"],
    "CVE-2026-21869: a negative count": [f"{PLAIN}::test_no_number_is_too_negative_or_too_large"],
    "CVE-2024-34359 Llama Drama, CVE-2026-5760, template poisoning": TEMPLATE,
    "CVE-2026-24779, CVE-2025-6242: SSRF by media": [f"{PLAIN}::test_nothing_is_fetched"],
    "CVE-2026-22778: a library's words": [f"{PLAIN}::test_a_decoder_keeps_its_words_to_itself"],
    "CVE-2026-22773, CVE-2026-5497: small media that become large": [
        f"{PLAIN}::test_a_small_file_cannot_claim_a_huge_picture",
        f"{PLAIN}::test_too_many_pictures_are_refused_before_any_is_looked_at",
        f"{PLAIN}::test_a_long_recording_is_refused_by_its_header",
    ],
    "CVE-2025-32444, -47277, -62164: pickles": ["test_attack_rows::test_nothing_is_unpickled"],
    "CSRF: a page posts to a server on this machine": [
        f"{GUARD}::test_what_a_page_sends_must_be_json",
        f"{GUARD}::test_only_pages_that_are_listed_may_ask",
        f"{STORE}::test_no_page_changes_anything",
    ],
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_its_tests(row: str) -> None:
    for place in ROWS[row]:
        file, _, name = place.partition("::")
        assert re.search(rf"^def {name}\(", (TESTS / f"{file}.py").read_text("utf-8"), re.MULTILINE), place


def test_nothing_is_unpickled() -> None:
    for path in (TESTS.parent / "src").rglob("*.py"):
        text = path.read_text("utf-8")
        assert not re.search(r"^\s*(import|from) (pickle|marshal|shelve|dill|torch)\b", text, re.MULTILINE), path
        assert "allow_pickle=True" not in text, path
