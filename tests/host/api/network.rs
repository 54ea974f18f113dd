//! The API over the network: tokens, and TLS.

use super::*;

/// Runs Python where the daemon is, and reads what it prints as JSON.
fn python(instance: &Instance, script: &str, arguments: &[&str]) -> Value {
    let mut all = vec!["-c", script];
    all.extend(arguments);
    let said = in_network(instance.network_holder(), "/usr/bin/python3", &all);
    serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"))
}

/// Arguments: a certificate to trust, or none for plain http; port, token, then methods and paths in turn.
const ASK: &str = r#"
import http.client, json, ssl, sys
trust, port, token, *asked = sys.argv[1:]
out = []
for method, path in zip(asked[::2], asked[1::2]):
    if trust:
        context = ssl.create_default_context(cafile=trust)
        connection = http.client.HTTPSConnection("localhost", int(port), timeout=30, context=context)
    else:
        connection = http.client.HTTPConnection("localhost", int(port), timeout=30)
    connection.request(method, path, headers={"Authorization": "Bearer " + token} if token else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    out.append([answer.status, json.loads(body) if body.startswith(("{", "[")) else body])
print(json.dumps(out))
"#;

/// Arguments: port, token. Follows, tells that it does, and how the stream has ended.
const FOLLOW: &str = r#"
import http.client, sys
connection = http.client.HTTPConnection("localhost", int(sys.argv[1]), timeout=50)
connection.request("GET", "/v1/events?follow=1", headers={"Authorization": "Bearer " + sys.argv[2]})
answer = connection.getresponse()
print(answer.status, answer.readline(), flush=True)
try:
    while answer.readline(): pass
except (http.client.IncompleteRead, ConnectionError):
    pass
print("ended", flush=True)
"#;

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A certificate for localhost.
pub(crate) fn certify(directory: &std::path::Path, serial: &str, is_authority: &str) {
    let (key, certificate) = (directory.join("key.pem"), directory.join("cert.pem"));
    let [key_text, certificate_text] = [&key, &certificate].map(|path| path.display().to_string());
    run(
        "openssl",
        &[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-addext",
            &format!("basicConstraints=critical,CA:{is_authority}"),
            "-set_serial",
            serial,
            "-keyout",
            &key_text,
            "-out",
            &certificate_text,
        ],
    );
}

#[test]
fn tokens_open_what_their_user_may_over_tls_until_their_file_goes() {
    let test = "tokens_open_what_their_user_may_over_tls_until_their_file_goes";
    if !has_tools(test, &["openssl"]) {
        return;
    }
    let Some(mut instance) = Instance::prepare(test, "") else { return };
    let tls = instance.root().join("etc/trainyard");
    certify(&tls, "1", "TRUE");
    let config = format!(
        "[limits]\ncpu = 4\nmemory = \"4GiB\"\n[[listen]]\naddress = \"127.0.0.1:8443\"\ncertificate = \"{0}/cert.pem\"\nkey = \
         \"{0}/key.pem\"\n[[listen]]\naddress = \"127.0.0.1:8080\"\n",
        tls.display()
    );
    fs::write(tls.join("trainyard.toml"), config).unwrap();
    instance.start_daemon(&[]);
    in_network(instance.network_holder(), "ip", &["link", "set", "lo", "up"]);
    instance.wait_ready();
    open_workspace(&instance, "open");
    open_workspace(&instance, "other");
    ask_as(&instance, NOBODY, "PUT", "/v1/jobs/open/theirs/file", HELD.as_bytes());
    instance.drop_job("rooted", HELD);
    instance.wait_state("rooted", "held");

    let new = |arguments: &[&str]| instance.ok(&[&["token", "new"], arguments].concat()).trim().to_owned();
    let reader = new(&["reader", "--user", "65534"]);
    let changer = new(&["changer", "--user", "65534", "--scope", "jobs", "--workspace", "other"]);
    let admin = new(&["admin", "--scope", "admin"]);
    let numbers = new(&["numbers", "--scope", "metrics"]);
    let trust = tls.join("cert.pem").display().to_string();
    let ask = |token: &str, asked: &[&str]| python(&instance, ASK, &[&[trust.as_str(), "8443", token], asked].concat());
    // Nobody without a token, but for what tells nothing.
    let answers = ask("", &["GET", "/healthz", "GET", "/v1/jobs", "GET", "/metrics"]);
    let statuses = |answers: &Value| {
        answers.as_array().unwrap().iter().map(|answer| answer[0].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(statuses(&answers), [200, 401, 401]);
    // A token sees what its user sees by the socket, and does what its scope says.
    let answers = ask(
        &reader,
        &[
            "GET",
            "/v1/jobs",
            "GET",
            "/v1/jobs/default/rooted",
            "POST",
            "/v1/jobs/open/theirs/rerun",
            "GET",
            "/metrics",
            "GET",
            "/v1/tokens",
        ],
    );
    assert_eq!(statuses(&answers), [200, 200, 403, 403, 403], "{answers}");
    assert_eq!((&answers[0][1]["total"], &answers[1][1]["seen"]), (&json!(2), &json!("told")), "{answers}");
    assert_eq!(answers[0][1]["jobs"].as_array().unwrap().iter().filter(|job| job["job"] == "theirs").count(), 1);
    let answers = ask(&changer, &["GET", "/v1/jobs", "POST", "/v1/jobs/open/theirs/stop", "GET", "/v1/datasets"]);
    assert_eq!(statuses(&answers), [200, 403, 403], "it is for workspace other: {answers}");
    assert_eq!(answers[0][1]["total"], 0);
    assert_eq!(statuses(&ask(&admin, &["GET", "/metrics", "GET", "/v1/jobs/default/rooted"])), [200, 200]);
    assert_eq!(statuses(&ask(&numbers, &["GET", "/metrics", "GET", "/v1/jobs"])), [200, 403]);
    let wrong = format!("{}0", &reader[..reader.len() - 1]);
    let wrong = if wrong == reader { format!("{}1", &reader[..reader.len() - 1]) } else { wrong };
    assert_eq!(statuses(&ask(&wrong, &["GET", "/v1/jobs"])), [401]);
    assert_eq!(
        statuses(&python(&instance, ASK, &["", "8080", &reader, "GET", "/v1/jobs"])),
        [200],
        "plain on the loopback"
    );

    // A new certificate is used without a restart, by whoever trusts that one alone.
    certify(&tls, "2", "TRUE");
    assert_eq!(statuses(&ask(&reader, &["GET", "/v1/jobs"])), [200]);

    // Whoever is connected is cut off when the file goes.
    let mut follower = Command::new("nsenter")
        .arg(format!("--net=/proc/{}/ns/net", instance.network_holder()))
        .args(["/usr/bin/python3", "-c", FOLLOW, "8080", &reader])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(follower.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("200 "), "{line}");
    let begun = Instant::now();
    fs::remove_file(tls.join("tokens/65534.reader.toml")).unwrap();
    line.clear();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "ended\n");
    assert!(begun.elapsed() < PATIENCE);
    follower.wait().unwrap();
    assert_eq!(statuses(&ask(&reader, &["GET", "/v1/jobs"])), [401]);

    // A secret is nowhere but with its owner.
    let secrets = [&reader, &changer, &admin, &numbers].map(|token| token.rsplit('_').next().unwrap().to_owned());
    let listed = instance.ok(&["token", "ls", "--json"]);
    let kept = fs::read_to_string(tls.join("tokens/0.admin.toml")).unwrap();
    let journal = instance.journal();
    for secret in secrets {
        assert!(![&listed, &kept, &journal].iter().any(|place| place.contains(&secret)));
    }
    assert_eq!(fs::metadata(tls.join("tokens")).unwrap().mode() & 0o777, 0o700);
    instance.shutdown();
}
