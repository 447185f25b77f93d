//! Whether the interfaces of this host carry packets, followed while they change.

use std::collections::{HashMap, VecDeque};

use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, State};

use crate::netlink::socket::RouteSocket;
use crate::netlink::{NetlinkError, to_io};

/// An interface that has come, has gone, or has begun or ceased to carry packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceChange {
    /// Its name.
    pub name: String,
    /// Whether it carries packets: it is up, has a carrier, and does not say that it waits for
    /// something (RFC 2863, ifOperStatus; Documentation/networking/operstates.rst).
    pub carries: bool,
}

/// What the kernel tells of the interfaces.
pub struct Interfaces {
    handle: rtnetlink::Handle,
    messages: BoxStream<'static, NetlinkPayload<RouteNetlinkMessage>>,
    task: tokio::task::JoinHandle<()>,
    /// What has been told last, by name.
    known: HashMap<String, bool>,
    waiting: VecDeque<InterfaceChange>,
}

impl Interfaces {
    /// Begins to follow them; the first changes are those that there are.
    ///
    /// # Errors
    ///
    /// [`NetlinkError`] if the kernel does not tell.
    pub async fn follow() -> Result<Self, NetlinkError> {
        let (connection, handle, messages) = rtnetlink::new_multicast_connection_with_socket::<
            RouteSocket,
        >(&[MulticastGroup::Link])
        .map_err(|source| NetlinkError::new("cannot listen to changes of interfaces", source))?;
        let mut interfaces = Self {
            handle,
            messages: messages.map(|(message, _)| message.payload).boxed(),
            task: tokio::spawn(connection),
            known: HashMap::new(),
            waiting: VecDeque::new(),
        };
        interfaces.list().await?;
        Ok(interfaces)
    }

    /// Returns the next change that has been heard of already.
    pub fn heard(&mut self) -> Option<InterfaceChange> {
        self.waiting.pop_front()
    }

    /// Waits for the next change; none when the kernel tells no more.
    pub async fn next(&mut self) -> Option<InterfaceChange> {
        loop {
            if let Some(change) = self.heard() {
                return Some(change);
            }
            match self.messages.next().await? {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                    self.note(name(&link), carries(&link));
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => {
                    self.note(name(&link), false);
                }
                // Messages were lost.
                NetlinkPayload::Overrun(_) => {
                    if let Err(error) = self.list().await {
                        tracing::warn!(%error, "look at the interfaces");
                    }
                }
                _ => {}
            }
        }
    }

    /// Asks for all.
    async fn list(&mut self) -> Result<(), NetlinkError> {
        let mut links = self.handle.link().get().execute();
        let mut gone: Vec<String> = self.known.keys().cloned().collect();
        while let Some(link) = links.try_next().await.map_err(failed)? {
            gone.retain(|known| Some(known.as_str()) != name(&link));
            self.note(name(&link), carries(&link));
        }
        for name in gone {
            self.note(Some(&name), false);
        }
        Ok(())
    }

    fn note(&mut self, name: Option<&str>, carries: bool) {
        let Some(name) = name else { return };
        let before = self.known.insert(name.to_owned(), carries);
        if before != Some(carries) {
            self.waiting.push_back(InterfaceChange {
                name: name.to_owned(),
                carries,
            });
        }
    }
}

impl Drop for Interfaces {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn failed(error: rtnetlink::Error) -> NetlinkError {
    NetlinkError::new("cannot list the interfaces", to_io(error))
}

fn name(link: &LinkMessage) -> Option<&str> {
    link.attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.as_str()),
            _ => None,
        })
}

fn carries(link: &LinkMessage) -> bool {
    let is_up = link
        .header
        .flags
        .contains(LinkFlags::Up | LinkFlags::LowerUp);
    let state = link
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::OperState(state) => Some(*state),
            _ => None,
        });
    is_up && matches!(state, None | Some(State::Unknown | State::Up))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(flags: LinkFlags, state: State) -> LinkMessage {
        let mut link = LinkMessage::default();
        link.header.flags = flags;
        link.attributes = vec![
            LinkAttribute::IfName("wwan0".to_owned()),
            LinkAttribute::OperState(state),
        ];
        link
    }

    #[test]
    fn what_is_up_and_has_a_carrier_carries() {
        let both = LinkFlags::Up | LinkFlags::LowerUp;
        for (flags, state, expected) in [
            (both, State::Up, true),
            // Of tunnels, and of drivers that do not say.
            (both, State::Unknown, true),
            (both, State::Dormant, false),
            (LinkFlags::Up, State::LowerLayerDown, false),
            (LinkFlags::LowerUp, State::Down, false),
        ] {
            let link = link(flags, state);
            assert_eq!(carries(&link), expected, "{flags:?} {state:?}");
            assert_eq!(name(&link), Some("wwan0"));
        }
    }
}
