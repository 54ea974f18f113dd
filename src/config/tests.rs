use super::*;

use std::time::Duration;

#[test]
fn an_installation_has_one_name_before_and_after_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("disk")).unwrap();
    std::os::unix::fs::symlink("disk", dir.path().join("data")).unwrap();
    let root = dir.path().join("data/a/b");
    let before = Paths::new(&root).unwrap();
    fs::create_dir_all(&root).unwrap();
    assert_eq!(before.root(), Paths::new(&root).unwrap().root());
    assert_eq!(before.instance(), Paths::new(&dir.path().join("disk/a/b")).unwrap().instance());
}

pub(super) fn load(text: &str) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("etc/trainyard");
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("trainyard.toml"), text).unwrap();
    Config::load(dir.path())
}

#[test]
fn an_absent_or_empty_file_means_defaults() {
    let config = load("").unwrap();
    assert_eq!(config.limits.stop_grace, Duration::from_secs(30));
    assert_eq!(config.limits.debug_keep, Duration::from_secs(7 * 24 * 3600));
    assert_eq!((config.limits.min_free, load("[limits]\nmin_free = \"0\"").unwrap().limits.min_free), (512 << 20, 0));
    assert_eq!(config.logs, LogLimits { part_size: 256 << 20, parts: 4 });
    let told = load("[logs]\nmax_size = \"1MiB\"\nparts = 2").unwrap();
    assert_eq!(told.logs, LogLimits { part_size: 1 << 20, parts: 2 });
    let second = (config.network.range.base >> 16) & 0xff;
    assert!((100..200).contains(&second), "a range of its own: {second}");
    let service = Config::load(Path::new("/")).unwrap();
    assert_eq!(service.network.range, AddressRange { base: 0x0ad5_0000, prefix: 16 });
}

#[test]
fn wrong_values_and_unknown_keys_are_told_with_their_key() {
    for (text, word) in [
        ("[limits]\ncpus = 1", "cpus"),
        ("limits = 3", "expected a table, as `[limits]` begins one"),
        ("workspaces.vision = 3", "as `[workspaces.NAME]` begins one"),
        ("[limits]\nmemory = \"x\"", "limits.memory"),
        ("[limits]\nmin_free = \"some\"", "limits.min_free"),
        ("[limits]\ndebug_keep = \"8d\"", "limits.debug_keep"),
        ("[limits]\ndebug_keep = \"0s\"", "limits.debug_keep"),
        ("[network]\nrange = \"8.8.8.0/24\"", "network.range"),
        ("[network]\nrange = \"10.0.0.0/30\"", "network.range"),
        ("[logs]\nmax_size = \"1KiB\"", "logs.max_size"),
        ("[logs]\nmax_size = \"much\"", "logs.max_size"),
        ("[logs]\nparts = 1", "logs.parts"),
        ("[logs]\nkeep = 1", "keep"),
        ("[pools.lab]\nkind = \"ftp\"\nendpoint = \"http://x\"", "kind"),
        ("[pools.lab]\nkind = \"sftp\"\nendpoint = \"ssh://x\"", "pools.lab.secret"),
        ("[pools.lab]\nkind = \"sftp\"\nendpoint = \"ssh://x\"\nsecret = \"x\"", "pools.lab.host_key"),
        ("[mount]\ndirect = true", "direct"),
        ("[pools.lab]\nkind = \"s3\"\nendpoint = \"http://x\"", "pools.lab.bucket"),
        ("[pools.lab]\nkind = \"http\"\nendpoint = \"ftp://x\"", "pools.lab.endpoint"),
        ("[pools.lab]\nkind = \"http\"\nendpoint = \"http://a:b@x\"", "pools.lab.endpoint"),
        ("[pools.\"a/b\"]\nkind = \"http\"\nendpoint = \"http://x\"", "pools.a/b"),
        ("[pools.lab]\nkind = \"http\"\nendpoint = \"http://x\"\nsecret = \"../x\"", "pools.lab.secret"),
        ("[pools.lab]\nkind = \"http\"\nendpoint = \"http://x\"\nworkspaces = [\"a b\"]", "pools.lab.workspaces"),
        ("[workspaces.vision]\nstorage = \"much\"", "workspaces.vision.storage"),
        ("[workspaces.vision]\nstorage = \"1KiB\"", "workspaces.vision.storage"),
        ("[workspaces.vision]\nstorrage = \"1GiB\"", "storrage"),
        ("[workspaces.\"a/b\"]\nstorage = \"1GiB\"", "workspaces.a/b"),
        ("[workspaces.public]\nstorage = \"1GiB\"", "workspaces.public"),
        ("[limits]\nworkspace_storage = \"0\"", "limits.workspace_storage"),
        ("[limits]\npublic_storage = \"0\"", "limits.public_storage"),
        ("[workspaces.public]\nstorage = \"1GiB\"", "public_storage"),
        ("[[listen]]\naddress = \"8443\"", "listen[0].address"),
        ("[gpu]\nmodprobe = \"bin/nvidia-modprobe\"", "gpu.modprobe"),
        ("[alerts.ops]\non = [\"failed\"]", "alerts.ops"),
        ("[alerts.ops]\non = [\"broken\"]\nurl = \"https://x\"", "alerts.ops.on"),
        ("[alerts.ops]\nurl = \"http://lab.example/hook\"", "alerts.ops.url"),
        ("[alerts.ops]\nurl = \"http://127.0.0.1:1@lab.example/\"", "alerts.ops.url"),
        ("[alerts.ops]\nurl = \"secret:../x\"", "alerts.ops.url"),
        ("[alerts.ops]\nurl = \"https://x\"\nheaders = { host = \"y\" }", "alerts.ops.headers"),
        ("[alerts.ops]\nurl = \"https://x\"\nheaders = { \"a:b\" = \"y\" }", "alerts.ops.headers"),
        ("[alerts.ops]\ncommand = [\"/bin/true\"]\nheaders = { a = \"y\" }", "alerts.ops.headers"),
        ("[alerts.ops]\ncommand = [\"page\"]", "alerts.ops.command"),
        ("[alerts.ops]\nemail = [\"a@b\\nBcc: c@d\"]", "alerts.ops.email"),
        ("[alerts.ops]\nurl = \"https://x\"\ncommand = [\"/bin/true\"]", "alerts.ops"),
        ("[[listen]]\naddress = \"0.0.0.0:80\"", "listen[0].address"),
        ("[[listen]]\naddress = \"[::]:80\"\ncertificate = \"/c\"", "listen[0].key"),
        ("[[listen]]\naddress = \"[::]:80\"\ncertificate = \"c\"\nkey = \"/k\"", "listen[0].certificate"),
    ] {
        let error = load(text).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn a_grace_beyond_the_bound_is_the_bound_and_told_by_its_key() {
    let of = |grace: &str| load(&format!("[limits]\nstop_grace = \"{grace}\"")).unwrap();
    let (most, more) = (of("1h"), of("61m"));
    let hour = Duration::from_secs(3600);
    assert_eq!((most.limits.stop_grace, more.limits.stop_grace), (hour, hour));
    assert_eq!((most.warnings.len(), more.warnings.len()), (0, 1));
    assert!(more.warnings[0].contains("limits.stop_grace is \"61m\""), "{:?}", more.warnings);
    assert!(load("[limits]\nstop_grace = \"long\"").is_err());
}

#[test]
fn storage_is_that_of_the_workspace_else_that_of_all() {
    let name = |text: &str| text.parse::<HomeName>().unwrap();
    assert_eq!(load("").unwrap().storage_of(&name("default")), None);
    let told = "[limits]\nworkspace_storage = \"1GiB\"\n[workspaces.default]\nstorage = \"500GiB\"\n\
                [workspaces.free]\nstorage = \"unlimited\"\n[workspaces.bare]\n";
    let config = load(told).unwrap();
    let of = |workspace: &str| config.storage_of(&name(workspace));
    assert_eq!(of("default"), Some(500 << 30));
    assert_eq!((of("free"), of("bare"), of("other")), (None, Some(1 << 30), Some(1 << 30)));
    assert_eq!((of("public"), of("preset")), (None, None), "they are no workspaces");
    let config = load("[limits]\npublic_storage = \"2GiB\"\npreset_storage = \"unlimited\"").unwrap();
    assert_eq!(["public", "preset", "other"].map(|home| config.storage_of(&name(home))), [Some(2 << 30), None, None]);
}

#[test]
fn what_acts_after_a_restart_only_is_told_by_its_key() {
    let config = load("[limits]\ncpu = 2\n[network]\nhost_workspaces = [\"a\"]\n[gpu]\ncdi = [\"/etc/cdi\"]").unwrap();
    let told = |text| load(text).unwrap().edited_until_restart(&config);
    let live = "[limits]\ncpu = 3\nmemory = \"1GiB\"\nstop_grace = \"1s\"\nmin_free = \"0\"\nworkspace_storage = \"1GiB\"\ndebug_keep = \"1d\"\n\
                [workspaces.a]\nstorage = \"2GiB\"\ngpu = 1\n[workspaces.a.specs.small]\ncpu = 1\nmemory = \"1GiB\"\n\
                [specs.big]\ncpu = 1\nmemory = \"1GiB\"\n[logs]\nparts = 3\n[queue]\nhalf_life = \"1d\"\n\
                [images]\nplain_http = [\"x:1\"]\n[pools.lab]\nkind = \"http\"\nendpoint = \"http://x\"\n\
                [alerts.ops]\nurl = \"https://x\"\non = [\"alarm\", \"failed\"]\n[gpu]\ncdi = [\"/etc/cdi\"]";
    assert_eq!(told(live), [""; 0]);
    let all = "[network]\nrange = \"10.9.0.0/16\"\nmasquerade = false\nresolv_conf = \"/x\"\n[mount]\ndirect = \"all\"\n\
               [[listen]]\naddress = \"127.0.0.1:1\"";
    assert_eq!(told(all), UNTIL_RESTART, "what is no longer said as well");
}

#[test]
fn what_the_file_said_is_not_given_up_because_it_is_gone_or_was_cut_short_to_nothing() {
    let root = tempfile::tempdir().unwrap();
    let paths = Paths::new(root.path()).unwrap();
    fs::create_dir_all(paths.config_dir()).unwrap();
    let write = |text: &str| fs::write(paths.config_file(), text).unwrap();
    let nothing = Config::load(root.path()).unwrap();
    assert!(nothing.load_again().is_ok(), "it was not there before");
    write("[workspaces.default]\nrunning = 1\n");
    let before = nothing.load_again().unwrap();
    for text in ["", " \n"] {
        write(text);
        let refused = before.load_again().unwrap_err().to_string();
        assert!(refused.contains("is empty or gone") && refused.contains("restart the daemon"), "{refused}");
    }
    fs::remove_file(paths.config_file()).unwrap();
    assert!(matches!(before.load_again(), Err(ConfigError::Emptied { .. })));
    write("# All is as it comes.\n");
    assert_eq!(before.load_again().unwrap().quotas, nothing.quotas, "it is meant");
}
