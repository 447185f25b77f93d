//! What the connections of a leg with a rate of its own are told apart by.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;

use ipnet::IpNet;
use pepd_packet::SourcePrefix;
use pepd_sys::sockopt::{self, OptionError};

/// Who gets equal parts of a leg's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Each connection.
    Flow,
    /// Each source, with all its connections.
    Source(SourcePrefix),
}

/// Connections that count more, or less, than others. They match if they match every list that is not
/// empty.
#[derive(Clone, Debug)]
pub struct WeightRule {
    /// The client's addresses.
    pub source: Vec<IpNet>,
    /// The server's addresses.
    pub destination: Vec<IpNet>,
    /// The server's ports.
    pub destination_port: Vec<RangeInclusive<u16>>,
    /// As how many connections each of them counts, 1 to 16.
    pub weight: u8,
}

impl WeightRule {
    fn matches(&self, client: SocketAddr, server: SocketAddr) -> bool {
        let any = |nets: &[IpNet], address: SocketAddr| {
            let address = address.ip().to_canonical();
            nets.is_empty() || nets.iter().any(|net| net.contains(&address))
        };
        let ports = &self.destination_port;
        any(&self.source, client)
            && any(&self.destination, server)
            && (ports.is_empty() || ports.iter().any(|it| it.contains(&server.port())))
    }
}

/// Returns the weight of a connection: that of the first rule that it matches.
pub(crate) fn weight(rules: &[WeightRule], client: SocketAddr, server: SocketAddr) -> u8 {
    let mut matching = rules.iter().filter(|rule| rule.matches(client, server));
    matching.next().map_or(1, |rule| rule.weight)
}

impl Share {
    /// Returns what the leg's control in the kernel reads of a socket's priority (pepd-bpf,
    /// `src/bpf/sources.h`): the bits of an IPv6 address that make a source, 0 for each connection on
    /// its own, and the weight. It leaves out the last four bits, which choose among a queueing
    /// discipline's bands (tc-prio(8)), and is below what names a class of one (65,536).
    fn priority(self, weight: u8) -> i32 {
        let bits = match self {
            Self::Flow => 0,
            Self::Source(prefix) => prefix.0.clamp(1, 128),
        };
        i32::from(bits) << 8 | (i32::from(weight.clamp(1, 16)) - 1) << 4
    }
}

/// Tells the control of a leg whose rate is shared so what a connection of it counts as: at once, as the
/// control looks at it whenever something is sent or acknowledged. What every new socket has already is
/// not said.
pub(crate) fn tell(fd: BorrowedFd<'_>, share: Share, weight: u8) -> Result<(), OptionError> {
    const BAND: i32 = 15;
    match share.priority(weight) {
        0 => Ok(()),
        said => {
            let band = sockopt::priority(fd)? & BAND;
            sockopt::set_priority(fd, said | band)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usual_is_not_said() {
        assert_eq!(Share::Flow.priority(1), 0);
        assert_eq!(Share::Flow.priority(16), 0xf0);
        assert_eq!(Share::Source(SourcePrefix::NETWORK).priority(3), 0x4020);
        assert_eq!(Share::Source(SourcePrefix::ADDRESS).priority(16), 0x80f0);
    }

    #[test]
    fn the_first_rule_decides() {
        let rule = |source: &str, ports: &[RangeInclusive<u16>], weight| WeightRule {
            source: vec![source.parse().unwrap()],
            destination: Vec::new(),
            destination_port: ports.to_vec(),
            weight,
        };
        let rules = [
            rule("10.1.9.0/24", &[22..=22], 4),
            rule("10.1.0.0/16", &[], 2),
        ];
        let of = |client: &str, port| {
            let client = SocketAddr::new(client.parse().unwrap(), 1);
            weight(
                &rules,
                client,
                SocketAddr::new("10.2.0.2".parse().unwrap(), port),
            )
        };
        assert_eq!(of("10.1.9.1", 22), 4);
        assert_eq!(of("10.1.9.1", 80), 2);
        assert_eq!(of("10.3.0.1", 22), 1);
    }
}
