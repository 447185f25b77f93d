//! Reading and writing numbers and addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use pepd_packet::FourTuple;

/// What is left of a frame that is read.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.bytes().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    /// Reads a byte that says yes or no.
    pub(super) fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// Reads what may be there.
    pub(super) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Option<T>> {
        match self.flag()? {
            true => read(self).map(Some),
            false => Some(None),
        }
    }

    /// Reads a list of at most `most`.
    pub(super) fn list<T>(
        &mut self,
        most: usize,
        mut read: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let length = usize::from(self.u16()?);
        if length > most {
            return None;
        }
        (0..length).map(|_| read(self)).collect()
    }

    pub(super) fn address(&mut self) -> Option<SocketAddr> {
        let ip = match self.u8()? {
            4 => IpAddr::from(Ipv4Addr::from(self.bytes::<4>()?)),
            6 => IpAddr::from(Ipv6Addr::from(self.bytes::<16>()?)),
            _ => return None,
        };
        Some(SocketAddr::new(ip, self.u16()?))
    }

    pub(super) fn flow(&mut self) -> Option<FourTuple> {
        let flow = FourTuple {
            client: self.address()?,
            server: self.address()?,
        };
        (flow.client.is_ipv4() == flow.server.is_ipv4()).then_some(flow)
    }

    /// Gives all that is left.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A frame that is written.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_be_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_be_bytes());
    }

    pub(super) fn flag(&mut self, value: bool) {
        self.u8(value.into());
    }

    pub(super) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Writes a list of no more than 65,535.
    pub(super) fn list<T>(&mut self, list: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.u16(u16::try_from(list.len()).unwrap_or(u16::MAX));
        for value in list {
            write(self, value);
        }
    }

    pub(super) fn address(&mut self, address: SocketAddr) {
        match address.ip() {
            IpAddr::V4(v4) => {
                self.u8(4);
                self.bytes(&v4.octets());
            }
            IpAddr::V6(v6) => {
                self.u8(6);
                self.bytes(&v6.octets());
            }
        }
        self.u16(address.port());
    }

    pub(super) fn flow(&mut self, flow: FourTuple) {
        self.address(flow.client);
        self.address(flow.server);
    }
}
