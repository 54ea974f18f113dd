//! What Kubeflow's operators look for by name in the pods of a job.

use super::*;

const LIMITS: &str = "resources: {limits: {cpu: 1, memory: 1Gi}}";

/// A job of one worker whose pod has these containers.
fn of_containers(kind: &str, specs: &str, containers: &str) -> Imported {
    let text = kubeflow(kind, specs, "", &[("Worker", 1)]);
    let (head, _) = text.split_once("            - {").unwrap();
    only(&format!("{head}{containers}"))
}

#[test]
fn the_container_that_the_operator_goes_by_is_the_task_wherever_it_stands() {
    let containers = |name: &str| {
        format!(
            "            - {{name: istio-proxy, image: proxy, {LIMITS}}}\n            - {{name: {name}, image: lab/x, command: [python, x.py], {LIMITS}}}\n"
        )
    };
    for (kind, specs, name) in [
        ("TFJob", "tfReplicaSpecs", "tensorflow"),
        ("PyTorchJob", "pytorchReplicaSpecs", "pytorch"),
        ("MXJob", "mxReplicaSpecs", "mxnet"),
        ("XGBoostJob", "xgbReplicaSpecs", "xgboost"),
        ("PaddleJob", "paddleReplicaSpecs", "paddle"),
        ("JAXJob", "jaxReplicaSpecs", "jax"),
        ("MPIJob", "mpiReplicaSpecs", "mpi"),
    ] {
        let job = of_containers(kind, specs, &containers(name));
        let spec = spec_of(&job);
        assert_eq!(spec.roles[0].image.to_string(), "lab/x", "{kind}");
        let [told] = job.losses.as_slice() else { panic!("{kind}: {:?}", job.losses) };
        assert!(told.field.ends_with("containers[0].name"), "{kind}: {told}");
        // Where no name says which, Kubernetes' own first one is it.
        assert_eq!(
            spec_of(&of_containers(kind, specs, &containers("c"))).roles[0].image.to_string(),
            "proxy",
            "{kind}"
        );
    }
    let mpi = |more: &str, version: &str| {
        let text = kubeflow("MPIJob", "mpiReplicaSpecs", more, &[("Worker", 1)]).replace("kubeflow.org/v1", version);
        let (head, _) = text.split_once("            - {").unwrap();
        let name = if more.is_empty() { "mpi" } else { "ranks" };
        spec_of(&only(&format!("{head}{}", containers(name)))).roles[0].image.to_string()
    };
    assert_eq!(mpi("  mainContainer: ranks\n", "kubeflow.org/v1"), "lab/x");
    assert_eq!(mpi("", "kubeflow.org/v2beta1"), "proxy", "the MPI operator takes the first");
}

/// With the port of that name in the containers called `container`, a number for each of the roles.
fn meeting_at(kind: &str, specs: &str, container: &str, name: &str, roles: &[(&str, u16)]) -> Imported {
    let counted: Vec<_> = roles.iter().map(|(role, _)| (*role, 1)).collect();
    let text = kubeflow(kind, specs, "", &counted);
    let pieces: Vec<&str> = text.split("{name: c, ").collect();
    let mut text = pieces[0].to_owned();
    for (piece, (_, port)) in pieces[1..].iter().zip(roles) {
        text += &format!("{{name: {container}, ports: [{{name: {name}, containerPort: {port}}}], {piece}");
    }
    only(&text)
}

#[test]
fn the_port_at_which_tasks_of_pytorch_meet_is_carried() {
    let of =
        |roles: &[(&str, u16)]| meeting_at("PyTorchJob", "pytorchReplicaSpecs", "pytorch", "pytorchjob-port", roles);
    let told = |job: &Imported, index: usize| {
        let spec = spec_of(job);
        let sample = crate::contract::Sample::of("k", &spec);
        let env = crate::contract::view(&sample.tasks(&spec).nth(index).unwrap()).env;
        ["MASTER_PORT", "PET_MASTER_PORT"].map(|name| env.iter().find(|(known, _)| known == name).unwrap().1.clone())
    };
    let cases: [(&[(&str, u16)], &str); 4] = [
        (&[("Master", 29500), ("Worker", 23456)], "29500"),
        (&[("Worker", 1234), ("Master", 29500)], "29500"),
        (&[("Worker", 29500)], "29500"),
        (&[("Master", 23456), ("Worker", 29500)], "23456"),
    ];
    for (roles, port) in cases {
        let job = of(roles);
        assert_eq!(job.losses, [], "{roles:?}");
        for index in 0..roles.len() {
            assert_eq!(told(&job, index), [port, port], "{roles:?}\n{}", job.toml);
        }
    }
    assert!(!of(&[("Master", 23456)]).toml.contains("MASTER_PORT"), "it is so by itself");
    let refused = kubeflow("PyTorchJob", "pytorchReplicaSpecs", "", &[("Master", 1)])
        .replace("{name: c,", "{name: pytorch, ports: [{name: pytorchjob-port, containerPort: 99999}],");
    assert!(refusal(&refused).contains("ports[0].containerPort` is 99999, which is no port"), "{}", refusal(&refused));
}

#[test]
fn the_ports_that_other_operators_tell_of_are_named() {
    for (kind, specs, container, name, filled_in, word) in [
        ("TFJob", "tfReplicaSpecs", "tensorflow", "tfjob-port", 2222, "TF_CONFIG"),
        ("MXJob", "mxReplicaSpecs", "mxnet", "mxjob-port", 9091, "MX_CONFIG"),
        ("XGBoostJob", "xgbReplicaSpecs", "xgboost", "xgboostjob-port", 9999, "WORKER_PORT"),
        ("PaddleJob", "paddleReplicaSpecs", "paddle", "master", 36543, "PADDLE_MASTER"),
        ("JAXJob", "jaxReplicaSpecs", "jax", "jaxjob-port", 6666, "COORDINATOR_PORT"),
    ] {
        let of = |name: &str, port: u16| meeting_at(kind, specs, container, name, &[("Worker", port)]).losses;
        assert_eq!((of(name, filled_in), of("metrics", 1)), (vec![], vec![]), "{kind}");
        let told = of(name, 1234);
        assert!(told.len() == 1 && told[0].field.ends_with("containers[0].ports[0].containerPort"), "{told:?}");
        assert!(
            told[0].line > 0 && told[0].why.contains(word) && told[0].why.contains(&filled_in.to_string()),
            "{told:?}"
        );
    }
}

#[test]
fn a_bad_quantity_is_refused_where_it_stands() {
    let text = kubeflow("TFJob", "tfReplicaSpecs", "", &[("Worker", 1)]).replace("memory: 1Gi", "memory: much");
    let field =
        "`spec.tfReplicaSpecs.Worker.template.spec.containers[0].resources.limits.memory` \"much\" is no quantity";
    assert!(refusal(&text).contains(field), "{}", refusal(&text));
    let asked = text.replace("limits: {", "requests: {");
    assert!(refusal(&asked).contains(&field.replace("limits", "requests")), "{}", refusal(&asked));
}

#[test]
fn a_note_leads_to_a_document_that_tells_of_it() {
    let text = kubeflow("MPIJob", "mpiReplicaSpecs", "  mpiImplementation: MPICH\n", &[("Launcher", 1), ("Worker", 1)]);
    let job = only(&text);
    let [told] = job.losses.as_slice() else { panic!("{:?}", job.losses) };
    let file = told.why.split_whitespace().find_map(|word| word.strip_suffix(',')).unwrap();
    let document = std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    assert!(document.contains("Open MPI, Intel MPI and MPICH"), "{told}");
}

#[test]
fn what_workers_of_mpi_do_before_sshd_is_named_unless_it_is_for_sshd() {
    let text = kubeflow("MPIJob", "mpiReplicaSpecs", "", &[("Launcher", 1), ("Worker", 2)]);
    let at = text.rfind("[python, x.py]").unwrap();
    let told = |line: &str| {
        let command = format!("[sh, -c, {line:?}]");
        let job = only(&format!("{}{command}{}", &text[..at], &text[at + "[python, x.py]".len()..]));
        assert!(!job.toml.contains("sshd -D"), "{}", job.toml);
        assert_eq!(role(&spec_of(&job), "worker").slots, Some(1));
        let field = "spec.mpiReplicaSpecs.Worker.template.spec.containers[0].command";
        let told: Vec<&Loss> = job.losses.iter().filter(|loss| loss.field == field).collect();
        assert!(told.len() <= 1 && told.iter().all(|loss| loss.line > 0), "{told:?}");
        told.first().map(|loss| loss.why.clone()).unwrap_or_default()
    };
    for (line, dropped) in [
        ("prepare-data && /usr/sbin/sshd -De", "\"prepare-data\" ran before sshd"),
        (
            "mkdir -p /run/sshd; cp /data/a /scratch; exec sshd -D",
            "\"mkdir -p /run/sshd; cp /data/a /scratch\" ran before sshd",
        ),
        ("mkdir -p /data\npip install x\nsshd -De", "\"mkdir -p /data\\npip install x\" ran before sshd"),
        (
            "echo 'a;b' >/x; ./serve 2>&1 | tee log & exec /usr/sbin/sshd -D 2>&1;",
            "\"echo 'a;b' >/x; ./serve 2>&1 | tee log\" ran before sshd",
        ),
    ] {
        let why = told(line);
        assert!(why.starts_with(dropped), "{line}: {why}");
    }
    let sshd = "set -e; mkdir -p /var/run/sshd 2>&1; ssh-keygen -A && cp /keys/ssh/* /root/.ssh/ && chmod 600 /root/.ssh/id_rsa; /usr/sbin/sshd -De";
    assert_eq!(told(sshd), "");
    assert_eq!(told("# keys of its own\nssh-keygen -A &> /dev/null\n/usr/sbin/sshd -De"), "");
}
