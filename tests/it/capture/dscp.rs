//! The DSCP (RFC 2474) of what the helper box sends.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;

use anyhow::Result;
use pepd_sys::sockopt;
use pepd_testbed::traffic::{accept, listen};
use pepd_testbed::{Family, Stage, Via, World, require};
use rstest::rstest;
use socket2::{Domain, Socket, Type};

use crate::harness::PEPD;

/// What the server's kernel saw in the SYN, for a client that marks its own with 46.
#[rstest]
#[case::copied_by_default("", "", 46)]
#[case::set_on_the_way("", "dscp = 10", 10)]
#[case::copied_although_the_client_leg_has_its_own("dscp = 10", "dscp = \"copy\"", 46)]
fn the_server_sees(
    #[case] lan: &str,
    #[case] wan: &str,
    #[case] expected: u8,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let config = World::config()
        .replace("[leg.lan]", &format!("[leg.lan]\n{lan}"))
        .replace("[leg.wan]", &format!("[leg.wan]\n{wan}"));
    let stage = Stage::in_world(World::standard()?, Via::Pepd, PEPD, &config)?;
    let listener = listen(
        stage.world.server(),
        (World::server_address(family), 0).into(),
    )?;
    sockopt::set_save_syn(listener.as_fd(), 1)?;
    let to = listener.local_addr()?;
    let _client = stage.world.client().run(|| connect_marked(to, 46))?;
    let (server, _) = accept(&listener)?;
    let mut headers = [0; 120];
    sockopt::saved_syn(server.as_fd(), &mut headers)?;
    let seen = match to.ip() {
        IpAddr::V4(_) => headers[1] >> 2,
        IpAddr::V6(_) => (headers[0] & 0xf) << 2 | headers[1] >> 6,
    };
    assert_eq!(seen, expected);
    stage.finish()
}

fn connect_marked(to: SocketAddr, dscp: i32) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if to.is_ipv4() {
        sockopt::set_tos_v4(socket.as_fd(), dscp << 2)?;
    } else {
        sockopt::set_tclass_v6(socket.as_fd(), dscp << 2)?;
    }
    socket.connect(&to.into())?;
    Ok(socket.into())
}
