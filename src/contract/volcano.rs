//! `VC_*` of Volcano and `TASKROLE_NAME` of OpenI Octopus.

use super::{Task, join};

pub(super) fn variables(task: &Task<'_>) -> Vec<(String, String)> {
    let index = task.index.to_string();
    let mut out = vec![
        ("TASKROLE_NAME".to_owned(), task.role.name.to_string()),
        ("TASKROLE_REPLICA_INDEX".to_owned(), index.clone()),
        ("VC_TASK_INDEX".to_owned(), index.clone()),
        ("VK_TASK_INDEX".to_owned(), index),
    ];
    for role in &task.spec.roles {
        let name = role.name.variable();
        // Names, not addresses, as Volcano's svc plugin gives them; the hosts file resolves them.
        let hosts = (0..role.count).map(|index| format!("{}-{index}", role.name));
        out.push((format!("VC_{name}_HOSTS"), join(hosts, ",")));
        out.push((format!("VC_{name}_NUM"), role.count.to_string()));
    }
    out
}
