//! Who starts the processes of ranks.

use super::*;

#[test]
fn platforms_start_a_process_for_each_rank_and_servers_beside_each_node() {
    let line = |text: &str, at: usize| command::display(&seen(text, at).args);
    let ranks = "framework = \"horovod\"\ncommand = \"python3 t.py\"\n[roles.worker]\ncount = 2\nslots = 3\n";
    assert_eq!(line(&job("azureml", ranks), 0), "mpirun -np 6 /bin/sh -c 'python3 t.py'");
    assert_eq!(line(&job("azureml", ranks), 1), "/run/trainyard/agent");
    assert_eq!(line(&job("uai", ranks), 0).split(" --").next(), Some("/bin/sh -c 'python3 t.py"), "nobody says so");
    let own = ranks.replace("python3", "mpirun -np 2 python3");
    assert_eq!(line(&job("azureml", &own), 0), "/bin/sh -c 'mpirun -np 2 python3 t.py'", "it does so itself");
    // So does what starts a shell, what a variable holds, and what stands in quotes.
    for command in
        ["mpirun -np 2 bash -c 'python3 t.py'", "L=\"mpirun -np 2\"; $L python3 t.py", "su a -c \"mpirun -np 2 t\""]
    {
        let own = ranks.replace("\"python3 t.py\"", &format!("{command:?}"));
        assert!(own.contains("mpirun") && line(&job("azureml", &own), 0).starts_with("/bin/sh -c"), "{command}");
    }
    // An option's word is none.
    let noted = ranks.replace("python3 t.py", "python3 t.py --launcher mpirun --by=mpirun");
    assert!(line(&job("azureml", &noted), 0).starts_with("mpirun -np 6"));
    let entry = ranks.replace("command = \"python3 t.py\"", "params.PROGRAM = \"t.py\"");
    let entry = |contract: &str, name: &str| job(contract, &entry.replace("PROGRAM", name));
    assert_eq!(line(&entry("sagemaker", "sagemaker_program"), 0), "mpirun -np 6 python3 t.py");
    assert_eq!(line(&entry("tione/1", "ti_program"), 0), "mpirun -np 6 python3 -m mpi4py t.py");
    let more = "[roles.launcher]\n[roles.worker]\nslots = 1\n[roles.monitor]\ncommand = \"python3 mon.py\"\n";
    let one = ranks.replace("[roles.worker]\ncount = 2\nslots = 3\n", more);
    assert_eq!(
        line(&job("azureml", &one), 0),
        "mpirun -np 1 /bin/sh -c 'python3 t.py'",
        "one rank is the worker's, too"
    );
    assert_eq!(line(&job("azureml", &one), 2), "/bin/sh -c 'python3 mon.py'", "and nobody else's");
    let torch = "framework = \"pytorch\"\ncommand = \"python3 t.py\"\nresources.gpu = 4\n";
    let argument = torch.replace("t.py", "t.py --strategy deepspeed --deepspeed ds.json");
    assert!(
        line(&job("azureml", &argument), 0).starts_with("python3 -m torch.distributed.run"),
        "an argument is no program"
    );
    let launched = torch.replace("python3 t.py", "cd x && /usr/bin/torchrun t.py");
    assert!(line(&job("azureml", &launched), 0).starts_with("/bin/sh -c"));
    assert_eq!(
        line(&job("azureml", torch), 0),
        "python3 -m torch.distributed.run --no-python /bin/sh -c 'python3 t.py'"
    );
    assert_eq!(line(&job("azureml", &torch.replace("gpu = 4", "gpu = 1")), 0), "/bin/sh -c 'python3 t.py'");
    let by_variable = seen("contract = \"sagemaker\"\nenv.SAGEMAKER_PROGRAM = \"t.py\"", 0);
    assert_eq!(by_variable.args, ["python3", "t.py"]);
    assert_variables(&by_variable, &[("SM_USER_ENTRY_POINT", "t.py")]);

    let nodes = |framework: &str| format!("framework = \"{framework}\"\ncommand = \"x\"\n[roles.worker]\ncount = 2\n");
    let starts = |contract: &str, framework: &str, at: usize| {
        let view = seen(&job(contract, &nodes(framework)), at);
        let there = view.files.iter().find(|file| file.path == "/run/trainyard/servers");
        assert_eq!(view.args[0] == "/run/trainyard/servers", there.is_some());
        there.map(|file| file.content.clone()).unwrap_or_default()
    };
    for contract in ["sagemaker", "uai"] {
        assert!(starts(contract, "tensorflow", 1).contains("join()\n' 1 &\nexec \"$@\"\n"), "{contract}");
    }
    assert_ne!(starts("tione/1", "tensorflow", 0), "");
    assert_eq!(starts("tione/1", "tensorflow", 1), "", "one for all");
    assert_eq!(starts("tione", "tensorflow", 0), "");
    assert!(starts("tione/1", "mxnet", 0).contains("DMLC_ROLE=scheduler python3"));
    let second = starts("tione/1", "mxnet", 1);
    assert!(second.contains("DMLC_ROLE=server python3") && !second.contains("scheduler"), "{second}");
    let worker = seen(&job("tione/1", &nodes("mxnet")), 1);
    assert_variables(&worker, &[("DMLC_NUM_SERVER", "2"), ("DMLC_PS_ROOT_URI", "10.213.0.2"), ("DMLC_ROLE", "worker")]);
    assert_eq!(starts("sagemaker", "pytorch", 0), "");
}

#[test]
fn a_service_is_given_no_arguments_of_a_platform() {
    let service = "command = \"python3 t.py\"\n[params]\na = 1\n[roles.worker]\n[services.nb]\ncommand = \"jupyter lab\"\nport = 8888\n";
    for contract in ["native", "modelarts", "google", "sagemaker"] {
        let text = job(contract, service);
        assert_ne!(arguments(&seen(&text, 0)), [""; 0], "{contract}");
        assert_eq!(seen(&text, 1).args, ["/bin/sh", "-c", "jupyter lab"], "{contract}");
    }
}

#[test]
fn tasks_of_paddle_that_are_one_process_are_told_what_its_launcher_would_tell_them() {
    let of = |rest: &str| {
        let view = seen(&format!("framework = \"paddle\"\ncommand = \"python3 t.py\"\n{rest}"), 0);
        ["PADDLE_DISTRI_BACKEND", "FLAGS_selected_gpus"].map(|name| variable(&view, name))
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(of("roles.w.count = 2"), [some("gloo"), None]);
    assert_eq!(of("roles.w.count = 2\nresources.gpu = 1"), [None, some("0")]);
    assert_eq!(of("roles.w.count = 2\nenv.PADDLE_DISTRI_BACKEND = \"heter\""), [some("heter"), None]);
    for rest in [
        "roles.w.count = 2\nresources.gpu = 2",
        "roles.w.count = 1",
        "strategy = \"ps\"\nroles.w.count = 2",
        "roles.w.count = 2\nroles.ps.count = 1",
    ] {
        assert_eq!(of(rest), [None, None], "{rest}");
    }
}

#[test]
fn ranks_find_parameters_where_they_run_though_what_waits_for_them_takes_no_arguments() {
    let more =
        "command = \"python3 t.py\"\n[params]\nlr = 0.1\nbatch-size = 32\n[roles.worker]\ncount = 2\nparams.own = 1\n";
    for strategy in
        ["framework = \"mpi\"", "framework = \"horovod\"", "framework = \"deepspeed\"\nstrategy = \"launcher\""]
    {
        let rank = |contract: &str| seen(&job(contract, &format!("{strategy}\n{more}")), 1);
        for contract in
            ["native", "mpi", "sagemaker", "tione", "tione/1", "pai", "azureml", "kubeflow", "google", "uai"]
        {
            assert_eq!(rank(contract).args, ["/run/trainyard/agent"], "{contract}");
        }
        let amazon = rank("sagemaker");
        assert_variables(
            &amazon,
            &[
                ("SM_HPS", r#"{"batch-size":32,"lr":0.1,"own":1}"#),
                ("SM_USER_ARGS", r#"["--batch-size","32","--lr","0.1","--own","1"]"#),
                ("SM_USER_ENTRY_POINT", "t.py"),
                ("SM_HP_BATCH-SIZE", "32"),
                ("SM_HP_OWN", "1"),
            ],
        );
        let hyperparameters = r#"{"lr":"0.1","batch-size":"32","own":"1"}"#;
        let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        for contract in ["sagemaker", "tione", "tione/1"] {
            let file = file(&rank(contract), "/opt/ml/input/config/hyperparameters.json");
            assert_eq!(parsed(&file), parsed(hyperparameters), "{contract}");
        }
        let first = rank("tione/1");
        assert_eq!(parsed(&variable(&first, "TM_HPS").unwrap()), json!({"lr": 0.1, "batch-size": 32, "own": 1}));
        assert_variables(&first, &[("TM_USER_ENTRY_POINT", "t.py")]);
        let pai = rank("pai");
        assert_eq!(parsed(&variable(&pai, "PAI_HPS").unwrap()), parsed(hyperparameters));
        assert_eq!(parsed(&file(&pai, "/ml/input/config/hyperparameters.json")), parsed(hyperparameters));
        assert_variables(&rank("azureml"), &[("AZUREML_PARAMETER_lr", "0.1"), ("AZUREML_PARAMETER_own", "1")]);
    }
    // The script that a parameter names is every rank's.
    let named = "framework = \"mpi\"\nparams.sagemaker_program = \"train.py\"\nroles.worker.count = 2\n";
    assert_variables(&seen(&job("sagemaker", named), 1), &[("SM_USER_ENTRY_POINT", "train.py")]);
}
