//! Jobs of FrameworkController.

use super::*;

const JOB: &str = r#"
apiVersion: frameworkcontroller.microsoft.com/v1
kind: Framework
metadata: { name: digits, namespace: default }
spec:
  description: two workers and a server
  executionType: Create
  retryPolicy: { fancyRetryPolicy: false, maxRetryCount: 2 }
  taskRoles:
  - name: ps
    taskNumber: 1
    frameworkAttemptCompletionPolicy: { minFailedTaskCount: 1, minSucceededTaskCount: -1 }
    task:
      retryPolicy: { fancyRetryPolicy: false, maxRetryCount: 3 }
      pod:
        spec:
          restartPolicy: Never
          containers:
          - name: ps
            image: lab/train:1
            command: [sh, -c, "python3 train.py --role $FC_TASKROLE_NAME --index $FC_TASK_INDEX"]
            resources: { limits: { cpu: 1, memory: 1Gi } }
  - name: worker
    taskNumber: 2
    frameworkAttemptCompletionPolicy: { minFailedTaskCount: -1, minSucceededTaskCount: 2 }
    task:
      podGracefulDeletionTimeoutSec: 60
      pod:
        spec:
          restartPolicy: Never
          containers:
          - name: worker
            image: lab/train:1
            command: [python3, train.py]
            resources: { limits: { cpu: 1, memory: 1Gi } }
"#;

#[test]
fn a_framework_keeps_its_roles_its_ends_and_its_retries() {
    let job = only(JOB);
    assert_eq!(job.name, "digits");
    let spec = spec_of(&job);
    assert_eq!(
        (spec.description.as_str(), spec.retries, spec.state),
        ("two workers and a server", 2, DesiredState::Held)
    );
    let [ps, worker] = spec.roles.as_slice() else { panic!("{}", job.toml) };
    assert_eq!((ps.count, ps.retries, ps.min_failed, ps.serves), (1, 3, Some(1), false));
    assert_eq!((ps.min_succeeded, ps.main), (MinSucceeded::All, Main::No));
    // All of the workers end the framework by themselves; that a failure of one does not is told.
    assert_eq!((worker.count, worker.min_failed, worker.main), (2, Some(1), Main::Role));
    let told: Vec<String> = job.losses.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 2, "{told:#?}");
    let policy =
        "spec.taskRoles[1].frameworkAttemptCompletionPolicy.minFailedTaskCount: lets its tasks fail there; here one";
    assert!(told.iter().any(|loss| loss.starts_with(policy)), "{told:#?}");
    assert!(told.iter().any(|loss| loss.contains("podGracefulDeletionTimeoutSec: write stop_grace")), "{told:#?}");
    let older = only(&JOB.replace("frameworkcontroller.microsoft.com", "launcher.microsoft.com"));
    assert_eq!(older.toml, job.toml);
}

#[test]
fn what_a_framework_tries_for_ever_or_waits_for_in_vain_is_told() {
    let told = |from: &str, to: &str| {
        assert!(JOB.contains(from));
        import(&JOB.replace(from, to))
            .map(|contents| contents.jobs[0].losses.iter().map(ToString::to_string).collect::<String>())
    };
    let losses = told("maxRetryCount: 2", "maxRetryCount: -2").unwrap();
    assert!(losses.contains("spec.retryPolicy.maxRetryCount: -2 tries again for ever, even after success"), "{losses}");
    let losses =
        told("fancyRetryPolicy: false, maxRetryCount: 3", "fancyRetryPolicy: true, maxRetryCount: -1").unwrap();
    assert!(
        losses.contains("fancyRetryPolicy: failures that may pass") && losses.contains("-1 is no bound"),
        "{losses}"
    );
    let losses = told("restartPolicy: Never", "restartPolicy: Always").unwrap();
    assert!(losses.contains("restartPolicy"), "{losses}");
    for (from, to, word) in [
        ("minSucceededTaskCount: 2", "minSucceededTaskCount: 3", "waits for 3 succeeded tasks"),
        ("executionType: Create", "executionType: Later", "must be Start, Create or Stop"),
        ("minFailedTaskCount: 1", "minFailedTaskCount: 0", "must be -1, null or from 1"),
    ] {
        let error = told(from, to).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn what_the_controller_tells_its_tasks_is_told_here_or_named() {
    let asking = |name: &str| only(&JOB.replace("$FC_TASK_INDEX", &format!("${name}")));
    // Tasks, retries and attempts are counted from 0, as the controller counts them.
    for (name, value) in [
        ("FC_FRAMEWORK_NAME", "digits"),
        ("FC_TASKROLE_NAME", "worker"),
        ("FC_TASK_INDEX", "1"),
        ("FC_FRAMEWORK_ATTEMPT_ID", "0"),
        ("FC_TASK_ATTEMPT_ID", "0"),
    ] {
        let job = asking(name);
        let told: Vec<String> = job.losses.iter().map(ToString::to_string).collect();
        assert!(!told.iter().any(|loss| loss.contains("FC_")), "{told:#?}");
        let spec = spec_of(&job);
        let sample = crate::contract::Sample::of("digits", &spec);
        let env = crate::contract::view(&sample.tasks(&spec).last().unwrap()).env;
        assert!(env.contains(&(name.to_owned(), value.to_owned())), "{name}: {env:?}");
    }
    for (name, why) in [
        ("FC_POD_NAME", "there is no such variable here"),
        ("FB_WORKER_IPS", "addresses are in $TRAINYARD_<ROLE>_HOSTS"),
    ] {
        let told = asking(name).losses.iter().map(ToString::to_string).collect::<String>();
        assert!(told.contains(&format!("asks for {name}: {why}")), "{told}");
    }
    let own = JOB
        .replace("            image: lab", "            env: [{name: FC_POD_NAME, value: x}]\n            image: lab");
    let own = only(&own.replace("$FC_TASK_INDEX", "$FC_POD_NAME"));
    assert!(!format!("{:?}", own.losses).contains("FC_POD_NAME"), "the pod sets it itself: {:?}", own.losses);
}
