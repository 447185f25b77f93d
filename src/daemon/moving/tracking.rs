//! What connection tracking knows of connections that move, on either box: an upstream leg whose source this host
//! translates is the same connection to its server only if the other box translates it to the same address and port.
//!
//! The address goes where the routing leads it, as the clients' do. One that a box also sends from itself is its own, as
//! that of `masquerade` is: it would be nowhere once that box has ended. So such a connection stays, unless the other box
//! has the address, too.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use pepd_move::wire::{Offered, Reason, Translated};
use pepd_net::{Translation, Translations};
use pepd_packet::FourTuple;

/// What connection tracking is asked and told by; nothing where the kernel has no socket for that: it translates nothing
/// then.
#[derive(Debug)]
pub(super) struct Tracking(RefCell<Option<Translations>>);

impl Tracking {
    pub(super) fn open() -> Self {
        Self(RefCell::new(Translations::open().ok()))
    }

    fn find(&self, flow: &FourTuple) -> io::Result<Option<Translation>> {
        let mut translations = self.0.borrow_mut();
        translations
            .as_mut()
            .map_or(Ok(None), |them| them.find(flow))
    }

    /// Tells what a connection's source is translated to that is here.
    ///
    /// # Errors
    ///
    /// Why it stays, in words.
    pub(super) async fn translated(
        &self,
        flow: &FourTuple,
        host: &mut Host,
    ) -> Result<Option<Translated>, String> {
        let Some(source) = self.source(flow)? else {
            return match host.may_hide(flow.server.ip()) {
                Ok(false) => Ok(None),
                Ok(true) => Err("this host has zones of connection tracking (`ct zone`), in one of which it may translate its client's address".to_owned()),
                Err(error) => Err(format!("the kernel does not list this host's rules: {error}")),
            };
        };
        let own = host.sends_from(source.ip(), flow.server.ip()).await;
        Ok(Some(Translated { source, own }))
    }

    /// Gives what a connection's source is translated to, or why it stays.
    fn source(&self, flow: &FourTuple) -> Result<Option<SocketAddr>, String> {
        match self.find(flow) {
            Ok(None | Some(Translation::None)) => Ok(None),
            Ok(Some(Translation::Source(source))) => Ok(Some(source)),
            Ok(Some(Translation::Destination)) => {
                Err("this host translates its server's address".to_owned())
            }
            Err(error) => Err(format!(
                "the kernel does not say whether this host translates its addresses: {error}"
            )),
        }
    }

    /// Tells why a connection is not as it was offered, if that is so.
    pub(super) fn is_changed(&self, offered: &Offered) -> Option<String> {
        match self.source(&offered.flow) {
            Ok(source) if source == offered.translated.map(|it| it.source) => None,
            Ok(_) => Some("this host has begun to translate it to another address".to_owned()),
            Err(why) => Some(why),
        }
    }

    /// Returns connections as they are here, and as they are translated here.
    pub(super) fn tuples(&self, flows: &[FourTuple]) -> Vec<FourTuple> {
        let mut tuples = flows.to_vec();
        for flow in flows {
            match self.find(flow) {
                Ok(Some(Translation::Source(client))) => tuples.push(FourTuple { client, ..*flow }),
                // Whoever cannot say it of one can say it of none, and looks for a module each time.
                Err(error) if is_missing(&error) => break,
                _ => {}
            }
        }
        tuples
    }

    /// Has what is known here of connections that are now the other box's be forgotten. What is translated is kept:
    /// as long as its answers come here, and are sent on, no other connection may get its address and port. The box that
    /// a connection comes back to begins anew with it in any case.
    pub(super) fn leave(&self, those: &[Offered]) {
        let mut translations = self.0.borrow_mut();
        let Some(them) = translations.as_mut() else {
            return;
        };
        for Offered { flow, translated } in those {
            let done = match translated {
                Some(_) => them.keep(flow),
                None => them.forget(flow).map(drop),
            };
            if let Err(error) = done {
                // It goes by itself in a while, and does no harm until then.
                tracing::debug!(client = %flow.client, server = %flow.server, %error,
                    "connection tracking does not forget, or keep, a connection that has moved");
            }
        }
    }

    /// Tells whether the packets of this host's connections are tracked, which those of a session with another box show.
    ///
    /// # Errors
    ///
    /// Where the kernel does not say.
    pub(super) fn is_on(&self, session: &FourTuple) -> io::Result<bool> {
        match self.find(session) {
            Ok(found) => Ok(found.is_some()),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Tells connection tracking of a connection that has come; gives whether that was new to it.
    pub(super) fn enter(&self, offered: &Offered) -> Result<bool, Reason> {
        let source = offered.translated.map(|it| it.source);
        let mut translations = self.0.borrow_mut();
        let Some(them) = translations.as_mut() else {
            return source.map_or(Ok(false), |_| Err(Reason::Untranslated));
        };
        let entered = them.enter(&offered.flow, source);
        entered.map(|was_known| !was_known).map_err(|error| {
            let flow = offered.flow;
            tracing::debug!(client = %flow.client, server = %flow.server, %error,
                "connection tracking does not take a connection of another box");
            match error.raw_os_error() {
                Some(libc::EEXIST) if source.is_some() => Reason::Taken,
                errno => kernel(errno),
            }
        })
    }

    /// Has connection tracking forget connections that have not come after all.
    pub(super) fn forget(&self, flows: impl IntoIterator<Item = FourTuple>) {
        let mut translations = self.0.borrow_mut();
        let Some(them) = translations.as_mut() else {
            return;
        };
        for flow in flows {
            if let Err(error) = them.forget(&flow) {
                tracing::debug!(client = %flow.client, server = %flow.server, %error,
                    "connection tracking does not forget a connection that has not come");
            }
        }
    }
}

/// Tells whether the kernel has nothing that could be asked or told (nfnetlink_rcv_msg, net/netfilter/nfnetlink.c).
fn is_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINVAL)
}

/// Gives the reason that a kernel has, by its errno.
pub(super) fn kernel(errno: Option<i32>) -> Reason {
    Reason::Kernel(
        errno
            .and_then(|errno| u16::try_from(errno).ok())
            .unwrap_or(0),
    )
}

/// What this host does with addresses, as far as it was asked.
#[derive(Debug, Default)]
pub(super) struct Host {
    /// Whether it may translate what connection tracking does not show, of IPv4 and IPv6.
    hides: [Option<bool>; 2],
    /// Which it sends from itself, by server.
    own: BTreeMap<IpAddr, Option<IpAddr>>,
}

impl Host {
    /// Tells whether a connection to this server may be translated though connection tracking does not show it in its
    /// default zone.
    fn may_hide(&mut self, server: IpAddr) -> io::Result<bool> {
        let known = &mut self.hides[usize::from(server.is_ipv6())];
        if let Some(known) = *known {
            return Ok(known);
        }
        let hides = pepd_net::translates(server)? && pepd_net::has_zones()?;
        *known = Some(hides);
        Ok(hides)
    }

    /// Tells whether an address is the one that this host takes for what it sends to a server of its own.
    async fn sends_from(&mut self, address: IpAddr, server: IpAddr) -> bool {
        let taken = match self.own.get(&server) {
            Some(taken) => *taken,
            None => {
                let taken = pepd_net::source_towards(server).await.ok().flatten();
                self.own.insert(server, taken);
                taken
            }
        };
        // Where that is not known, it may be.
        taken.is_none_or(|taken| taken == address)
    }
}

/// What this host can do for connections whose source another one translates.
#[derive(Debug, Default)]
pub(super) struct Ability {
    /// Whether it translates anything, of IPv4 and IPv6.
    translates: [bool; 2],
    /// Whether it may have connections in other zones of connection tracking than the one that is told of them.
    has_zones: bool,
    /// Those of the addresses that it has.
    local: BTreeSet<IpAddr>,
}

impl Ability {
    /// Finds out what matters to these connections.
    pub(super) async fn towards(those: &[Offered]) -> Self {
        let mut ability = Self::default();
        let translated = those.iter().filter_map(|it| it.translated);
        let translated: Vec<_> = translated.collect();
        for (is_v6, translates) in [false, true].into_iter().zip(&mut ability.translates) {
            let mut addresses = translated.iter().map(|it| it.source.ip());
            let one = addresses.find(|it| it.is_ipv6() == is_v6);
            *translates = one.is_some_and(translates_like);
        }
        ability.has_zones = !translated.is_empty() && has_zones();
        let own = translated.iter().filter(|it| it.own);
        let own: BTreeSet<_> = own.map(|it| it.source.ip()).collect();
        for address in own {
            // Where there is no way to it, it is not here.
            if pepd_net::is_local(address).await.unwrap_or(false) {
                ability.local.insert(address);
            }
        }
        ability
    }

    /// Tells why a connection is not taken, if that is so.
    pub(super) fn objection(&self, offered: &Offered) -> Option<Reason> {
        let Translated { source, own } = offered.translated?;
        if !self.translates[usize::from(source.is_ipv6())] {
            Some(Reason::Untranslated)
        } else if self.has_zones {
            Some(Reason::Zones)
        } else if own && !self.local.contains(&source.ip()) {
            Some(Reason::Address)
        } else {
            None
        }
    }
}

/// Tells whether this host translates addresses of the family of this one.
fn translates_like(address: IpAddr) -> bool {
    pepd_net::translates(address).unwrap_or_else(|error| {
        tracing::warn!(%error, "the kernel does not list its chains: nothing that is translated is taken from other boxes");
        false
    })
}

/// Tells whether this host has zones of connection tracking.
fn has_zones() -> bool {
    pepd_net::has_zones().unwrap_or_else(|error| {
        tracing::warn!(%error, "the kernel does not list its rules: nothing that is translated is taken from other boxes");
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_the_first_boxs_own_is_taken_by_who_has_it() {
        let offered = |source: &str, own| Offered {
            flow: FourTuple {
                client: "10.1.0.2:40000".parse().unwrap(),
                server: "10.2.0.2:80".parse().unwrap(),
            },
            translated: Some(Translated {
                source: source.parse().unwrap(),
                own,
            }),
        };
        let mut ability = Ability {
            translates: [true, false],
            local: ["192.0.2.1".parse().unwrap()].into(),
            has_zones: false,
        };
        assert_eq!(ability.objection(&offered("192.0.2.1:1024", true)), None);
        assert_eq!(ability.objection(&offered("192.0.2.2:1024", false)), None);
        let why = ability.objection(&offered("192.0.2.2:1024", true));
        assert_eq!(why, Some(Reason::Address));
        ability.has_zones = true;
        let why = ability.objection(&offered("192.0.2.1:1024", true));
        assert_eq!(why, Some(Reason::Zones));
        ability.translates = [false, true];
        let why = ability.objection(&offered("192.0.2.1:1024", true));
        assert_eq!(why, Some(Reason::Untranslated));
        let untranslated = Offered {
            translated: None,
            ..offered("192.0.2.1:1024", true)
        };
        assert_eq!(ability.objection(&untranslated), None);
    }
}
