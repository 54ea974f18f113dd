//! What other platforms let their users do, and what shows that it can be done here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::documents::{repository, sources};

/// The numbers are those of the study of other platforms' documents by which the job language was made: jobs and their names (1–10), their
/// shape (11–38), commands (39–51), code (62–71), ports and ways into tasks (105–123), how jobs come (124–135), templates (136–142), and
/// their life (143–155). Images, data, resources and logs are shown by tests of their own.
const ROWS: [std::ops::RangeInclusive<u32>; 3] = [1..=51, 62..=71, 105..=155];

/// Rows, what they ask for, and what shows it: tests, and files of `jobs.d`.
type Row = (&'static [u32], &'static str, &'static [&'static str]);
const SHOWN: &[Row] = &[
    (&[1, 2], "names by the rules of a platform", &["names_follow_the_rules_of_the_platform"]),
    (&[1], "names in any script", &["names_of_any_script_are_names_and_path_tricks_are_not"]),
    (
        &[3],
        "names of OpenPAI's, and no two jobs of one name",
        &["what_openpai_refuses_is_refused_with_its_field", "a_job_file_that_is_there_is_not_overwritten"],
    ),
    (
        &[4, 5, 40],
        "names of roles, labels of ports, commands that say nothing",
        &["what_openpai_refuses_is_refused_with_its_field", "syntax_errors_and_doubled_roles_have_a_place"],
    ),
    (
        &[6, 106, 107, 108],
        "task0 and task0-1 beside a role's own name, its hosts, its index",
        &["volcano_has_host_files_and_octopus_numbers_its_tasks", "examples/octopus.toml"],
    ),
    (
        &[7],
        "one id, which creating tells",
        &["job_files_are_written_whole_as_their_callers_own_and_taken_in_before_the_answer"],
    ),
    (&[8], "a description", &["what_is_shown_is_a_job_file"]),
    (
        &[9, 21, 28],
        "named parameters, a bound of cards, an architecture",
        &["das_has_its_architectures_and_a_bound_of_cards", "jobs_are_made_of_templates_and_of_other_jobs"],
    ),
    (&[10], "notes that are nobody's but the user's", &["any_number_of_extras_is_exported_and_comes_back"]),
    (&[11, 20, 41], "one task, without cards, that only idles", &["a_job_of_one_line_gets_every_default"]),
    (
        &[12, 13],
        "roles of tasks, each a container",
        &[
            "tasks_reach_each_other_by_address_and_by_name",
            "roles_and_params_keep_the_order_of_the_file_and_numbers_their_form",
        ],
    ),
    (&[14, 132], "bounds", &["bounds_are_told_with_each_number_size_and_duration_and_hold_but_for_what_was_accepted"]),
    (&[15], "2 to 4 nodes", &["nodes_of_uai_are_two_to_four_or_what_the_file_allows", "examples/uai.toml"]),
    (&[16], "more nodes than there may be", &["who_asks_for_more_than_the_file_allows_gets_less_and_is_told"]),
    (&[17], "a kind of card", &["cards_are_asked_for_whole_in_shares_or_in_slices_and_of_a_kind"]),
    (
        &[18, 29],
        "servers and workers, on processors and cards",
        &["swarm_tells_hosts_by_variables_and_arena_hides_cards_from_servers", "examples/aliyun-swarm.toml"],
    ),
    (
        &[19, 27],
        "no card, or one's own",
        &[
            "a_card_that_is_not_leased_is_never_given",
            "a_job_has_cards_of_its_own_and_can_open_no_others_and_the_next_one_gets_them_when_they_are_free",
        ],
    ),
    (
        &[22],
        "a main role",
        &["the_main_role_decides_both_ways", "a_failed_task_stops_its_gang_and_the_main_role_decides"],
    ),
    (
        &[23],
        "how many may fail and must succeed",
        &[
            "every_combination_of_policies_over_one_to_three_roles_is_judged_by_the_book",
            "policies_of_openpai_v1_keep_their_meaning",
        ],
    ),
    (&[24], "whatever fails", &["pai_3547_a_job_whose_tasks_have_all_failed_succeeds_only_where_its_file_says_so"]),
    (&[25], "all are waited for", &["a_plain_job_waits_for_all_and_fails_at_the_first_failure"]),
    (
        &[26],
        "wherever tasks are placed they are told the same",
        &[
            "what_fits_in_any_way_is_placed_and_nothing_is_given_twice",
            "openpai_tells_every_variable_of_its_tutorial_and_no_other",
        ],
    ),
    (
        &[30, 31, 32, 33],
        "a cluster of each framework",
        &[
            "frameworks_have_their_cluster_without_any_contract",
            "one_leads_under_master_worker_and_its_end_is_the_job_s",
        ],
    ),
    (&[34], "as many servers as workers", &["what_a_platform_itself_would_refuse_is_told"]),
    (
        &[35],
        "several ranks of a worker",
        &[
            "platforms_start_a_process_for_each_rank_and_servers_beside_each_node",
            "mpi_has_a_host_file_of_those_that_wait_for_ranks",
        ],
    ),
    (&[36, 37], "scripts as they are", &["every_platform_s_script_finds_what_its_platform_promises"]),
    (&[38], "several strategies", &["a_file_only_counts_and_the_strategy_says_what_roles_are"]),
    (&[39], "a command for each role", &["tasks_that_run_the_same_are_told_once"]),
    (
        &[42, 44],
        "what is shown is what runs",
        &["what_is_shown_is_what_runs", "sh_makes_of_the_line_that_is_shown_what_runs"],
    ),
    (&[43], "--key=value", &["params_are_appended_so_that_a_shell_reads_them_back"]),
    (&[45], "a command that nobody rewrites", &["pai_tells_by_variables_and_leaves_the_command_alone"]),
    (
        &[46, 47],
        "variables as they are written, and variables within commands",
        &["a_variable_is_as_the_file_has_it_and_a_command_s_shell_puts_it_in"],
    ),
    (&[48, 145, 146], "edits, restarts, removals one by one", &["edits_stops_and_removals_of_files_act_on_jobs"]),
    (
        &[49],
        "to go on from what was kept",
        &[
            "what_a_run_has_written_is_input_of_other_jobs_and_of_its_next_run",
            "a_run_begins_as_the_last_one_ended_where_the_file_or_its_platform_says_so",
        ],
    ),
    (
        &[50],
        "a script and epochs",
        &["lambda_s_script_finds_flags_and_epochs_and_its_tasks_one_output", "examples/jd-lambda.toml"],
    ),
    (&[51, 131, 135], "by Python as by the console", &["the_python_client_does_with_a_daemon_what_it_says"]),
    (&[133], "a class for each strategy", &["the_python_client_writes_job_files_and_asks_as_it_says"]),
    (
        &[62],
        "mine, preset, public",
        &["presets_and_public_things_are_seen_by_every_workspace_and_changed_by_their_owners"],
    ),
    (&[63], "/code", &["code_is_a_snapshot_data_is_read_only_and_the_model_appears_whole"]),
    (
        &[64, 71],
        "code that is brought in and changed",
        &["users_change_code_and_datasets_and_nothing_else", "code_is_written_directly_by_whom_its_rights_allow"],
    ),
    (
        &[65, 121, 123],
        "a notebook of the job",
        &[
            "services_are_reached_while_their_job_runs_and_hold_nothing_open",
            "a_notebook_runs_code_on_the_job_s_files_and_tensorboard_shows_what_workers_train",
        ],
    ),
    (
        &[66],
        "200 MB of code, read only",
        &[
            "code_that_its_platform_would_refuse_is_refused",
            "pai_1178_empty_code_runs_and_too_much_of_it_is_refused_with_its_size",
        ],
    ),
    (&[67], "repositories by http alone", &["repositories_are_named_safely_or_refused_by_what_is_wrong"]),
    (&[68], "and with a password", &["code_comes_from_repositories_by_branch_tag_and_commit_and_is_noted"]),
    (&[69], "requirements.txt", &["listed_packages_are_installed_once_and_seen_by_every_task"]),
    (&[70], "code in a store", &["code_that_lies_in_a_store_is_the_run_s_snapshot_at_code"]),
    (
        &[105],
        "ports",
        &[
            "declared_ports_lead_from_the_machine_to_the_task_until_it_is_over",
            "no_two_tasks_have_the_same_port_of_the_machine_and_nobody_s_is_taken",
        ],
    ),
    (
        &[109, 110, 111, 112, 113, 114, 115, 116],
        "the variables of OpenPAI",
        &["openpai_tells_every_variable_of_its_tutorial_and_no_other", "examples/openpai.toml"],
    ),
    (
        &[117],
        "tasks that reach one another",
        &["tasks_reach_each_other_by_address_and_by_name", "pai_1895_every_role_sees_the_hosts_and_ports_of_all"],
    ),
    (
        &[118],
        "a TensorBoard for each worker",
        &[
            "services_are_roles_of_their_own_size_that_no_peer_is_told_of",
            "a_notebook_runs_code_on_the_job_s_files_and_tensorboard_shows_what_workers_train",
        ],
    ),
    (
        &[119, 120, 122],
        "a key for ssh, a shell and a desktop in a browser",
        &[
            "a_login_by_ssh_a_terminal_and_a_desktop_come_with_a_job",
            "a_terminal_has_its_size_keeps_it_and_is_given_back",
            "workbench.template.toml",
        ],
    ),
    (
        &[124, 125, 126, 130],
        "a form with sentences, a confirmation, and a template of it",
        &["new_asks_at_a_terminal_for_what_a_template_or_a_job_takes", "explain_knows_keys_and_names_the_nearest"],
    ),
    (
        &[127, 128],
        "JSON over the form",
        &[
            "large_numbers_of_json_become_texts_and_are_told_and_keys_have_their_places",
            "nearly_json_is_refused_with_line_and_column",
        ],
    ),
    (&[129], "a job as JSON", &["a_job_goes_out_as_json_and_comes_back_the_same", "whatever_is_exported_comes_back"]),
    (&[134], "help", &["help_has_a_word_on_every_verb_and_argument"]),
    (
        &[136, 139, 140, 141],
        "templates made, copied, removed, searched",
        &["templates_are_listed_shown_saved_copied_and_removed"],
    ),
    (&[137], "templates edited", &["an_edited_template_acts_on_later_runs_only"]),
    (&[138, 142], "jobs of templates and of jobs", &["jobs_are_made_of_templates_and_of_other_jobs"]),
    (
        &[143, 148, 153, 155],
        "states, columns, details",
        &[
            "every_kind_of_end_is_told_truly",
            "screens_of_jobs_in_all_states_and_of_what_is_done_to_them_are_as_they_were_at_80_and_120_columns",
        ],
    ),
    (&[144], "a stop at once", &["a_stop_is_a_term_that_may_be_answered_then_a_kill_of_everything"]),
    (&[147], "lists that are searched", &["the_list_is_searched_by_text_state_user_and_time"]),
    (
        &[149],
        "retries",
        &[
            "a_failed_attempt_is_retried_as_often_as_allowed_with_its_output_kept",
            "pai_5615_a_killed_task_is_tried_as_often_as_allowed_and_no_more",
        ],
    ),
    (
        &[150],
        "a container that is kept",
        &[
            "a_failed_container_is_kept_to_be_looked_into_and_goes_when_told",
            "a_kept_container_goes_by_itself_when_its_time_is_over",
        ],
    ),
    (&[151], "the end when all workers have ended", &["serving_roles_do_not_hold_the_job_open"]),
    (&[152], "the next that waits", &["a_gang_starts_whole_or_waits_with_its_reason"]),
    (&[154], "services told apart", &["services_are_roles_of_their_own_size_that_no_peer_is_told_of"]),
];

#[test]
fn every_feature_of_the_study_is_shown_by_tests_and_examples_that_there_are() {
    let sources = sources();
    let name = |rest: &'_ str| rest.split_once("fn ").and_then(|(_, rest)| rest.split('(').next()).map(str::to_owned);
    let tests: BTreeSet<String> = sources.split("#[test]").skip(1).filter_map(name).collect();
    let mut shown: BTreeMap<u32, usize> = BTreeMap::new();
    for (rows, what, proofs) in SHOWN {
        for proof in *proofs {
            let is_there = match proof.ends_with(".toml") {
                true => fs::exists(repository().join("jobs.d").join(proof)).unwrap(),
                false => tests.contains(*proof),
            };
            assert!(is_there, "{rows:?}, {what}: there is no {proof}");
        }
        rows.iter().for_each(|row| *shown.entry(*row).or_default() += proofs.len());
    }
    let asked: BTreeSet<u32> = ROWS.into_iter().flatten().collect();
    let known: BTreeSet<u32> = shown.into_iter().filter(|(_, proofs)| *proofs > 0).map(|(row, _)| row).collect();
    assert_eq!(known, asked);
}
