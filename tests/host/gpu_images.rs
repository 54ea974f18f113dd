//! Cards in images: a made-up driver of two libraries and a program, which tells which of them its loader has found.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use super::gpus::{Nodes, cards_at, list};
use super::nvml::{FakeNvml, uuid};
use super::support::images::{debian, run, small};
use super::support::{Instance, has_tools, wait_for};

const VERSION: &str = "580.95.05";
const MAKERS: [&str; 4] = ["mmdebstrap", "umoci", "busybox", "cc"];
/// As Debian calls the folder of its libraries.
#[cfg(target_arch = "x86_64")]
const FOLDER: &str = "/usr/lib/x86_64-linux-gnu";
#[cfg(target_arch = "aarch64")]
const FOLDER: &str = "/usr/lib/aarch64-linux-gnu";

/// A machine with a driver in a folder of its own, and cards with these minor numbers.
struct Machine {
    instance: Instance,
    _nodes: Nodes,
}

impl Machine {
    fn start(test: &str, minors: &[u64], gpu: &str) -> Option<Self> {
        Self::start_with(test, minors, gpu, |_, _| String::new())
    }

    /// What `more` says of the cards, before the daemon starts.
    fn start_with(
        test: &str,
        minors: &[u64],
        gpu: &str,
        more: impl Fn(&mut Instance, &mut Nodes) -> String,
    ) -> Option<Self> {
        if !has_tools(test, &MAKERS) {
            return None;
        }
        let mut instance = Instance::prepare(test, "")?;
        let driver = instance.root().join("driver");
        make_driver(&driver);
        let fake = FakeNvml::without_driver(&driver.join("lib64"));
        let mut nodes = Nodes::make(minors);
        let more = more(&mut instance, &mut nodes);
        fake.shows(&cards_at(minors, |_| more.clone()));
        fake.install();
        let gpu = gpu.replace("ROOT", &instance.root().display().to_string());
        let config = format!(
            "[limits]\ncpu = 16\nmemory = \"16GiB\"\nstop_grace = \"2s\"\n[network]\nrange = \"10.213.0.0/16\"\n\
             [gpu]\nlibrary = \"{}\"\nmodprobe = \"\"\n{gpu}\n",
            fake.library().display()
        );
        fs::write(instance.root().join("etc/trainyard/trainyard.toml"), config).unwrap();
        instance.start_daemon(&[]);
        instance.wait_ready();
        wait_for("the cards", || (list(&instance)["gpus"].as_array()?.len() == minors.len()).then_some(()));
        Some(Self { instance, _nodes: nodes })
    }

    /// Brought in before a job asks for it, which may take longer than jobs do.
    fn debian(&self) -> String {
        self.instance.ok(&["image", "import", "--name", "debian:py", &format!("oci:{}:py", debian().display())]);
        "debian:py".to_owned()
    }

    /// What a job with one card says that runs `script` in `image`.
    fn said(&self, name: &str, image: &str, more: &str, script: &str) -> String {
        let text = format!("image = {image:?}\nresources.gpu = 1\ncommand = {script:?}\n{more}");
        let report = self.instance.run_job(name, &text);
        assert_eq!(report["state"], "succeeded", "{report:#}\n{}", self.instance.log(name, "main-0"));
        self.instance.log(name, "main-0")
    }

    /// Why a job with one card does not run in `image`.
    fn refused(&self, name: &str, image: &str) -> String {
        self.instance.drop_job(name, &format!("image = {image:?}\nresources.gpu = 1\ncommand = \"true\"\n"));
        let report = self.instance.wait_end(name, 1);
        assert_eq!(report["state"], "failed", "{report:#}");
        report["reason"].as_str().unwrap().to_owned()
    }

    /// What the doctor says of the driver's files: the level, and what was found.
    fn doctor(&self) -> (String, String) {
        let told = self.instance.cli(&["doctor", "driver-files", "--json"]).stdout;
        let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
        let text = |key: &str| told[key].as_str().unwrap().to_owned();
        (text("level"), text("found"))
    }
}

/// `lib64/libcuda.so.VERSION` with its links, and `bin/nvidia-smi`, which loads it and says whence.
fn make_driver(place: &Path) {
    let (lib, bin) = (place.join("lib64"), place.join("bin"));
    for folder in [&lib, &bin] {
        fs::create_dir_all(folder).unwrap();
    }
    let library = "#include <pthread.h>\nstatic void *idle(void *x) { return x; }\n\
                   int version(void) { pthread_t t; return pthread_create(&t, 0, idle, 0) ? 0 : 58095; }\n";
    let real = lib.join(format!("libcuda.so.{VERSION}"));
    compile(place, library, &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"], &real);
    symlink(real.file_name().unwrap(), lib.join("libcuda.so.1")).unwrap();
    symlink("libcuda.so.1", lib.join("libcuda.so")).unwrap();
    let program = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n\
                   int main(int n, char **args) {\n\
                   void *lib = dlopen(n > 1 ? args[1] : \"libcuda.so.1\", RTLD_NOW);\n\
                   if (!lib) { puts(dlerror()); return 1; }\n\
                   int (*version)(void) = (int (*)(void))dlsym(lib, \"version\");\n\
                   Dl_info info; dladdr((void *)version, &info);\n\
                   printf(\"%d from %s\\n\", version(), info.dli_fname); return 0; }\n";
    compile(place, program, &[], &bin.join("nvidia-smi"));
}

fn compile(place: &Path, source: &str, options: &[&str], target: &Path) {
    let file = place.join("source.c");
    fs::write(&file, source).unwrap();
    let (file, target) = (file.display().to_string(), target.display().to_string());
    run("cc", &[options, &["-o", &target, &file]].concat());
}

#[test]
fn an_image_has_the_driver_of_its_cards_whatever_a_program_makes_of_its_variables() {
    const TEST: &str = "an_image_has_the_driver_of_its_cards";
    let Some(machine) = Machine::start(TEST, &[331, 333], "cdi = []") else { return };
    let image = machine.debian();
    let script = "nvidia-smi; env -i /usr/bin/nvidia-smi; env -i /usr/bin/nvidia-smi libcuda.so; \
                  ldconfig -p | grep libcuda; ldconfig; env -i /usr/bin/nvidia-smi; \
                  ls /dev | grep nvidia; grep libcuda /proc/mounts; env | grep NVIDIA_V; \
                  (echo x > /usr/bin/nvidia-smi) 2>&1; rm /usr/bin/nvidia-smi 2>&1";
    let found = machine.said("plain", &image, "", &format!("{script}; true"));
    // `ldconfig` of the image finds them by another name of the folder.
    let own = |line: &&str| line.starts_with("58095 from /") && line.ends_with("-linux-gnu/libcuda.so.1");
    assert_eq!(found.lines().filter(own).count(), 3, "{found}");
    assert!(found.contains(&format!("58095 from {FOLDER}/libcuda.so\n")), "{found}");
    for name in ["libcuda.so.1", "libcuda.so"] {
        let listed = |line: &str| {
            line.trim().starts_with(&format!("{name} (libc6,")) && line.ends_with(&format!("=> {FOLDER}/{name}"))
        };
        assert!(found.lines().any(listed), "{name}: {found}");
    }
    assert!(found.contains("nvidia331\n") && !found.contains("nvidia333"), "{found}");
    assert!(found.contains(&format!("NVIDIA_VISIBLE_DEVICES={}\n", uuid(0))), "{found}");
    let mounted = found.lines().find(|line| line.contains(&format!("{FOLDER}/libcuda.so.{VERSION} "))).unwrap();
    let options: Vec<&str> = mounted.split(' ').nth(3).unwrap().split(',').collect();
    assert!(["ro", "nosuid", "nodev"].iter().all(|option| options.contains(option)), "{mounted}");
    assert!(found.contains("Read-only file system") && found.contains("busy"), "{found}");

    // A job gets either of the cards.
    let listing = format!(
        "ls -d /dev/nvidia33? {FOLDER}/libcuda.so.1 /usr/bin/nvidia-smi 2>/dev/null | sed 's/33[13]/CARD/'; true"
    );
    let of = |name: &str, env: &str| machine.said(name, &image, &format!("[env]\n{env}\n"), &listing);
    let (node, library, program) = ("/dev/nvidiaCARD\n", format!("{FOLDER}/libcuda.so.1\n"), "/usr/bin/nvidia-smi\n");
    assert_eq!(of("compute", "NVIDIA_DRIVER_CAPABILITIES = \"compute\""), [node, &library].concat());
    assert_eq!(of("utility", "NVIDIA_DRIVER_CAPABILITIES = \"utility\""), [node, program].concat());
    assert_eq!(of("others", "NVIDIA_VISIBLE_DEVICES = \"all\""), [node, program, &library].concat());
    assert_eq!(of("driver", "NVIDIA_VISIBLE_DEVICES = \"none\""), [program, &library].concat());
    assert_eq!(of("nothing", "NVIDIA_VISIBLE_DEVICES = \"void\""), "");
    let found = machine.said("nobody", &image, "user = \"nobody\"\n", "id -u; env -i /usr/bin/nvidia-smi");
    assert_eq!(found, format!("65534\n58095 from {FOLDER}/libcuda.so.1\n"));
    // Before it runs.
    let file = machine.instance.root().join("wrong.toml");
    let wrong = "resources.gpu = 1\ncommand = \"true\"\n[env]\nNVIDIA_DRIVER_CAPABILITIES = \"compute,vidio\"\n";
    fs::write(&file, format!("image = {image:?}\n{wrong}")).unwrap();
    let checked = machine.instance.cli(&["check", &file.display().to_string()]);
    let said = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
    assert!(!checked.status.success() && said.contains("NVIDIA_DRIVER_CAPABILITIES has \"vidio\""), "{said}");
    machine.instance.shutdown();
}

#[test]
fn an_image_s_links_lead_the_driver_s_files_to_no_place_of_the_machine() {
    const TEST: &str = "an_image_s_links_lead_the_driver_s_files_nowhere";
    let Some(machine) = Machine::start(TEST, &[335], "cdi = []") else { return };
    // A task has a /tmp of its own.
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    let kept = outside.path().join("kept");
    fs::write(&kept, "kept").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let image = small(&dir.path().join("links"), &[], |root| {
        for folder in ["usr/bin", "etc", "usr/lib"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        // It leads to a place of the image, which has the same name.
        fs::create_dir_all(root.join(outside.path().strip_prefix("/").unwrap())).unwrap();
        symlink(outside.path(), root.join(FOLDER.trim_start_matches('/'))).unwrap();
        symlink(&kept, root.join("etc/ld.so.cache")).unwrap();
        symlink(format!("/../../../../..{}", kept.display()), root.join("usr/bin/nvidia-smi")).unwrap();
    });
    // busybox brings no libraries: it has the driver's all the same, and the node.
    let script = "PATH=/bin; busybox ls /dev | busybox grep nvidia335; busybox ls -l /usr/bin/nvidia-smi | busybox cut -c1-10; \
                  busybox head -c 20 /etc/ld.so.cache";
    let command =
        format!("image = {image:?}\nresources.gpu = 1\ncommand = [\"/bin/busybox\", \"sh\", \"-c\", {script:?}]\n");
    let report = machine.instance.run_job("links", &command);
    assert_eq!(report["state"], "succeeded", "{report:#}");
    let found = machine.instance.log("links", "main-0");
    assert_eq!(found, "nvidia335\n-rwxr-xr-x\nglibc-ld.so.cache1.1\n");
    assert_eq!(fs::read_to_string(&kept).unwrap(), "kept");
    let left: Vec<PathBuf> = fs::read_dir(outside.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [kept]);

    let blocked = small(&dir.path().join("blocked"), &[], |root| {
        fs::create_dir_all(root.join("usr/bin/nvidia-smi/in the way")).unwrap();
    });
    let why = machine.refused("blocked", &blocked);
    assert!(why.contains("cannot mount /usr/bin/nvidia-smi for the task"), "{why}");
    machine.instance.shutdown();
}

#[test]
fn an_image_whose_libraries_do_not_go_with_the_driver_is_refused_by_name() {
    const TEST: &str = "an_image_whose_libraries_do_not_go_with_the_driver";
    let Some(machine) = Machine::start(TEST, &[337], "cdi = []") else { return };
    let dir = tempfile::tempdir().unwrap();
    let loader = format!("lib/ld-musl-{}.so.1", std::env::consts::ARCH);
    let musl = small(&dir.path().join("musl"), &[], |root| {
        fs::create_dir_all(root.join("lib")).unwrap();
        fs::write(root.join(&loader), "").unwrap();
    });
    let why = machine.refused("musl", &musl);
    assert!(why.contains(&format!("image {musl} is built upon musl (/{loader})")), "{why}");
    let report = machine.instance.run_job(
        "without",
        &format!("image = {musl:?}\nresources.gpu = 1\ncommand = [\"/bin/busybox\", \"true\"]\nenv.NVIDIA_VISIBLE_DEVICES = \"void\"\n"),
    );
    assert_eq!(report["state"], "succeeded", "{report:#}");
    let old = small(&dir.path().join("old"), &[], |root| {
        fs::create_dir_all(root.join("usr/lib64")).unwrap();
        let script = dir.path().join("versions");
        fs::write(&script, "GLIBC_2.2.5 { global: old; };\nGLIBC_2.17 { global: newer; } GLIBC_2.2.5;\n").unwrap();
        let versions = format!("-Wl,--version-script={}", script.display());
        let options = ["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libc.so.6", &versions];
        compile(dir.path(), "void old(void) {}\nvoid newer(void) {}\n", &options, &root.join("usr/lib64/libc.so.6"));
    });
    let why = machine.refused("old", &old);
    assert!(why.contains(&format!("image {old} has glibc 2.17, and /")), "{why}");
    assert!(why.contains(&format!("libcuda.so.{VERSION} of this machine's driver needs 2.")), "{why}");
    // Where no library is missed, the image is not to blame: the driver is.
    fs::remove_file(machine.instance.root().join("driver/lib64").join(format!("libcuda.so.{VERSION}"))).unwrap();
    let why = machine.refused("missing", &machine.debian());
    let missing = format!("the driver's libcuda.so.{VERSION} is in none of ");
    assert!(why.contains(&missing), "{why}");
    let (level, found) = machine.doctor();
    assert!(level == "failed" && found.contains(&missing), "{level}: {found}");
    machine.instance.shutdown();
}

#[test]
fn a_machine_s_description_for_containers_is_followed_as_far_as_the_lease_goes() {
    const TEST: &str = "a_machine_s_description_for_containers_is_followed";
    let minors = [341, 343];
    let Some(mut machine) = Machine::start(TEST, &minors, "cdi = [\"ROOT/cdi\"]") else { return };
    let root = machine.instance.root().to_owned();
    fs::create_dir_all(root.join("cdi")).unwrap();
    let device = |minor: u64| {
        format!(
            r#"{{"name": "{}", "containerEdits": {{"deviceNodes": [{{"path": "/dev/nvidia{minor}"}}],
                "env": ["CARD_OF_DESCRIPTION={minor}"]}}}}"#,
            minor - 341
        )
    };
    let lib = root.join("driver/lib64").join(format!("libcuda.so.{VERSION}")).display().to_string();
    let program = root.join("driver/bin/nvidia-smi").display().to_string();
    let witness = root.join("a-hook-was-run").display().to_string();
    let description = format!(
        r#"{{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [{}, {}], "containerEdits": {{
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/opt/driver"],
            "deviceNodes": [{{"path": "/dev/nvidiactl"}}, {{"path": "/dev/nvidia343"}}],
            "mounts": [{{"hostPath": "{lib}", "containerPath": "/opt/driver/libcuda.so.{VERSION}", "options": ["rw"]}},
                       {{"hostPath": "{program}", "containerPath": "/usr/bin/nvidia-smi"}}],
            "hooks": [
                {{"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk", "args":
                  ["nvidia-ctk", "hook", "create-symlinks", "--link", "libcuda.so.1::/opt/driver/libcuda.so"]}},
                {{"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk", "args":
                  ["nvidia-ctk", "hook", "update-ldcache", "--folder", "/opt/driver"]}},
                {{"hookName": "createContainer", "path": "/usr/bin/touch", "args": ["touch", "{witness}"]}}]
        }}}}"#,
        device(341),
        device(343)
    );
    fs::write(root.join("cdi/nvidia.json"), description).unwrap();
    let image = machine.debian();
    let script = "env -i /usr/bin/nvidia-smi; env -i /usr/bin/nvidia-smi libcuda.so; ldconfig; env -i /usr/bin/nvidia-smi; ls /dev | grep nvidia3; env | grep -E 'NVIDIA_V|DESCR|CTK'; \
                  (echo x > /opt/driver/libcuda.so) 2>&1; true";
    let found = machine.said("described", &image, "", script);
    for wanted in [
        "58095 from /opt/driver/libcuda.so.1\n".to_owned(),
        "58095 from /opt/driver/libcuda.so\n".to_owned(),
        "nvidia341\n".to_owned(),
        "CARD_OF_DESCRIPTION=341\n".to_owned(),
        "NVIDIA_CTK_LIBCUDA_DIR=/opt/driver\n".to_owned(),
        format!("NVIDIA_VISIBLE_DEVICES={}\n", uuid(0)),
        "Read-only file system".to_owned(),
    ] {
        assert!(found.contains(&wanted), "{wanted:?} is missing in {found}");
    }
    let own = found.matches("58095 from /opt/driver/libcuda.so.1\n");
    assert_eq!(own.count(), 2, "also after the task's own ldconfig: {found}");
    assert!(!found.contains("nvidia343") && !found.contains("=343"), "{found}");
    let told = machine.instance.wait_for_log("the hook touch");
    assert!(told.contains("is not run"), "{told}");
    assert!(fs::metadata(&witness).is_err(), "no hook is run");
    let (level, found) = machine.doctor();
    assert!(level == "warning" && found.contains("the hook touch"), "{level}: {found}");
    fs::write(root.join("cdi/other.yaml"), "cdiVersion: [").unwrap();
    let (level, found) = machine.doctor();
    assert!(level == "warning" && found.contains("cdi/other.yaml is of no use: "), "{level}: {found}");
    fs::remove_file(root.join("cdi/other.yaml")).unwrap();
    // One of another driver is not followed, but told of.
    let old = fs::read_to_string(root.join("cdi/nvidia.json")).unwrap().replace(VERSION, "111.22.33");
    fs::write(root.join("cdi/nvidia.json"), old).unwrap();
    let found = machine.said("old", &image, "", script);
    assert!(found.contains(&format!("58095 from {FOLDER}/libcuda.so.1\n")), "{found}");
    machine.instance.wait_for_log("`nvidia-ctk cdi generate` makes it anew");
    let (level, found) = machine.doctor();
    assert!(level == "warning" && found.contains("the driver's files are looked for without it"), "{level}: {found}");
    fs::remove_file(root.join("cdi/nvidia.json")).unwrap();
    let (level, found) = machine.doctor();
    let shown = format!("driver {VERSION}: images are shown ");
    assert!(level == "ok" && found.starts_with(&shown), "{level}: {found}");
    assert_eq!(fs::metadata(root.join("driver/bin/nvidia-smi")).unwrap().uid(), 0);
    machine.instance.shutdown();
}

#[test]
fn a_slice_in_an_image_has_what_the_description_says_of_it_and_its_own_devices() {
    const TEST: &str = "a_slice_in_an_image";
    let slice = |name: char, gpu_instance: u32| {
        format!(
            "{{ uuid = \"MIG-{name}\", name = \"NVIDIA H100 80GB HBM3 MIG 1g.10gb\", memory = 10737418240, \
             gpu_instance = {gpu_instance} }}"
        )
    };
    let started = Machine::start_with(TEST, &[347], "cdi = [\"ROOT/cdi\"]", |instance, nodes| {
        nodes.add_slices(instance, 347, &[(7, 60_347), (9, 60_357)]);
        format!("mig = [{}, {}]", slice('a', 7), slice('b', 9))
    });
    let Some(machine) = started else { return };
    let root = machine.instance.root().to_owned();
    fs::create_dir_all(root.join("cdi")).unwrap();
    let device = |name: &str, caps: [u32; 2]| {
        let nodes = caps.map(|number| format!(r#"{{"path": "/dev/nvidia-caps/nvidia-cap{number}"}}"#)).join(", ");
        format!(
            r#"{{"name": "{name}", "containerEdits": {{"deviceNodes": [{{"path": "/dev/nvidia347"}}, {nodes}],
                "env": ["SLICE_OF_DESCRIPTION={name}"]}}}}"#
        )
    };
    let program = root.join("driver/bin/nvidia-smi").display().to_string();
    let description = format!(
        r#"{{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{}, {}, {}], "containerEdits": {{
            "env": ["NVIDIA_VISIBLE_DEVICES=void"], "deviceNodes": [{{"path": "/dev/nvidiactl"}}],
            "mounts": [{{"hostPath": "{program}", "containerPath": "/usr/bin/nvidia-smi"}}]}}}}"#,
        device("all", [60_347, 60_357]),
        device("MIG-b", [60_357, 60_358]),
        device("MIG-a", [60_347, 60_348])
    );
    fs::write(root.join("cdi/nvidia.json"), description).unwrap();
    let image = machine.debian();
    let script = "ls /dev/nvidia-caps /dev | grep nvidia; ls /usr/bin/nvidia-smi; env | grep -E 'NVIDIA_V|SLICE'";
    let text = format!("image = {image:?}\nresources.mig = \"1g.10gb\"\ncommand = {script:?}\n");
    let report = machine.instance.run_job("slice", &text);
    let found = machine.instance.log("slice", "main-0");
    assert_eq!(report["state"], "succeeded", "{report:#}\n{found}");
    let has = |line: &str| found.lines().any(|found| found == line);
    for line in ["nvidia-cap60347", "nvidia-cap60348", "nvidia347", "/usr/bin/nvidia-smi", "SLICE_OF_DESCRIPTION=MIG-a"]
    {
        assert!(has(line), "{line} is missing in {found}");
    }
    assert!(has("NVIDIA_VISIBLE_DEVICES=MIG-a") && !found.contains("cap6035") && !found.contains("MIG-b"), "{found}");
    machine.instance.shutdown();
}
