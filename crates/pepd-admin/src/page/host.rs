//! Whom the page may be asked for.

use std::net::IpAddr;

use axum::http::HeaderValue;
use axum::http::uri::Authority;
use thiserror::Error;

/// The names under which the page and the metrics are available.
///
/// A page from elsewhere can have its own name resolve to this box, loopback included, and its
/// scripts then read what is served under that name ("DNS rebinding"). They cannot forge the
/// name in the request's `Host`.
#[derive(Clone, Debug, Default)]
pub struct Names(Vec<String>);

/// A request for a name that is not this box's.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// A request without a `Host` that can be read.
    #[error("the request does not say which host it is for; ask over HTTP/1.1\n")]
    Unnamed,
    /// One for another name.
    #[error(
        "this is not `{0}`: ask by address, as `localhost`, or by a name of this host that \
         `[admin] names` lists\n"
    )]
    Other(String),
}

impl Names {
    /// Allows addresses, `localhost`, and `names` without regard to case.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let mut names: Vec<String> = names
            .into_iter()
            .map(|name| name.to_ascii_lowercase())
            .collect();
        names.push("localhost".to_owned());
        Self(names)
    }

    /// Checks that this value of `Host` is one of them, with whatever port: there may be a
    /// forwarded port in between.
    pub(super) fn check(&self, host: Option<&HeaderValue>) -> Result<(), Refusal> {
        let authority = host
            .and_then(|host| host.to_str().ok())
            .and_then(|host| host.parse::<Authority>().ok())
            .ok_or(Refusal::Unnamed)?;
        let host = authority.host();
        let bare = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(host);
        // An address has no name that could be made to resolve to something else.
        if bare.parse::<IpAddr>().is_ok() {
            return Ok(());
        }
        let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        if self.0.contains(&name) {
            Ok(())
        } else {
            Err(Refusal::Other(name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(host: &'static str) -> Result<(), Refusal> {
        Names::new(["HB-A".to_owned()]).check(Some(&HeaderValue::from_static(host)))
    }

    #[test]
    fn addresses_localhost_and_own_names_are_ours() {
        for host in [
            "127.0.0.1:9730",
            "192.0.2.1",
            "[::1]:9730",
            "[fd00::1]",
            "localhost:9730",
            "LocalHost",
            "hb-a:9730",
            "hb-a.",
        ] {
            assert_eq!(check(host), Ok(()), "{host}");
        }
    }

    #[test]
    fn other_names_are_not() {
        for host in [
            "rebound.example:9730",
            "localhost.rebound.example",
            "127.0.0.1.rebound.example",
            "hb-a.rebound.example",
        ] {
            assert!(matches!(check(host), Err(Refusal::Other(_))), "{host}");
        }
        for host in ["", "a b", "127.0.0.1/x"] {
            assert_eq!(check(host), Err(Refusal::Unnamed), "{host}");
        }
        assert_eq!(Names::default().check(None), Err(Refusal::Unnamed));
    }
}
