//! Who is compared with whom.

use super::contender::Contender;
use super::contender::Contender::{
    Earlier, EarlierEndToEnd, HaproxyAuto, HaproxyForced, Pepd, PepdAsked, PepdEndToEnd,
    PepdUnasked, Plain, PlainBesideCrowd,
};

/// A contender, and the one that it is divided by.
pub type Ratio = (Contender, Contender);

/// What pepd is compared with, beside plain forwarding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lineup {
    /// HAProxy.
    Haproxy,
    /// Another build of pepd: what a change costs is seen only within one run.
    EarlierBuild,
}

impl Lineup {
    /// Returns those that are compared once a connection is there, or when all answer early.
    pub fn main(self) -> &'static [Contender] {
        match self {
            Self::Haproxy => &[Plain, Pepd, HaproxyAuto, HaproxyForced],
            Self::EarlierBuild => &[Plain, Pepd, Earlier],
        }
    }

    /// Returns those that are compared in how connections are established. How HAProxy splices
    /// does not matter there.
    pub fn handshake(self) -> &'static [Contender] {
        match self {
            Self::Haproxy => &[Plain, Pepd, PepdEndToEnd, HaproxyAuto],
            Self::EarlierBuild => &[Plain, Pepd, PepdEndToEnd, Earlier, EarlierEndToEnd],
        }
    }

    /// Returns those that are compared in what the admin API costs the relay.
    pub fn admin(self) -> &'static [Contender] {
        match self {
            Self::Haproxy => &[Plain, PlainBesideCrowd, PepdUnasked, PepdAsked],
            Self::EarlierBuild => &[],
        }
    }

    /// Returns the ratios that stand beside [`Lineup::main`].
    pub fn main_ratios(self) -> &'static [Ratio] {
        match self {
            Self::Haproxy => &[(Pepd, HaproxyAuto), (Pepd, HaproxyForced)],
            Self::EarlierBuild => &[(Pepd, Earlier)],
        }
    }

    /// Returns the ratios that stand beside [`Lineup::handshake`].
    pub fn handshake_ratios(self) -> &'static [Ratio] {
        match self {
            Self::Haproxy => &[
                (Pepd, HaproxyAuto),
                (PepdEndToEnd, HaproxyAuto),
                (PepdEndToEnd, Pepd),
            ],
            Self::EarlierBuild => &[
                (Pepd, Earlier),
                (PepdEndToEnd, EarlierEndToEnd),
                (PepdEndToEnd, Pepd),
            ],
        }
    }

    /// Returns the ratios that stand beside [`Lineup::admin`].
    pub fn admin_ratios(self) -> &'static [Ratio] {
        match self {
            Self::Haproxy => &[(PlainBesideCrowd, Plain), (PepdAsked, PepdUnasked)],
            Self::EarlierBuild => &[],
        }
    }
}
