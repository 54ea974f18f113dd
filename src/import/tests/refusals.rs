//! What other platforms refuse is refused here, by the field and its place.

use super::*;

#[test]
fn what_openpai_refuses_is_refused_with_its_field() {
    let cases = [
        (v1(r#", "minFailedTaskCount": 5"#, ""), "line 1, column 47: `taskRoles[0]` waits for 5 failed tasks and has only 4"),
        (v1(r#", "taskNumber": 2"#, ""), "line 1, column 109: not JSON: the field \"taskNumber\" stands here twice"),
        (v1("", r#""retryCount": -3, "#), "line 1, column 32: `retryCount` is -3, must be at least -2"),
        (r#"{"image": "i", "taskRoles": []}"#.to_owned(), "line 1, column 1: `jobName` is missing"),
        (r#"{"jobName": "j", "taskRoles": []}"#.to_owned(), "line 1, column 1: `image` is missing"),
        (r#"{"jobName": "j", "image": "i", "taskRoles": []}"#.to_owned(), "line 1, column 32: `taskRoles` names no role: a job has one at least"),
        ("protocolVersion: 2\nname: j\ntype: job\ntaskRoles: {}\n".to_owned(), "line 4, column 1: `taskRoles` names no role: a job has one at least"),
        (
            v1(r#", "portList": [{"label": "http", "portNumber": 1}, {"label": "http", "portNumber": 2}]"#, ""),
            "line 1, column 144: `taskRoles[0].portList[1].label` is \"http\" a second time",
        ),

        (
            r#"{"jobName": "j", "image": "i", "taskRoles": [{"name": "a_b", "command": "c"}, {"name": "a.b", "command": "c"}]}"#
                .to_owned(),
            "line 1, column 79: `taskRoles[1]` is role a.b, which would be A_B in the environment, as role a_b",
        ),
        (
            r#"{"jobName": "j", "image": "i", "taskRoles": [{"name": "w", "command": "c"}, {"name": "w", "command": "c"}]}"#
                .to_owned(),
            "line 1, column 77: `taskRoles[1]` is role w, which is there twice; each role has a name of its own",
        ),
        (
            r#"{"jobName": "j", "image": "i", "taskRoles": [{"name": "a-b", "command": "c"}]}"#.to_owned(),
            "line 1, column 46: `taskRoles[0]` cannot be: under contract openpai the name of a role holds letters A–Z and a–z, digits, '.', '_' and '~' only, not \"a-b\"",
        ),
        (
            r#"{"jobName": "j", "image": "i", "taskRoles": [{"name": "w", "command": "c", "portList": [{"label": "x-y"}]}]}"#
                .to_owned(),
            "line 1, column 76: `taskRoles[0].portList` cannot be: under contract openpai the label of a port holds letters A–Z and a–z, digits, '.', '_' and '~' only, not \"x-y\"",
        ),
        (
            r#"{"jobName": "j", "image": "i", "taskRoles": [{"name": "w", "command": " "}]}"#.to_owned(),
            "line 1, column 60: `taskRoles[0].command` cannot be: `command`: is empty; leave the key out for a task that only sleeps",
        ),
        (
            r#"{"jobName": "j", "image": "i", "taskRoles": [{"name": "w", "command": "c", "taskNumber": 0}]}"#.to_owned(),
            "line 1, column 76: `taskRoles[0].taskNumber` is 0, must be at least 1",
        ),
        (v1(r#", "cpuNumber": 0"#, ""), "line 1, column 94: `taskRoles[0].cpuNumber` is 0, must be at least 1"),
        (
            PS_JSON.replace("tf-ps", "t d"),
            "line 2, column 3: `jobName` is \"t d\"; OpenPAI takes A to Z, a to z, digits, '-', '.', '_' and '~' in a job's name",
        ),
        (
            V2.replace("name: cifar\n", "name: t d\n"),
            "line 3, column 1: `name` is \"t d\"; OpenPAI takes A to Z, a to z, digits, '-', '.', '_' and '~' in a job's name",
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(refusal(&text), wanted, "{text}");
    }
    let env = refusal(&v1("", r#""jobEnvs": {"A=B": "1"}, "#));
    assert!(env.starts_with("line 1, column 32: `jobEnvs` cannot be: "), "{env}");
    let cores = refusal(&v1(r#", "note": "训练 \"{,", "cpuNumber": 20000"#, ""));
    assert!(cores.starts_with("line 1, column 113: `taskRoles[0].cpuNumber` cannot be: "), "{cores}");
}
