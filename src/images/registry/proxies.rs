//! Through which proxy a registry is reached.

use hyper_util::client::proxy::matcher::Matcher;

/// As the usual variables of the environment have them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    pub https: Option<String>,
    pub http: Option<String>,
    /// Names, addresses and networks that are reached without, with commas between them.
    pub none_for: Option<String>,
}

impl Proxies {
    pub fn of_environment() -> Self {
        let first =
            |names: &[&str]| names.iter().find_map(|name| std::env::var(name).ok().filter(|proxy| !proxy.is_empty()));
        Self {
            https: first(&["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]),
            http: first(&["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]),
            none_for: first(&["NO_PROXY", "no_proxy"]),
        }
    }

    /// Those for a registry at `host`, https first. Where it sends us to is reached as it is itself.
    pub(super) fn for_host(&self, host: &str) -> [Option<String>; 2] {
        let none_for = self.none_for.clone().unwrap_or_default();
        let matcher = Matcher::builder().all("http://any.invalid").no(none_for).build();
        let is_direct = format!("https://{host}/").parse().is_ok_and(|address| matcher.intercept(&address).is_none());
        if is_direct { [None, None] } else { [self.https.clone(), self.http.clone()] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_excepted_is_reached_directly() {
        let proxies = Proxies {
            https: Some("http://proxy:1".into()),
            http: Some("http://proxy:2".into()),
            none_for: Some("registry.lab, .inside,10.0.0.0/8".into()),
        };
        for direct in ["registry.lab", "registry.lab:5000", "a.inside", "10.1.2.3:5000"] {
            assert_eq!(proxies.for_host(direct), [None, None], "{direct}");
        }
        for by_proxy in ["docker.io", "11.1.2.3", "otherregistry.labs"] {
            assert_eq!(proxies.for_host(by_proxy), [proxies.https.clone(), proxies.http.clone()], "{by_proxy}");
        }
        assert_eq!(Proxies::default().for_host("docker.io"), [None, None]);
    }
}
