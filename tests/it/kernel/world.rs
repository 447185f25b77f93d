//! client (campus a) ── box ── router ── server (campus b, another address of campus a, and
//! one of nobody's). From the router to the server packets of 1300 bytes at most go through.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pepd_net::{Gate, Installed, Request};
use socket2::{Domain, Socket, Type};

use super::netns::{Netns, PORT, veth, wait_for_address};
use crate::harness::LIMIT;

pub const CLIENT4: &str = "10.1.0.2";
pub const CLIENT6: &str = "fd00:a::2";
pub const SERVER4: &str = "10.2.0.2";
pub const SERVER6: &str = "fd00:b::2";
/// An address at the server's end, but of the client's campus.
pub const SAME4: &str = "10.1.200.2";
pub const SAME6: &str = "fd00:a:0:200::2";
/// An address at the server's end, of no campus.
pub const OUTSIDE4: &str = "10.9.0.2";
pub const OUTSIDE6: &str = "fd00:f::2";
pub const WEB: u16 = 80;
pub const SSH: u16 = 22;

pub const LONG: Duration = Duration::from_secs(600);

/// The end that accepted a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// A listener of the helper box, for the original destination.
    Box,
    Server,
}

pub struct World {
    pub client: Netns,
    pub hb: Netns,
    /// It forwards as long as it lives.
    _router: Netns,
    pub server: Netns,
    /// The helper box's listeners, then the server's.
    pub listeners: Vec<(Answered, Socket)>,
    pub gate: Gate,
}

impl World {
    pub fn new() -> World {
        let (client, hb, router, server) = (Netns::new(), Netns::new(), Netns::new(), Netns::new());
        for netns in [&hb, &router] {
            netns.sysctl("net/ipv4/ip_forward", "1");
            netns.sysctl("net/ipv6/conf/all/forwarding", "1");
        }
        cable(&client, &hb, &router, &server);
        route(&client, &hb, &router, &server);
        let mut listeners = Vec::new();
        for address in ["127.73.0.1", "100::73:0:1", "127.73.0.2", "100::73:0:2"] {
            let address = SocketAddr::new(address.parse().unwrap(), PORT);
            listeners.push((Answered::Box, hb.run(|| listener(address, true))));
        }
        for address in ["0.0.0.0", "::"] {
            for port in [WEB, SSH, PORT] {
                let address = SocketAddr::new(address.parse().unwrap(), port);
                listeners.push((Answered::Server, server.run(|| listener(address, false))));
            }
        }
        let gate = hb.run(|| Gate::open().unwrap());
        let world = World {
            client,
            hb,
            _router: router,
            server,
            listeners,
            gate,
        };
        // The first packets after the links came up may be lost, and sent again: nothing is
        // counted yet.
        for server in [SERVER4, SERVER6] {
            assert_eq!(world.connect(server, WEB), Answered::Server);
        }
        world
    }

    /// Returns the world with pepd installed and its gate open.
    pub fn with(request: &Request) -> (World, Installed) {
        let world = World::new();
        let installed = world.hb.install(request).unwrap();
        world.gate.renew(LONG).unwrap();
        (world, installed)
    }

    /// Ends the helper box's listeners. They are shut down, not only closed: a child that another
    /// test starts has its own descriptors of them until it executes its program.
    pub fn end_box_listeners(&mut self) {
        self.listeners.retain(|(who, listener)| {
            let stays = *who == Answered::Server;
            if !stays {
                listener.shutdown(Shutdown::Both).unwrap();
            }
            stays
        });
    }

    /// Connects from the client, says something each way, and tells who answered.
    pub fn connect(&self, server: &str, port: u16) -> Answered {
        let destination = SocketAddr::new(server.parse().unwrap(), port);
        let mut client = self
            .client
            .run(|| TcpStream::connect_timeout(&destination, LIMIT))
            .unwrap_or_else(|error| panic!("{destination}: {error}"));
        let (answered, mut accepted) = self.accept();
        assert_eq!(accepted.local_addr().unwrap(), destination);
        assert_eq!(accepted.peer_addr().unwrap(), client.local_addr().unwrap());
        transfer(&mut client, &mut accepted, 10);
        transfer(&mut accepted, &mut client, 10);
        answered
    }

    /// Who has accepted a connection, and the connection.
    pub fn accept(&self) -> (Answered, TcpStream) {
        let mut fds: Vec<PollFd> = self
            .listeners
            .iter()
            .map(|(_, socket)| PollFd::new(socket.as_fd(), PollFlags::POLLIN))
            .collect();
        let timeout = PollTimeout::try_from(LIMIT).unwrap();
        assert_eq!(poll_all(&mut fds, timeout), 1, "who has accepted?");
        let ready = fds.iter().position(|fd| fd.any() == Some(true)).unwrap();
        let (answered, socket) = &self.listeners[ready];
        let accepted = TcpStream::from(socket.accept().unwrap().0);
        accepted.set_nonblocking(false).unwrap();
        (*answered, accepted)
    }

    /// Returns the packets of a counter of pepd's table.
    pub fn count(&self, counter: &str) -> u64 {
        let listing = self.hb.nft(&format!("list counter inet pepd {counter}"));
        let (_, packets) = listing.split_once("packets ").unwrap();
        packets.split(' ').next().unwrap().parse().unwrap()
    }
}

fn cable(client: &Netns, hb: &Netns, router: &Netns, server: &Netns) {
    veth((client, "east"), (hb, "west"));
    veth((hb, "east"), (router, "west"));
    veth((router, "east"), (server, "west"));
    for (netns, device, addresses) in [
        (client, "east", &["10.1.0.2/24", "fd00:a::2/64"][..]),
        (hb, "west", &["10.1.0.1/24", "fd00:a::1/64"]),
        (hb, "east", &["192.0.2.1/30", "2001:db8:1::1/64"]),
        (router, "west", &["192.0.2.2/30", "2001:db8:1::2/64"]),
        (router, "east", &["192.0.2.5/30", "2001:db8:2::1/64"]),
        (server, "west", &["192.0.2.6/30", "2001:db8:2::2/64"]),
        (server, "lo", &["10.2.0.2/32", "fd00:b::2/128"]),
        (server, "lo", &["10.1.200.2/32", "fd00:a:0:200::2/128"]),
        (server, "lo", &["10.9.0.2/32", "fd00:f::2/128"]),
    ] {
        for address in addresses {
            netns.ip(&format!("addr add {address} dev {device}"));
        }
        for (address, _) in addresses.iter().filter_map(|net| net.split_once('/')) {
            if address.contains(':') {
                wait_for_address(netns, address);
            }
        }
    }
}

fn route(client: &Netns, hb: &Netns, router: &Netns, server: &Netns) {
    for (netns, via4, via6) in [
        (client, "10.1.0.1", "fd00:a::1"),
        (hb, "192.0.2.2", "2001:db8:1::2"),
        (server, "192.0.2.5", "2001:db8:2::1"),
    ] {
        netns.ip(&format!("route add default via {via4}"));
        netns.ip(&format!("-6 route add default via {via6}"));
    }
    for (family, to_client, via_client, via_server) in [
        ("-4", "10.1.0.0/24", "192.0.2.1", "192.0.2.6"),
        ("-6", "fd00:a::/64", "2001:db8:1::1", "2001:db8:2::2"),
    ] {
        router.ip(&format!("{family} route add {to_client} via {via_client}"));
        // Not the device's MTU: the server would fit its MSS to that.
        router.ip(&format!(
            "{family} route add default via {via_server} mtu lock 1300"
        ));
    }
}

/// As poll(2), as often as a signal interrupts it.
pub fn poll_all(fds: &mut [PollFd], timeout: PollTimeout) -> i32 {
    loop {
        match poll(fds, timeout) {
            Err(Errno::EINTR) => {}
            ready => return ready.unwrap(),
        }
    }
}

pub fn listener(address: SocketAddr, transparent: bool) -> Socket {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    if address.is_ipv6() {
        socket.set_only_v6(true).unwrap();
        socket.set_ip_transparent_v6(transparent).unwrap();
    } else {
        socket.set_ip_transparent_v4(transparent).unwrap();
    }
    socket.bind(&address.into()).unwrap();
    socket.listen(16).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Moves `size` bytes and checks them.
pub fn transfer(from: &mut TcpStream, to: &mut TcpStream, size: usize) {
    for stream in [&*from, &*to] {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
    }
    let sent: Vec<u8> = (0..251u8).cycle().take(size).collect();
    let mut received = vec![0; size];
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| from.write_all(&sent));
        to.read_exact(&mut received).unwrap();
        writer.join().unwrap().unwrap();
    });
    assert!(sent == received, "the bytes differ");
}
