//! Making, adopting, changing and removing the tunnels.

use std::collections::BTreeMap;
use std::io;

use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::Handle;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteMetric};

use super::error::TunnelError;
use super::link::{self, Link};
use super::spec::{DUMMY, Tunnel};
use crate::error::Drift;
use crate::netlink::{NetlinkError, address_family, route_address, to_io};
use crate::prefix::Family;

/// The network devices of this namespace.
pub(crate) struct Tunnels<'h> {
    handle: &'h Handle,
}

/// The devices that a call has made, for the way back.
#[derive(Debug, Default)]
pub(crate) struct Made {
    devices: Vec<String>,
}

impl<'h> Tunnels<'h> {
    pub(crate) fn new(handle: &'h Handle) -> Self {
        Tunnels { handle }
    }

    /// Maps index to name, of all devices.
    pub(crate) async fn names(&self) -> Result<BTreeMap<u32, String>, NetlinkError> {
        let links = self.links().await?;
        Ok(links
            .into_iter()
            .map(|link| (link.index, link.name))
            .collect())
    }

    /// Lists the names of pepd's own devices.
    pub(crate) async fn own(&self) -> Result<Vec<String>, NetlinkError> {
        let links = self.links().await?;
        Ok(links
            .into_iter()
            .filter(Link::is_own)
            .map(|link| link.name)
            .collect())
    }

    /// Fails if a device that is not pepd's is in the way of one of `tunnels`.
    pub(crate) async fn refuse_foreign(&self, tunnels: &[Tunnel]) -> Result<(), TunnelError> {
        let links = self.links().await?;
        for tunnel in tunnels {
            let same_name = |link: &&Link| link.name == tunnel.device && !link.is_own();
            if let Some(link) = links.iter().find(same_name) {
                return Err(TunnelError::ForeignDevice {
                    device: link.name.clone(),
                });
            }
            let rival = |link: &&Link| link.rivals(tunnel) && !link.is_own();
            if let Some(link) = links.iter().find(rival) {
                return Err(TunnelError::ForeignTunnel {
                    device: link.name.clone(),
                    local: tunnel.local,
                    remote: tunnel.remote,
                });
            }
        }
        Ok(())
    }

    /// Makes those of `tunnels` that are not there, and changes those that are there but
    /// differ. A new one is down: its guard comes first. On failure the new ones are removed.
    pub(crate) async fn make(&self, tunnels: &[Tunnel]) -> Result<Made, TunnelError> {
        let mut made = Made::default();
        for tunnel in tunnels {
            match self.make_one(tunnel).await {
                Ok(true) => made.devices.push(tunnel.device.clone()),
                Ok(false) => {}
                Err(error) => {
                    self.undo(&made).await;
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    /// Notes the MTU of each device that is there.
    pub(crate) async fn note_mtus(&self, tunnels: &mut [Tunnel]) -> Result<(), NetlinkError> {
        let links = self.links().await?;
        for tunnel in tunnels {
            let link = links.iter().find(|link| link.name == tunnel.device);
            tunnel.inner_mtu = link.map(|link| link.mtu).or(tunnel.inner_mtu);
        }
        Ok(())
    }

    /// Returns whether some path carries other packets than the tunnel's device, where the file
    /// leaves its MTU to the path. Where there is no way to a peer now, its tunnel stays as it is.
    pub(crate) async fn paths_differ(&self, tunnels: &[Tunnel]) -> Result<bool, NetlinkError> {
        let links = self.links().await?;
        let mut differ = false;
        for tunnel in tunnels.iter().filter(|tunnel| tunnel.mtu.is_none()) {
            let Some(link) = links.iter().find(|link| link.name == tunnel.device) else {
                continue;
            };
            let Some(path) = self.path_mtu(tunnel).await else {
                continue;
            };
            let mtu = tunnel.mtu_on(Some(path));
            if mtu != link.mtu {
                tracing::info!(
                    tunnel = tunnel.device,
                    path,
                    mtu,
                    before = link.mtu,
                    "the path carries other packets than before: the tunnel's MTU follows"
                );
                differ = true;
            }
        }
        Ok(differ)
    }

    /// Removes what `make` made. A failure is logged: another error is the one to report.
    pub(crate) async fn undo(&self, made: &Made) {
        for device in made.devices.iter().rev() {
            if let Err(error) = self.delete(device).await {
                tracing::warn!(%error, "cannot undo");
            }
        }
    }

    /// Switches the devices of `tunnels` on.
    pub(crate) async fn up(&self, tunnels: &[Tunnel]) -> Result<(), TunnelError> {
        let links = self.links().await?;
        for tunnel in tunnels {
            let Some(link) = links.iter().find(|link| link.name == tunnel.device) else {
                return Err(gone(tunnel).into());
            };
            if !link.up {
                let mut message = LinkMessage::default();
                message.header.index = link.index;
                message.header.flags = LinkFlags::Up;
                message.header.change_mask = LinkFlags::Up;
                self.change(&tunnel.device, "up", message).await?;
            }
        }
        Ok(())
    }

    /// Removes a device. False if it was not there.
    pub(crate) async fn delete(&self, device: &str) -> Result<bool, NetlinkError> {
        let links = self.links().await?;
        let Some(link) = links.iter().find(|link| link.name == device) else {
            return Ok(false);
        };
        match self
            .handle
            .link()
            .del(link.index)
            .execute()
            .await
            .map_err(to_io)
        {
            Ok(()) => Ok(true),
            Err(source) if source.raw_os_error() == Some(libc::ENODEV) => Ok(false),
            Err(source) => Err(NetlinkError::new(format!("ip link del {device}"), source)),
        }
    }

    /// Checks that the devices of `tunnels` are there, as they should be, and up.
    pub(crate) async fn verify(&self, tunnels: &[Tunnel]) -> Result<(), TunnelError> {
        let links = self.links().await?;
        for tunnel in tunnels {
            let link = links
                .iter()
                .find(|link| link.name == tunnel.device)
                .ok_or_else(|| gone(tunnel))?;
            let differs = |what: &str| {
                TunnelError::from(Drift::new(format!("the tunnel {} {what}", tunnel.device)))
            };
            if !link.is_own() || !link.carries(tunnel) {
                return Err(differs("is not as it was made"));
            }
            if tunnel.mtu.is_some_and(|mtu| u32::from(mtu) != link.mtu) {
                return Err(differs("has another MTU"));
            }
            if !link.up {
                return Err(differs("is down"));
            }
            let there = self.addresses(link).await?;
            let missing = |net: &&IpNet| !there.iter().any(|(known, _)| known == *net);
            if let Some(net) = tunnel.inside.iter().find(missing) {
                return Err(differs(&format!("lacks the address {net}")));
            }
        }
        Ok(())
    }

    /// Makes a tunnel, or changes what is there; true if the device is new.
    async fn make_one(&self, tunnel: &Tunnel) -> Result<bool, TunnelError> {
        let mut new = false;
        let mut link = self.find(tunnel).await?;
        // The kind of a device cannot be changed.
        if let Some(other) = link.as_ref().filter(|link| !link.has_kind(tunnel.kind)) {
            self.delete(&other.name).await?;
            link = None;
        }
        let link = match link {
            Some(link) => link,
            None => {
                self.free_the_ends(tunnel).await?;
                self.add(tunnel).await?;
                new = true;
                match self.find(tunnel).await? {
                    Some(link) => link,
                    None => return Err(gone(tunnel).into()),
                }
            }
        };
        let adjusted = self.adjust(tunnel, &link).await;
        if new && adjusted.is_err() {
            // Not yet in the list of what there is to undo.
            let _ = self.delete(&tunnel.device).await;
        }
        adjusted?;
        Ok(new)
    }

    async fn add(&self, tunnel: &Tunnel) -> Result<(), TunnelError> {
        let request = self.handle.link().add(link::new(tunnel));
        request
            .execute()
            .await
            .map_err(|error| failed(tunnel, to_io(error)))
    }

    /// Removes a tunnel of pepd's with these ends and an earlier peer's name: it is in the way.
    async fn free_the_ends(&self, tunnel: &Tunnel) -> Result<(), NetlinkError> {
        let links = self.links().await?;
        for link in links
            .iter()
            .filter(|link| link.is_own() && link.rivals(tunnel))
        {
            self.delete(&link.name).await?;
        }
        Ok(())
    }

    /// Gives a device that is there the properties that differ.
    async fn adjust(&self, tunnel: &Tunnel, link: &Link) -> Result<(), NetlinkError> {
        if !link.carries(tunnel) {
            let message = link::change(tunnel, link.index);
            self.change(&tunnel.device, "type", message).await?;
        }
        let mtu = tunnel.mtu_on(self.path_mtu(tunnel).await);
        if link.mtu != mtu {
            let mut message = LinkMessage::default();
            message.header.index = link.index;
            message.attributes.push(LinkAttribute::Mtu(mtu));
            self.change(&tunnel.device, &format!("mtu {mtu}"), message)
                .await?;
        }
        self.open_the_reverse_path(tunnel, link).await?;
        self.adjust_addresses(tunnel, link).await?;
        if !link.has_alias(&tunnel.alias) {
            let mut message = LinkMessage::default();
            message.header.index = link.index;
            let alias = LinkAttribute::IfAlias(tunnel.alias.clone());
            message.attributes.push(alias);
            let what = format!("alias \"{}\"", tunnel.alias);
            self.change(&tunnel.device, &what, message).await?;
        }
        Ok(())
    }

    /// Lets in what the other boxes say themselves, ICMP errors: the host's way to their own
    /// addresses is not through the tunnel, so a strict reverse-path filter would drop them. The
    /// guard decides what may come out.
    ///
    /// The larger number of the device's filter and `all` holds: a strict `all` (1) is overridden
    /// by a loose one (2), which in turn drops everything from other interfaces' networks while the
    /// device has no address (`__fib_validate_source`, net/ipv4/fib_frontend.c).
    async fn open_the_reverse_path(
        &self,
        tunnel: &Tunnel,
        link: &Link,
    ) -> Result<(), NetlinkError> {
        let all = std::fs::read_to_string("/proc/sys/net/ipv4/conf/all/rp_filter");
        let filter = match all.as_deref().map(str::trim) {
            Ok("0") => 0,
            _ => 2,
        };
        if !link.has_filter(filter) {
            let message = link::filter(link.index, filter);
            self.change(&tunnel.device, &format!("rp_filter {filter}"), message)
                .await?;
        }
        Ok(())
    }

    /// Gives the device its addresses. Where the file names some, others are removed: they are
    /// an earlier file's.
    async fn adjust_addresses(&self, tunnel: &Tunnel, link: &Link) -> Result<(), NetlinkError> {
        let there = self.addresses(link).await?;
        let foreign = |net: &IpNet| !tunnel.inside.contains(net);
        if tunnel.inside != [DUMMY] {
            for (net, message) in there.iter().filter(|(net, _)| foreign(net)) {
                let removed = self.handle.address().del(message.clone()).execute().await;
                removed.map_err(|error| {
                    let what = format!("ip address del {net} dev {}", tunnel.device);
                    NetlinkError::new(what, to_io(error))
                })?;
            }
        }
        for net in &tunnel.inside {
            if there.iter().any(|(known, _)| known == net) {
                continue;
            }
            let address = self.handle.address();
            let mut request = address.add(link.index, net.addr(), net.prefix_len());
            // On a tunnel there is none, and in a network of two it would be the other end's.
            let attributes = &mut request.message_mut().attributes;
            attributes.retain(|it| !matches!(it, AddressAttribute::Broadcast(_)));
            if *net == DUMMY {
                request.message_mut().header.scope = AddressScope::Host;
            }
            request.execute().await.map_err(|error| {
                let what = format!("ip address add {net} dev {}", tunnel.device);
                NetlinkError::new(what, to_io(error))
            })?;
        }
        Ok(())
    }

    /// Lists the addresses of a device, but for the link-local ones, which are the kernel's.
    async fn addresses(&self, link: &Link) -> Result<Vec<(IpNet, AddressMessage)>, NetlinkError> {
        let request = self.handle.address().get();
        let messages = request.set_link_index_filter(link.index).execute();
        let messages: Vec<AddressMessage> = messages.try_collect().await.map_err(|error| {
            NetlinkError::new(format!("ip address show {}", link.name), to_io(error))
        })?;
        let ours = messages.into_iter().filter_map(|message| {
            let address = link::address(&message)?;
            Some((address, message))
        });
        Ok(ours.collect())
    }

    async fn change(
        &self,
        device: &str,
        what: &str,
        message: LinkMessage,
    ) -> Result<(), NetlinkError> {
        let request = self.handle.link().change(message);
        request.execute().await.map_err(|error| {
            NetlinkError::new(format!("ip link set {device} {what}"), to_io(error))
        })
    }

    /// Finds out what the path to the other end carries in one packet, in bytes; none if there is
    /// no route now.
    async fn path_mtu(&self, tunnel: &Tunnel) -> Option<u32> {
        let mut message = RouteMessage::default();
        let family = Family::of(tunnel.remote);
        message.header.address_family = address_family(family);
        message.header.destination_prefix_length = family.length();
        message.header.source_prefix_length = family.length();
        message.attributes = vec![
            RouteAttribute::Destination(route_address(tunnel.remote)),
            RouteAttribute::Source(route_address(tunnel.local)),
        ];
        let route = self.handle.route().get(message).execute();
        let routes: Vec<RouteMessage> = route.try_collect().await.ok()?;
        let attributes = &routes.first()?.attributes;
        let metric = attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Metrics(metrics) => metrics.iter().find_map(|metric| match metric {
                RouteMetric::Mtu(mtu) => Some(*mtu),
                _ => None,
            }),
            _ => None,
        });
        if metric.is_some() {
            return metric;
        }
        let device = attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        })?;
        let links = self.links().await.ok()?;
        let link = links.iter().find(|link| link.index == device)?;
        Some(link.mtu)
    }

    async fn find(&self, tunnel: &Tunnel) -> Result<Option<Link>, NetlinkError> {
        let links = self.links().await?;
        Ok(links.into_iter().find(|link| link.name == tunnel.device))
    }

    async fn links(&self) -> Result<Vec<Link>, NetlinkError> {
        let messages = self.handle.link().get().execute();
        let messages: Result<Vec<LinkMessage>, _> = messages.try_collect().await;
        messages
            .map(|messages| messages.iter().map(Link::read).collect())
            .map_err(|error| NetlinkError::new("ip link show", to_io(error)))
    }
}

fn gone(tunnel: &Tunnel) -> Drift {
    Drift::new(format!("the tunnel {} is not there", tunnel.device))
}

/// Says what a refusal to make a tunnel means.
fn failed(tunnel: &Tunnel, source: io::Error) -> TunnelError {
    match source.raw_os_error() {
        // "Unknown device type", and that there is no IPv6.
        Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT) => TunnelError::NoModule {
            device: tunnel.device.clone(),
            kind: tunnel.kind,
        },
        _ => {
            let shown = tunnel.to_string();
            let command = shown.lines().next().unwrap_or_default().to_owned();
            NetlinkError::new(command, source).into()
        }
    }
}
