//! Whether the interfaces of this host carry packets, followed while they change.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, State};

use crate::netlink::socket::RouteSocket;
use crate::netlink::{NetlinkError, to_io};

/// An interface that has come, has gone, or has begun or ceased to carry packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceChange {
    /// Its name.
    pub name: String,
    /// Whether there is one of this name.
    pub is_there: bool,
    /// Whether it carries packets: it is up, has a carrier, and does not say that it waits for
    /// something (RFC 2863, ifOperStatus; Documentation/networking/operstates.rst).
    pub carries: bool,
}

/// The time after which the kernel is asked again that has not answered.
const PAUSE: Duration = Duration::from_secs(1);

/// What the kernel tells of the interfaces.
pub struct Interfaces {
    connection: Connection,
    known: Known,
    /// Whether messages were lost, and not all interfaces have been listed since, on another connection: those
    /// that wait on this one are older than the list would be, and what would put them right may be lost.
    is_stale: bool,
}

/// A connection on which the kernel tells.
struct Connection {
    handle: rtnetlink::Handle,
    messages: BoxStream<'static, NetlinkPayload<RouteNetlinkMessage>>,
    task: tokio::task::JoinHandle<()>,
}

impl Connection {
    fn open() -> Result<Self, NetlinkError> {
        let (connection, handle, messages) = rtnetlink::new_multicast_connection_with_socket::<
            RouteSocket,
        >(&[MulticastGroup::Link])
        .map_err(|source| NetlinkError::new("cannot listen to changes of interfaces", source))?;
        Ok(Self {
            handle,
            messages: messages.map(|(message, _)| message.payload).boxed(),
            task: tokio::spawn(connection),
        })
    }
}

impl Interfaces {
    /// Begins to follow them; the first changes are those that there are.
    ///
    /// # Errors
    ///
    /// [`NetlinkError`] if the kernel does not tell.
    pub async fn follow() -> Result<Self, NetlinkError> {
        let mut interfaces = Self {
            connection: Connection::open()?,
            known: Known::default(),
            is_stale: true,
        };
        match interfaces.list().await {
            // They are listed again.
            Err(error) if is_loss(&error) => {}
            listed => listed?,
        }
        Ok(interfaces)
    }

    /// Returns the next change that has been heard of already.
    pub fn heard(&mut self) -> Option<InterfaceChange> {
        self.known.waiting.pop_front()
    }

    /// Waits for the next change. Nothing is lost if it is not waited for to the end.
    pub async fn next(&mut self) -> InterfaceChange {
        loop {
            if let Some(change) = self.heard() {
                return change;
            }
            if self.is_stale {
                if let Err(error) = self.begin_anew().await {
                    if !is_loss(&error) {
                        tracing::warn!(%error, "no leg hears of its interface for now");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                continue;
            }
            match self.connection.messages.next().await {
                Some(message) => self.hear(&message),
                // The connection has ended.
                None => {
                    tokio::time::sleep(PAUSE).await;
                    self.is_stale = true;
                }
            }
        }
    }

    fn hear(&mut self, message: &NetlinkPayload<RouteNetlinkMessage>) {
        match message {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                self.known.is(link);
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link))
                if is_about_the_interface(link) =>
            {
                self.known.is_gone(link.header.index);
            }
            // Messages were lost.
            NetlinkPayload::Overrun(_) => self.is_stale = true,
            _ => {}
        }
    }

    /// Has the kernel tell on another connection, and asks for all.
    async fn begin_anew(&mut self) -> Result<(), NetlinkError> {
        self.connection = Connection::open()?;
        self.list().await
    }

    /// Asks for all.
    async fn list(&mut self) -> Result<(), NetlinkError> {
        let mut links = self.connection.handle.link().get().execute();
        let mut gone: Vec<u32> = self.known.interfaces.keys().copied().collect();
        while let Some(link) = links.try_next().await.map_err(failed)? {
            gone.retain(|index| *index != link.header.index);
            self.known.is(&link);
        }
        for index in gone {
            self.known.is_gone(index);
        }
        self.is_stale = false;
        Ok(())
    }
}

/// What has been told last, and what is still to be told.
#[derive(Debug, Default)]
struct Known {
    /// The name of each, which may become another, and whether it carries packets; by their indexes.
    interfaces: HashMap<u32, (String, bool)>,
    waiting: VecDeque<InterfaceChange>,
}

impl Known {
    /// Notes what is said of an interface that is there.
    fn is(&mut self, link: &LinkMessage) {
        let Some(name) = name(link).filter(|_| is_about_the_interface(link)) else {
            return;
        };
        let (index, carries) = (link.header.index, carries(link));
        match self.interfaces.get(&index) {
            Some((known, before)) if known == name && *before == carries => return,
            Some((known, _)) if known == name => {}
            // It has got another name.
            Some(_) => self.is_gone(index),
            None => {}
        }
        self.interfaces.insert(index, (name.to_owned(), carries));
        self.tell(name.to_owned(), true, carries);
    }

    /// Notes that there is no such interface any more.
    fn is_gone(&mut self, index: u32) {
        let Some((name, _)) = self.interfaces.remove(&index) else {
            return;
        };
        // Another one may have got its name before this was heard.
        if !self.interfaces.values().any(|(other, _)| *other == name) {
            self.tell(name, false, false);
        }
    }

    fn tell(&mut self, name: String, is_there: bool, carries: bool) {
        self.waiting.push_back(InterfaceChange {
            name,
            is_there,
            carries,
        });
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns whether messages of the kernel's were lost, of which the answer may have been one.
fn is_loss(error: &NetlinkError) -> bool {
    error.source.raw_os_error() == Some(libc::ENOBUFS)
}

fn failed(error: rtnetlink::Error) -> NetlinkError {
    NetlinkError::new("cannot list the interfaces", to_io(error))
}

/// Returns whether a message is about the interface itself: one that leaves a bridge is said to be deleted as
/// a port of it (`br_ifinfo_notify`, net/bridge/br_netlink.c).
fn is_about_the_interface(link: &LinkMessage) -> bool {
    link.header.interface_family == AddressFamily::Unspec
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
    fn heard(known: &mut Known) -> Vec<(String, bool, bool)> {
        let changes = known.waiting.drain(..);
        changes
            .map(|it| (it.name, it.is_there, it.carries))
            .collect()
    }

    #[test]
    fn a_name_is_that_of_the_interface_that_has_it_now() {
        let mut known = Known::default();
        let is = |known: &mut Known, index, name: &str| {
            let mut link = link(LinkFlags::Up | LinkFlags::LowerUp, State::Up);
            link.header.index = index;
            link.attributes[0] = LinkAttribute::IfName(name.to_owned());
            known.is(&link);
            // The same once more is no news.
            known.is(&link);
            // Nor is what a bridge says of its port.
            link.header.interface_family = AddressFamily::Bridge;
            link.header.flags = LinkFlags::empty();
            known.is(&link);
        };
        let (up, none) = (
            |name: &str| (name.to_owned(), true, true),
            |name: &str| (name.to_owned(), false, false),
        );
        is(&mut known, 7, "wwan0");
        assert_eq!(heard(&mut known), [up("wwan0")]);
        is(&mut known, 7, "wwan1");
        assert_eq!(heard(&mut known), [none("wwan0"), up("wwan1")]);
        is(&mut known, 8, "wwan0");
        known.is_gone(7);
        known.is_gone(7);
        assert_eq!(heard(&mut known), [up("wwan0"), none("wwan1")]);
        // What is made anew is heard of in this order if the end of the first was missed.
        is(&mut known, 9, "wwan0");
        known.is_gone(8);
        assert_eq!(heard(&mut known), [up("wwan0")]);
        known.is_gone(9);
        assert_eq!(heard(&mut known), [none("wwan0")]);
        assert!(known.interfaces.is_empty());
    }
}
