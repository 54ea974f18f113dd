//! How roles of OpenPAI that may fail end a job.

use super::*;

/// The role `loose` may fail; `more` is what else its policy says, `other` that of the role beside it.
fn v2(more: &str, other: &str) -> String {
    let role = |name: &str, policy: &str| {
        format!(
            "  {name}: {{instances: 2, dockerImage: i, completion: {{{policy}}}, resourcePerInstance: {{cpu: 1, memoryMB: 512, gpu: 0}}, commands: [x]}}\n"
        )
    };
    let loose = role("loose", &format!("minFailedInstances: -1{more}"));
    format!(
        "protocolVersion: 2\nname: j\ntype: job\nprerequisites: [{{name: i, type: dockerimage, uri: lab/i}}]\ntaskRoles:\n{loose}{}",
        role("other", other)
    )
}

fn v1(more: &str, other: &str) -> String {
    let role =
        |name: &str, policy: &str| format!("{{\"name\": \"{name}\", \"taskNumber\": 2, \"command\": \"c\"{policy}}}");
    let loose = role("loose", &format!(", \"minFailedTaskCount\": null{more}"));
    format!("{{\"jobName\": \"j\", \"image\": \"i\", \"taskRoles\": [{loose}, {}]}}", role("other", other))
}

/// The tolerant role as it comes in, and what is told of it.
fn loose(text: &str) -> (Main, Option<u32>, String) {
    let job = only(text);
    let spec = spec_of(&job);
    let told = job.losses.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    (role(&spec, "loose").main, role(&spec, "loose").min_failed, told)
}

#[test]
fn a_role_that_may_fail_is_no_main_one_where_another_ends_the_job() {
    let all = ", minSucceededInstances: 2";
    for text in [
        v2("", ""),
        v2(all, ""),
        v2("", "minSucceededInstances: 1"),
        v1(", \"minSucceededTaskCount\": 2", ", \"minSucceededTaskCount\": 2"),
    ] {
        let (main, min_failed, told) = loose(&text);
        assert_eq!((main, min_failed), (Main::No, None), "{told}");
        assert!(told.contains(": lets its tasks fail, so that it is not main here"), "{told}");
        assert!(
            told.contains("loose.completion.minFailedInstances") || told.contains("taskRoles[0].minFailedTaskCount")
        );
    }
}

#[test]
fn a_role_that_may_fail_is_the_main_one_where_no_other_ends_the_job_and_that_its_failure_does_is_told() {
    let never = "minSucceededInstances: -1";
    for text in [
        v2("", never),
        v2(", minSucceededInstances: 2", never),
        v2("", &format!("minFailedInstances: -1, {never}")),
        v1(", \"minSucceededTaskCount\": 2", ""),
    ] {
        let (main, min_failed, told) = loose(&text);
        assert_eq!((main, min_failed), (Main::Role, Some(1)), "{told}");
        assert!(told.contains("here one that fails fails the job and stops the others"), "{told}");
    }
    // Who waits for every role, or ends it with fewer, loses nothing.
    for text in [v2(", minSucceededInstances: -1", ""), v2(", minSucceededInstances: 1", never), v1("", "")] {
        let (main, min_failed, told) = loose(&text);
        assert_eq!((main, min_failed, told.as_str()), (Main::No, None, ""));
    }
}
