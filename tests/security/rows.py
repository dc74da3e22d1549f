"""Which tests prove that an attack class is met: a row number of the table of classes to the node ids of its tests.

The cases of this folder bear their row themselves; the rest is written here.  ``python tests/security/rows.py``, with
``PYTHONPATH=agent:helper:tests``, prints the map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from security import (
    test_archives,
    test_framing,
    test_links,
    test_metadata,
    test_protocol,
    test_resources,
    test_targets,
)

COUNT: Final = 91

# Every table of cases: the module, the test that runs it, the table.
TABLES: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    ("test_archives", "test_refused", test_archives.REFUSED),
    ("test_archives", "test_kept", test_archives.KEPT),
    ("test_archives", "test_lies", test_archives.LIES),
    ("test_links", "test_refused", test_links.REFUSED),
    ("test_links", "test_kept", test_links.KEPT),
    ("test_links", "test_lies", test_links.LIES),
    ("test_metadata", "test_refused", test_metadata.REFUSED),
    ("test_metadata", "test_kept", test_metadata.KEPT),
    ("test_metadata", "test_lies", test_metadata.LIES),
    ("test_framing", "test_refused", test_framing.REFUSED),
    ("test_framing", "test_kept", test_framing.KEPT),
    ("test_resources", "test_refused", test_resources.REFUSED),
    ("test_resources", "test_kept", test_resources.KEPT),
    ("test_resources", "test_lies", test_resources.LIES),
    ("test_targets", "test_traps", test_targets.TRAPS),
    ("test_protocol", "test_lies", test_protocol.LIES),
    ("test_protocol", "test_frames", test_protocol.FRAMES),
)

# Row -> (folder and module, tests) beside the tables.  A test without brackets stands for all its cases.
OTHERS: Final[Mapping[int, Mapping[str, str]]] = {
    1: {"protocol/test_validate": "test_a_rule_broken_and_kept", "archive/test_import_refusals": "test_refused"},
    3: {"archive/test_import_rules": "test_root_in_names test_root_of_the_file_system"},
    5: {"archive/test_import_rules": "test_root_member_sets_the_root"},
    6: {"protocol/test_validate": "test_the_same_path_in_two_segments test_an_unsorted_segment"},
    8: {
        "e2e/test_round_trip": "test_a_path_longer_than_the_system_takes test_a_tree_of_a_thousand_levels",
        "e2e/test_specials": "test_no_tree_deeper_than_the_limit test_no_path_longer_than_the_limit",
    },
    9: {"e2e/test_round_trip": "test_names_of_any_bytes", "cli/test_json": "test_a_link_to_bytes_that_are_no_text"},
    10: {
        "security/test_archives": "test_CVE_2025_46394_no_command_passes_a_name_on_to_the_terminal",
        "cli/test_terminal": "test_no_name_reaches_a_terminal_raw test_no_name_in_an_error_reaches_a_terminal_raw",
        "capture/test_hostile": "test_words_of_the_helper_are_made_harmless",
        "capture/test_hostile_target": "test_what_a_target_says_reaches_a_terminal_harmlessly",
    },
    11: {
        "security/test_archives": "test_GNU_checkpoint_action_no_name_reaches_a_command_line",
        "cli/test_sandboxes": "test_nothing_of_a_request_stands_on_a_command_line",
    },
    12: {
        "security/test_targets": "test_a_target_that_folds_names",
        "audit/test_names": "test_odd_names test_clashes",
        "restore/test_plan": "test_the_table",
    },
    13: {"restore/test_modes": "test_links_in_the_target_are_never_followed"},
    14: {"e2e/test_links": "test_the_table test_the_verdict_does_not_depend_on_the_order"},
    15: {"e2e/test_links": "test_the_table", "e2e/test_links_kernel": "test_random_trees"},
    16: {"e2e/test_links_kernel": "test_random_trees"},
    21: {
        "security/test_targets": "test_CVE_2025_45582_two_archives_into_one_directory test_a_marker_that_is_a_link",
        "restore/test_modes": (
            "test_new_wants_nothing_there test_a_link_that_would_leave_beside_what_is_there_is_a_conflict"
        ),
    },
    22: {
        "restore/test_inodes": "test_a_file_with_a_name_outside_is_never_altered test_an_open_file_keeps_its_content",
    },
    23: {
        "restore/test_modes": (
            "test_a_target_that_is_a_link_is_followed_once_and_stays_a_link"
            " test_missing_parents_are_made_and_parents_may_be_links"
        ),
        "e2e/test_links": "test_the_target_is_looked_up_once",
    },
    24: {
        "e2e/test_links": "test_one_link_never_decides_for_the_rest",
        "e2e/test_rules": "test_an_ignore_file_that_is_no_file_means_nothing",
        "restore/test_options": "test_a_virtual_environment_works_again",
    },
    25: {"restore/test_plan_links": "test_a_long_chain_takes_no_recursion_and_no_limit"},
    27: {"security/test_targets": "test_a_target_that_folds_names", "restore/test_plan": "test_the_table"},
    28: {"e2e/test_content": "test_hard_links", "restore/test_inodes": "test_hard_links_are_as_in_the_snapshot"},
    32: {"restore/test_mounts": "test_hard_links_across_a_mount_become_copies"},
    35: {
        "e2e/test_specials": "test_pipes_and_sockets_are_left_out test_devices_are_left_out",
        "restore/test_modes": (
            "test_exact_exchanges_every_kind_for_every_other test_a_pipe_with_a_reader_that_waits_is_not_opened"
        ),
    },
    37: {
        "security/test_metadata": "test_CVE_2005_2541_a_sandbox_s_setuid_program_is_not_one_here",
        "e2e/test_content": "test_special_bits_are_recorded_and_not_restored",
        "restore/test_options": "test_special_bits_come_back_on_request_alone",
    },
    38: {
        "security/test_metadata": "test_a_locked_directory_before_what_is_in_it",
        "e2e/test_content": "test_read_only_directories_by_who_is_not_root",
    },
    39: {
        "security/test_metadata": "test_kaniko_owners_are_recorded_and_not_given",
        "restore/test_options": "test_without_a_wish_all_belongs_to_who_restores",
    },
    40: {"archive/test_import_writers": "test_attributes_are_warned_of"},
    41: {"e2e/test_content": "test_times_that_no_field_holds", "archive/test_import_rules": "test_times"},
    42: {"capture/test_hostile_content": "test_members"},
    45: {"archive/test_import_agreement": "test_accepted_means_the_same test_a_disagreement_is_found"},
    54: {"helper/test_members": "test_every_changed_byte_is_refused_or_is_another_block"},
    56: {
        "archive/test_import_compression": "test_nothing_follows test_split_into_two_streams",
        "capture/test_hostile_content": "test_a_frame_that_is_stored_as_it_came_is_one_frame",
    },
    58: {
        "security/test_framing": (
            "test_tokio_tar_039_an_archive_is_cut_off_anywhere test_a_stream_s_own_checksum_counts"
        ),
        "security/test_protocol": "test_CVE_2019_11251_a_stream_without_an_end",
        "capture/test_truncation": "test_cut_at_every_edge_of_a_frame test_cut_at_random_bytes",
        "archive/test_import_compression": "test_cut_off",
    },
    59: {
        "security/test_framing": "test_covert_data_is_in_no_snapshot",
        "security/test_protocol": "test_an_accepted_archive_is_set_down_by_our_own_bytes",
    },
    60: {"archive/test_import_compression": "test_name_that_looks_like_a_magic test_other_than_stated"},
    63: {
        "capture/test_hostile_content": "test_content test_segments",
        "protocol/test_prover": "test_bombs_allocate_no_more_than_a_run",
    },
    64: {"capture/test_hostile_content": "test_a_window_bomb", "archive/test_import_compression": "test_xz_memory"},
    65: {"archive/test_import_compression": "test_compressed_twice"},
    66: {"restore/test_mounts": "test_room_is_looked_for_first test_room_is_looked_for_beside_the_target"},
    67: {"protocol/test_limits": "test_limits", "archive/test_import_limits": "test_limit_at_its_edge"},
    68: {
        "security/test_resources": "test_quadratic_paths_cost_what_they_are_long",
        "capture/test_hostile_manifest": "test_links_below_no_directory",
    },
    69: {"archive/test_import_limits": "test_claims_cost_nothing"},
    70: {
        "security/test_resources": "test_CVE_stall_an_archive_that_stops",
        "capture/test_hostile": (
            "test_silence test_a_slow_drip_is_no_sign_of_life test_endless_progress_meets_the_deadline"
        ),
        "capture/test_hostile_target": "test_times",
    },
    71: {
        "security/test_resources": "test_messages",
        "helper/test_messages": "test_refused test_nesting_has_the_same_bound_both_ways",
        "protocol/test_limits": "test_messages_are_maps_of_their_own_form",
        "helper/test_table": "test_lengths_beyond_the_data_allocate_nothing",
    },
    72: {
        "security/test_resources": "test_names_that_hash_alike",
        "helper/test_ignore": "test_cost_is_bounded_by_pattern_times_path test_cost_of_any_pattern",
    },
    73: {
        "security/test_targets": "test_CVE_2018_15664_a_directory_is_swapped_for_a_link",
        "restore/test_races": "test_a_strike_in_every_gap test_a_restore_is_raced test_a_capture_is_raced",
        "e2e/test_live": "test_a_directory_that_is_really_swapped",
    },
    74: {"security/test_targets": "test_CVE_2026_32282_a_swap_ahead_of_a_change_of_attributes"},
    75: {
        "security/test_targets": (
            "test_CVE_2024_45339_nothing_beside_a_target_can_be_foreseen test_tar_fs_predictable_destination"
            " test_an_old_tree_that_somebody_else_puts_beside_a_missing_target"
        ),
        "e2e/test_staging": (
            "test_what_has_another_name_stays test_a_link_in_the_place_of_what_was_left_is_not_followed"
        ),
        "store/test_directory": "test_links_in_the_store_are_not_followed",
    },
    76: {
        "security/test_targets": "test_the_window_of_permissions",
        "e2e/test_content": "test_modes_do_not_depend_on_the_umask",
        "store/test_directory": "test_everything_is_private_whatever_the_umask",
    },
    77: {
        "security/test_targets": "test_a_crash_leaves_nothing_that_the_next_restore_keeps",
        "restore/test_crash_points": "test_a_kill_at_each_call",
        "restore/test_kills": "test_a_restore_is_killed",
        "e2e/test_staging": (
            "test_what_a_killed_restore_left_is_removed_by_the_next test_what_a_living_restore_has_stays"
        ),
        "store/test_crash": "test_a_crash_leaves_the_old_state_or_the_new",
        "capture/test_kills": "test_the_helper_is_killed",
    },
    78: {
        "security/test_protocol": "test_CVE_2026_41567_tools_planted_in_a_tree",
        "helper/test_launch": "test_the_workspace_is_not_the_standard_library test_the_trap_would_work",
    },
    79: {
        "security/test_protocol": "test_contamination",
        "capture/test_noise": (
            "test_noise_before_the_stream test_noise_over_the_cap test_a_trailer test_login_noise_over_ssh"
        ),
        "helper/test_launch": "test_what_is_printed_does_not_enter_the_stream",
    },
    80: {
        "capture/test_hostile": "test_lies",
        "protocol/test_session": "test_every_single_bit_outside_of_content_is_proved",
    },
    81: {
        "security/test_protocol": "test_the_stream_of_another_run",
        "capture/test_hostile_manifest": "test_a_stream_of_yesterday",
        "capture/test_noise": "test_a_mark_with_another_nonce_is_noise",
    },
    82: {
        "capture/test_hostile_manifest": "test_a_block_that_the_store_holds_is_not_had_by_naming_it",
    },
    83: {"security/test_protocol": "test_SHAttered_names_are_sha256"},
    84: {
        "security/test_protocol": "test_content_that_host_tools_execute",
        "audit/test_inert": "test_it_runs_when_kept_and_when_inert_reads_as_before",
        "audit/test_audit": "test_every_plant_is_told_and_none_runs",
    },
    85: {
        "e2e/test_live": (
            "test_a_file_that_grew_before_it_was_read_is_taken_as_it_is"
            " test_a_file_that_shrank_before_it_was_read_is_taken_as_it_is test_a_log_that_never_stops_growing"
            " test_a_file_that_was_replaced test_a_pipe_in_a_files_place_is_not_drained test_what_vanished"
        ),
    },
    86: {
        "security/test_protocol": "test_CVE_2026_54572_what_a_link_of_a_workspace_leads_to_is_not_taken",
        "e2e/test_live": "test_a_directory_that_was_swapped_for_a_link",
    },
    87: {
        "security/test_resources": "test_a_store_on_a_full_disk",
        "cli/test_stores": "test_a_store_on_a_full_disk",
        "cli/test_errors": "test_a_target_on_a_full_disk",
        "restore/test_crash_points": "test_a_call_that_fails",
        "store/test_directory": "test_a_fault_at_any_call_leaves_the_old_state_or_the_new test_a_full_disk_for_real",
    },
    88: {"security/test_protocol": "test_report_injection"},
    89: {
        "security/test_resources": "test_native_parsers_only_decode",
        "protocol/test_prover": "test_arbitrary_payloads_are_refused",
        "fuzz/test_fuzz": "test_a_short_run_finds_nothing",
    },
    90: {"capture/test_hostile": "test_lies", "capture/test_hostile_target": "test_lies"},
    91: {"e2e/test_links": "test_the_table", "e2e/test_links_kernel": "test_random_trees"},
}

NOTES: Final[Mapping[int, str]] = {
    3: "a name like .//x lies below the root for every reader, so an archive may have it; a stream of ours may not",
    5: "a root member of an archive must be a directory, and gives the root its mode, time and owner",
    6: "one spelling is taken for what it means; two of one path are refused, and a stream of ours has one alone",
    12: "names are bytes here; a target that takes two for one is found by looking, and refused",
    23: "the operator's own path may lead through links, and a target that is one is followed once",
    24: "links to outside are left out and recorded; --relink puts chosen ones back",
    27: "no file system that folds names can be mounted here, so the target only says that it does",
    35: "an archive's special files are left out and listed, as a capture does",
    42: "classes 42 to 62 cannot be said to a capture: its stream holds nothing but blocks of one fixed form",
    49: "base-256 that every reader knows is taken from an archive",
    57: "zeros up to a limit may follow the end marker, since writers fill up records",
    59: "not refused, since everything is written anew",
    71: "no JSON is read from a sandbox; messages are a fixed subset of msgpack",
    75: "a parent that others may write to is not refused: its writers can exchange the target at any time",
    83: "no other algorithm can be named",
    88: "neither HTML, CSV nor Markdown is written",
    89: "decoders are libraries, in the process that reads the archive; structure is read in Python",
    90: "the host alone asks; a sandbox's question is a protocol error",
}


def case_ids() -> Iterator[tuple[int, str]]:
    """Row and node id of every case of the tables."""
    for module, test, cases in TABLES:
        for slug, case in cases.items():
            yield case.row, f"tests/security/{module}.py::{test}[{slug}]"


def other_ids() -> Iterator[tuple[int, str]]:
    """Row and node id of the tests that are written down here."""
    for row, modules in OTHERS.items():
        for module, tests in modules.items():
            for test in tests.split():
                yield row, f"tests/{module}.py::{test}"


def mapped() -> dict[int, tuple[str, ...]]:
    """Row number to node ids."""
    found: dict[int, list[str]] = {}
    for row, node in (*case_ids(), *other_ids()):
        found.setdefault(row, []).append(node)
    return {row: tuple(found[row]) for row in sorted(found)}


ROWS: Final[Mapping[int, tuple[str, ...]]] = mapped()


def described() -> str:
    """The map as text."""
    lines = []
    for row, nodes in ROWS.items():
        lines.append(f"{row}{': ' + NOTES[row] if row in NOTES else ''}")
        lines += [f"    {node}" for node in nodes]
    return "\n".join(lines)


if __name__ == "__main__":
    print(described())
