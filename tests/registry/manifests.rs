//! Manifests, indexes and logins, from a registry that may say anything.

use std::time::Duration;

use trainyard::images::Digest;
use trainyard::images::registry::*;

use crate::server::*;

async fn ask(server: &Server, name: &str) -> Result<Fetched, RegistryError> {
    server.client().manifest(source(&server.reference(name), None)).await
}

fn serve(site: &Site) -> Server {
    let site = site.clone();
    Server::start(move |request| site.reply(request))
}

/// What is said of a manifest of this text.
async fn said(text: &str) -> RegistryError {
    let mut site = Site::default();
    site.manifest("1", MANIFEST, text);
    ask(&serve(&site), "a:1").await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_is_found_by_tag_and_digest() {
    let mut site = Site::default();
    let digest = site.image("1", architecture());
    let server = serve(&site);
    let fetched = ask(&server, "a:1").await.unwrap();
    assert_eq!((&fetched.digest, &fetched.index_digest), (&digest, &None));
    assert_eq!(Digest::of(&fetched.manifest), digest);
    assert_eq!(Digest::of(&fetched.config), fetched.config_digest);
    let layer = LayerBlob { digest: Digest::of(b"a layer"), size: 7, media_type: LAYER.into() };
    assert_eq!((fetched.layers.as_slice(), fetched.diff_ids.as_slice()), (&[layer][..], &[Digest::of(b"a layer")][..]));
    assert_eq!(ask(&server, &format!("a@{digest}")).await.unwrap(), fetched);
    // The digest goes before the tag.
    assert_eq!(ask(&server, &format!("a:none@{digest}")).await.unwrap(), fetched);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_bytes_than_pinned_or_promised_are_refused() {
    let (mut site, mut other) = (Site::default(), Site::default());
    let digest = site.image("1", architecture());
    other.manifest("1", MANIFEST, "{}");
    let pinned = other.clone();
    // A server that says `{}` to every digest.
    let server = Server::start(move |_| pinned.reply(&request_for("/v2/a/manifests/1")));
    let error = ask(&server, &format!("a@{digest}")).await.unwrap_err();
    assert!(matches!(&error, RegistryError::WrongDigest { expected, .. } if *expected == digest), "{error:?}");
    let promised = format!("sha256:{}", "0".repeat(64));
    let server = Server::start(move |_| Reply::new(200, &[("docker-content-digest", &promised)], b"{}"));
    assert!(matches!(ask(&server, "a:1").await, Err(RegistryError::WrongDigest { .. })));
    // A configuration that was changed on its way.
    let server = Server::start(move |request| match request.path.contains("/blobs/") {
        true => Reply::ok(b"{}"),
        false => site.reply(request),
    });
    assert!(matches!(ask(&server, "a:1").await, Err(RegistryError::WrongDigest { .. })));
}

fn request_for(path: &str) -> Request {
    Request { method: "GET".into(), path: path.into(), headers: Default::default(), body: String::new() }
}

fn entry(digest: &Digest, platform: &str) -> String {
    format!(r#"{{"mediaType":"{MANIFEST}","digest":"{digest}","size":1{platform}}}"#)
}

fn platform(os: &str, architecture: &str, variant: &str) -> String {
    let variant = if variant.is_empty() { String::new() } else { format!(r#","variant":"{variant}""#) };
    format!(r#","platform":{{"os":"{os}","architecture":"{architecture}"{variant}}}"#)
}

fn index(entries: &[String]) -> String {
    format!(r#"{{"schemaVersion":2,"mediaType":"{INDEX}","manifests":[{}]}}"#, entries.join(","))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_leads_to_this_machine_s_image() {
    let mut site = Site::default();
    let here = site.image("here", architecture());
    let nowhere = Digest::of(b"nowhere");
    let strange = entry(&nowhere, &platform("linux", "s390x", ""));
    let newer = entry(&nowhere, &platform("linux", architecture(), "v9"));
    let windows = entry(&nowhere, &platform("windows", architecture(), ""));
    let ours = entry(&here, &platform("linux", architecture(), ""));
    let digest = site.manifest("1", INDEX, &index(&[strange.clone(), newer.clone(), windows, ours]));
    // One that says nothing of its platform, and a type that the registry says alone.
    site.manifest("silent", INDEX, &index(&[entry(&here, "")]));
    site.manifest("untyped", INDEX, &format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, entry(&here, "")));
    let hidden = entry(&nowhere, &platform("unknown", "unknown", ""));
    site.manifest("others", INDEX, &index(&[strange, newer, hidden]));
    site.manifest("nested", INDEX, &index(&[entry(&digest, &platform("linux", architecture(), ""))]));
    let server = serve(&site);
    let fetched = ask(&server, "a:1").await.unwrap();
    assert_eq!((fetched.digest, fetched.index_digest), (here.clone(), Some(digest.clone())));
    assert_eq!(ask(&server, &format!("a@{digest}")).await.unwrap().digest, here);
    for tag in ["a:silent", "a:untyped"] {
        assert_eq!(ask(&server, tag).await.unwrap().digest, here, "{tag}");
    }
    let error = ask(&server, "a:others").await.unwrap_err();
    let RegistryError::NoPlatform { wanted, offered, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*wanted, format!("linux/{}", architecture()));
    assert_eq!(*offered, ["linux/s390x".to_owned(), format!("linux/{}/v9", architecture())]);
    assert!(matches!(ask(&server, "a:nested").await, Err(RegistryError::NotAnImage { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_for_another_machine_is_refused_without_an_index_too() {
    let mut site = Site::default();
    site.image("1", "s390x");
    let error = ask(&serve(&site), "a:1").await.unwrap_err();
    assert!(matches!(&error, RegistryError::NoPlatform { offered, .. } if offered[..] == ["linux/s390x"]), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_image_is_refused_by_its_name() {
    let digest = Digest::of(b"x");
    let made = |config: &str, layer: &str, size| manifest(config, &digest, 2, layer, &digest, size);
    for (text, word) in [
        (r#"{"schemaVersion":1,"name":"a"}"#.to_owned(), "schema 1"),
        (made("application/vnd.cncf.helm.config.v1+json", LAYER, 1), "helm"),
        (made("application/vnd.oci.empty.v1+json", LAYER, 1), "oci.empty"),
        (made(CONFIG, "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", 1), "foreign"),
        (made(CONFIG, "application/vnd.oci.image.layer.nondistributable.v1.tar", 1), "nondistributable"),
        (made(CONFIG, "application/vnd.oci.image.layer.v1.tar+gzip+encrypted", 1), "encrypted"),
        (r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.artifact.manifest.v1+json"}"#.to_owned(), "artifact"),
    ] {
        let error = said(&text).await;
        assert!(matches!(error, RegistryError::NotAnImage { .. }), "{error:?}");
        assert!(error.to_string().contains(word), "{error}");
    }
    for text in [
        "garbage",
        "",
        "[]",
        r#"{"schemaVersion":2}"#,
        &made(CONFIG, LAYER, -1),
        &made(CONFIG, LAYER, 1).replace("sha256:", "sha512:"),
        &made(CONFIG, LAYER, 1).replace(&format!("{digest}"), "sha256:../../etc"),
        &made(CONFIG, LAYER, 1).replacen('{', r#"{"manifests":[],"#, 1),
    ] {
        let error = said(text).await;
        assert!(matches!(error, RegistryError::Damaged { .. }), "{text}: {error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configuration_must_speak_of_all_layers() {
    let mut site = Site::default();
    let layer = site.blob(b"a layer");
    let config = br#"{"os":"linux","rootfs":{"diff_ids":[]}}"#;
    let digest = site.blob(config);
    site.manifest("1", MANIFEST, &manifest(CONFIG, &digest, config.len(), LAYER, &layer, 7));
    let error = ask(&serve(&site), "a:1").await.unwrap_err();
    assert!(matches!(error, RegistryError::Damaged { .. }) && error.to_string().contains("0 layers"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_are_bounded() {
    let large = vec![b' '; DOCUMENT_MAX as usize + 1];
    let sent = large.clone();
    for chunked in [true, false] {
        let sent = sent.clone();
        let server = Server::start(move |_| if chunked { Reply::chunked(&sent) } else { Reply::ok(&sent) });
        let error = ask(&server, "a:1").await.unwrap_err();
        assert!(matches!(error, RegistryError::TooLarge { limit: DOCUMENT_MAX, .. }), "{error:?}");
    }
    let mut site = Site::default();
    let digest = site.blob(&large);
    site.manifest("1", MANIFEST, &manifest(CONFIG, &digest, large.len(), LAYER, &digest, 7));
    assert!(matches!(ask(&serve(&site), "a:1").await, Err(RegistryError::TooLarge { .. })));
    // A refusal without an end is cut short as well.
    let server = Server::start(move |_| Reply::new(400, &[], &large));
    assert!(matches!(ask(&server, "a:1").await, Err(RegistryError::Refused { status: Some(400), .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_an_end_costs_a_bounded_memory() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = format!("127.0.0.1:{}", listener.local_addr().unwrap().port());
    // Until whoever reads it has gone.
    let flood = |mut connection: std::net::TcpStream| {
        let _ = std::io::Read::read(&mut connection, &mut [0; 4096]);
        let _ = std::io::Write::write_all(&mut connection, b"HTTP/1.1 200 X\r\n\r\n");
        while std::io::Write::write_all(&mut connection, &[b' '; 1 << 20]).is_ok() {}
    };
    std::thread::spawn(move || {
        for greeting in listener.incoming().take(2).flatten() {
            let _ = std::io::Read::read(&mut &greeting, &mut [0; 4096]);
            let empty = b"HTTP/1.1 200 X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
            std::io::Write::write_all(&mut &greeting, empty).unwrap();
        }
        listener.incoming().flatten().for_each(flood);
    });
    let reference = Reference::parse(&format!("{host}/a:1"), "docker.io").unwrap();
    let error = registry(quick(&[host])).manifest(source(&reference, None)).await.unwrap_err();
    assert!(matches!(&error, RegistryError::TooLarge { what, .. } if what == "an answer"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_does_not_come_is_given_up() {
    let server = Server::start(|_| Reply::ok(b"0123456789").cut(5).hang());
    let client = registry(RegistryConfig { stall: Duration::from_millis(200), ..server.config() });
    let ended = client.manifest(source(&server.reference("a:1"), None)).await;
    assert!(matches!(ended, Err(RegistryError::Stalled { .. })), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_tag_and_a_missing_repository_are_told_apart() {
    let mut site = Site::default();
    site.put("tags/list?n=1", "application/json", br#"{"name":"a","tags":["1"]}"#);
    let error = ask(&serve(&site), "a:2").await.unwrap_err();
    assert!(matches!(&error, RegistryError::NotFound { missing: Missing::Manifest { .. }, .. }), "{error:?}");
    assert!(error.to_string().contains("tag 2 in repository a"), "{error}");
    let error = ask(&serve(&Site::default()), "a:2").await.unwrap_err();
    assert!(matches!(&error, RegistryError::NotFound { missing: Missing::Repository(_), .. }), "{error:?}");
    assert!(error.to_string().contains("only with credentials"), "{error}");
}

/// A registry with a token server in it: tokens are `PASSWORD-N`, the N-th of all.
fn guarded(site: Site, valid: impl Fn(&str) -> bool + Send + 'static) -> Server {
    let number = std::sync::atomic::AtomicUsize::new(1);
    Server::guarded(move |request| {
        let host = request.header("host");
        let challenge = format!("Bearer realm=\"http://{host}/token\",service=\"lab\",scope=\"repository:a:pull\"");
        if request.path.starts_with("/token") {
            let who = match (request.header("authorization"), request.body.contains("refresh_token=tok")) {
                ("", true) => "identity",
                ("Basic bGFiOnNlY3JldA==", _) => "lab",
                ("Basic YWRhOm90aGVy", _) => "ada",
                ("", _) => "anybody",
                _ => return Reply::new(401, &[], br#"{"details":"incorrect username or password"}"#),
            };
            let number = number.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            return Reply::ok(format!(r#"{{"access_token":"{who}-{number}","expires_in":60}}"#).as_bytes());
        }
        match valid(request.header("authorization")) {
            true => site.reply(request),
            false => Reply::new(401, &[("www-authenticate", &challenge)], b""),
        }
    })
}

fn image_site() -> Site {
    let mut site = Site::default();
    site.image("1", architecture());
    site
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_nobody_else_s() {
    let server = guarded(image_site(), |proof| proof.starts_with("Bearer lab-") || proof.starts_with("Bearer ada-"));
    let (client, reference) = (server.client(), server.reference("a:1"));
    let (lab, ada, wrong) = (login("lab", "secret"), login("ada", "other"), login("lab", "wrong"));
    client.manifest(source(&reference, Some(&lab))).await.unwrap();
    let tokens = |server: &Server| -> Vec<Request> {
        server.seen().into_iter().filter(|request| request.path.starts_with("/token")).collect()
    };
    let asked: Vec<String> = tokens(&server).into_iter().map(|request| request.path).collect();
    assert_eq!(asked, ["/token?service=lab&scope=repository%3Aa%3Apull"]);
    let proofs: Vec<String> = server.seen().iter().map(|request| request.header("authorization").to_owned()).collect();
    assert_eq!(proofs, ["", "Basic bGFiOnNlY3JldA==", "Bearer lab-1", "Bearer lab-1"]);
    client.manifest(source(&reference, Some(&ada))).await.unwrap();
    assert_eq!(server.seen().last().unwrap().header("authorization"), "Bearer ada-2");
    // Neither the anonymous nor the wrong one get what the others' passwords opened.
    let error = client.manifest(source(&reference, None)).await.unwrap_err();
    assert!(matches!(error, RegistryError::Unauthorized { had_credentials: false, .. }), "{error:?}");
    let error = client.manifest(source(&reference, Some(&wrong))).await.unwrap_err();
    assert!(matches!(error, RegistryError::Unauthorized { had_credentials: true, .. }), "{error:?}");
    let all = format!("{} {client:?}", shown(&error));
    for secret in ["secret", "wrong", "bGFi", "lab-1", "ada-2"] {
        assert!(!all.contains(secret), "{secret} in {all}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_identity_token_is_exchanged() {
    let server = guarded(image_site(), |proof| proof.starts_with("Bearer identity-"));
    let login = login("<token>", "tok");
    server.client().manifest(source(&server.reference("a:1"), Some(&login))).await.unwrap();
    let asked = server.seen().into_iter().find(|request| request.path == "/token").unwrap();
    assert_eq!((asked.method.as_str(), asked.header("authorization")), ("POST", ""));
    assert!(asked.body.starts_with("grant_type=refresh_token&") && asked.body.contains("scope=repository%3Aa%3Apull"));
}

/// Some are open, and their repositories are not; some name several ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repository_may_want_more_than_its_registry() {
    let site = image_site();
    let server = Server::guarded(move |request| {
        let realm = format!("Bearer realm=\"http://{}/token\"", request.header("host"));
        match (request.path.as_str(), request.header("authorization")) {
            ("/v2/", _) => Reply::ok(b""),
            (path, "") if path.starts_with("/token") => Reply::ok(br#"{"token":"anybody"}"#),
            (_, "") => Reply::new(401, &[("www-authenticate", "Basic realm=\"x\""), ("www-authenticate", &realm)], b""),
            (_, "Bearer anybody") => site.reply(request),
            _ => Reply::status(403),
        }
    });
    ask(&server, "a:1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_is_used_but_for_who_is_excepted() {
    let site = image_site();
    let proxy = Server::guarded(move |request| {
        let path = request.path.strip_prefix("http://registry.invalid:5000").unwrap_or("/");
        site.reply(&Request { path: path.to_owned(), ..request.clone() })
    });
    let reference = Reference::parse("registry.invalid:5000/a:1", "docker.io").unwrap();
    let proxies = |none_for: &str| Proxies {
        https: None,
        http: Some(format!("http://{}", proxy.host())),
        none_for: Some(none_for.to_owned()),
    };
    let config = |proxies| RegistryConfig { proxies, ..quick(&["registry.invalid:5000".to_owned()]) };
    registry(config(proxies("lab"))).manifest(source(&reference, None)).await.unwrap();
    assert!(proxy.seen().iter().all(|request| request.path.starts_with("http://registry.invalid:5000/v2/")));
    let count = proxy.seen().len();
    let error = registry(config(proxies("registry.invalid"))).manifest(source(&reference, None)).await.unwrap_err();
    assert!(matches!(&error, RegistryError::Unreachable { why: WhyUnreachable::Name, .. }), "{error:?}");
    assert_eq!(proxy.seen().len(), count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_server_may_fail_in_its_own_ways() {
    for (reply, expected) in [
        (Reply::ok(b"secret-token-but-no-json") as Reply, "damaged"),
        (Reply::ok(b"{}"), "damaged"),
        (Reply::ok(br#"{"token":"secret-token\nx: y"}"#), "damaged"),
        (Reply::status(500), "500"),
        (Reply::status(429), "no more requests"),
        (Reply::status(404), "does not let us have"),
    ] {
        let reply = std::sync::Mutex::new(Some(reply));
        let server = Server::guarded(move |request| {
            let challenge = format!("Bearer realm=\"http://{}/token\"", request.header("host"));
            match request.path.starts_with("/token") {
                true => reply.lock().unwrap().take().unwrap(),
                false => Reply::new(401, &[("www-authenticate", &challenge)], b""),
            }
        });
        let error = ask(&server, "a:1").await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!shown(&error).contains("secret-token"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_that_repeats_our_password_is_not_quoted() {
    let server = Server::guarded(|request| match request.header("authorization") {
        "" => Reply::new(401, &[("www-authenticate", "Basic realm=\"x\"")], b""),
        proof => Reply::new(418, &[], proof.as_bytes()),
    });
    let (reference, lab) = (server.reference("a:1"), login("lab", "secret"));
    let error = server.client().manifest(source(&reference, Some(&lab))).await.unwrap_err();
    assert!(matches!(error, RegistryError::Refused { status: Some(418), .. }), "{error:?}");
    assert!(!shown(&error).contains("bGFi"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nothing_listens_is_told_as_such() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let host = format!("127.0.0.1:{port}");
    let reference = Reference::parse(&format!("{host}/a:1"), "docker.io").unwrap();
    for config in [quick(&[host]), quick(&[])] {
        let error = registry(config).manifest(source(&reference, None)).await.unwrap_err();
        assert!(matches!(&error, RegistryError::Unreachable { why: WhyUnreachable::Refused, .. }), "{error:?}");
    }
}

#[test]
fn certificates_that_are_none_are_refused_at_the_start() {
    for pem in [&b"nonsense"[..], b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"] {
        let config = RegistryConfig { extra_ca: Some(pem.to_vec()), ..RegistryConfig::default() };
        assert!(matches!(try_registry(config), Err(RegistryError::Setup { .. })));
    }
}
