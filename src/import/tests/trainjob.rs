//! Jobs of Kubeflow's Trainer v2.

use super::*;

#[test]
fn a_train_job_is_known_by_the_name_of_its_runtime() {
    let text = "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: t}\nspec:\n  suspend: true\n  \
                runtimeRef: {name: torch-distributed}\n  trainer:\n    numNodes: 3\n    image: lab/t\n    command: [torchrun, x.py]\n    \
                resourcesPerNode: {limits: {cpu: \"4\", memory: 8Gi}}\n";
    let job = only(text);
    assert_eq!(fields(&job), ["spec.runtimeRef.name"]);
    let spec = spec_of(&job);
    assert_eq!((role(&spec, "node").count, spec.state), (3, DesiredState::Held));
    assert!(job.toml.contains("framework = \"pytorch\""));
    // One of the file is looked into.
    let runtime = "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: ClusterTrainingRuntime\nmetadata: {name: torch-distributed}\nspec:\n  \
                   mlPolicy: {numNodes: 2, torch: {numProcPerNode: auto}}\n  podGroupPolicy: {volcano: {}}\n  \
                   template: {spec: {replicatedJobs: [{name: dataset-initializer}, {name: node, template: {spec: {template: {spec: \
                   {containers: [{name: node, image: lab/r, env: [{name: A, value: b}]}]}}}}}]}}\n---\n";
    let bare = text.replace("    numNodes: 3\n    image: lab/t\n", "");
    let job = only(&format!("{runtime}{bare}"));
    let container = "spec.template.spec.replicatedJobs[1].template.spec.template.spec.containers[0].env";
    assert_eq!(fields(&job), ["spec.mlPolicy.torch", "spec.template.spec.replicatedJobs[0].name", container]);
    assert_eq!(role(&spec_of(&job), "node").count, 2);
    assert!(job.toml.contains("image = \"lab/r\"") && job.toml.contains("framework = \"pytorch\""), "{}", job.toml);
    // One of the other kind is another, whatever it is called.
    let others = runtime.replace("ClusterTrainingRuntime", "TrainingRuntime");
    let named = bare.replace("{name: torch-distributed}", "{kind: TrainingRuntime, name: torch-distributed}");
    assert_eq!(role(&spec_of(&only(&format!("{others}{named}"))), "node").count, 2);
    assert!(!only(&format!("{others}{bare}")).toml.contains("lab/r"));
    // What a runtime of the file leaves open is not said to be elsewhere.
    let open = runtime.replace("numNodes: 2, ", "").replace("image: lab/r, ", "");
    let losses = format!("{:?}", only(&format!("{open}{bare}")).losses);
    assert!(
        losses.contains("nor its runtime in this file says") && losses.contains("nor its runtime in this file names"),
        "{losses}"
    );
    assert!(!losses.contains("not part of this file"), "{losses}");
}
