//! Connections without a socket: random histories of data, FIN, RST, urgent bytes, full pipes
//! full sinks and calls that lack memory, against a plain
//! oracle.
//!
//! `socket` is the kernel's side, as its source has it (net/ipv4/tcp.c); `leg` the relay's, with
//! what the runtime does between them; `history` what happens, which may be between any two
//! calls; `oracle` what must hold; `memo` what is left when the process dies, which it may before any
//! call and any note, and another one goes on. Whoever waits is woken only by what would wake it: a
//! connection that sleeps through something does so here too.

mod history;
mod leg;
mod memo;
mod oracle;
mod socket;

use std::rc::Rc;

use pepd_telemetry::Counter;
use proptest::prelude::*;
use tokio::io::Interest;

use self::history::History;
use self::leg::{Side, SimLeg, World};
use self::memo::{Joined, SimMemo, outlive};
use self::oracle::{Oracle, check_loans};
use crate::connection::direction::{Direction, Need};
use crate::connection::forward::{Connection, Next, interest};
use crate::connection::leg::Fate;
use crate::connection::state::Way;

/// More steps than any history takes: a connection that makes more wakes itself.
const MOST_STEPS: usize = 5000;

/// Returns what wakes the connection, if anything: first what has been seen already, then whatever
/// happens. At the end everything that is under way arrives.
fn wait(
    world: &Rc<World>,
    client: (&mut SimLeg, Option<Interest>),
    upstream: (&mut SimLeg, Option<Interest>),
) -> bool {
    let mut is_over = false;
    loop {
        world.client.borrow_mut().show();
        world.upstream.borrow_mut().show();
        if client.0.wakes(client.1) || upstream.0.wakes(upstream.1) {
            return true;
        }
        if is_over {
            return false;
        }
        if !world.happen() {
            is_over = true;
            for socket in [&world.client, &world.upstream] {
                socket.borrow_mut().conclude();
            }
        }
    }
}

/// Drives one direction through one history.
fn relay_one_direction(history: &History) {
    let (world, pool) = history.begin();
    let memo = SimMemo::new(&world);
    let early = history.early as u64;
    let mut direction = Direction::new(Way::Up);
    direction.sent_early(history.early);
    let (source, sink) = (
        SimLeg::new(&world, Side::Client, Fate::default()),
        SimLeg::new(&world, Side::Upstream, Fate::default()),
    );
    let mut memory = (source, sink, direction);
    let mut oracle = Oracle::new(Side::Client, Side::Upstream);
    let copied = Counter::default();
    for _ in 0..MOST_STEPS {
        let need = outlive(
            &pool,
            &mut memory,
            |(source, sink, direction)| direction.step(source, sink, &pool, &memo, &copied),
            || memo.find_direction(early, &pool),
        );
        let Some(need) = need else {
            return;
        };
        let (source, sink, direction) = &mut memory;
        let bytes = direction.report(need).bytes - early;
        oracle.check(&world, direction.state(), bytes);
        let keeps_pipe = matches!(need, Need::Sink | Need::Turn | Need::Memory);
        check_loans(&pool.loans, keeps_pipe.into());
        assert_eq!(need == Need::Nothing, direction.state().is_final());
        let towards_source = interest(need, Need::Nothing);
        let towards_sink = interest(Need::Nothing, need);
        if matches!(need, Need::Turn | Need::Memory) {
            continue;
        }
        if !wait(&world, (source, towards_source), (sink, towards_sink)) {
            oracle.check_at_rest(&world);
            return;
        }
    }
    panic!("it goes on and on");
}

/// Drives both directions through one history.
fn relay_both_directions(history: &History) {
    let (world, pool) = history.begin();
    let memo = SimMemo::new(&world);
    let early = history.early as u64;
    let (client, upstream) = (
        SimLeg::new(&world, Side::Client, Fate::default()),
        SimLeg::new(&world, Side::Upstream, Fate::default()),
    );
    let mut connection: Joined = Connection::new(client, upstream, memo.clone());
    connection.up.sent_early(history.early);
    let mut oracles = (
        Oracle::new(Side::Client, Side::Upstream),
        Oracle::new(Side::Upstream, Side::Client),
    );
    for _ in 0..MOST_STEPS {
        let round = outlive(
            &pool,
            &mut connection,
            |connection| connection.round(&pool, &Counter::default()),
            || memo.find_connection(early, &pool),
        );
        let Some(round) = round else {
            return;
        };
        let Connection { up, down, .. } = &mut connection;
        let bytes = up.report(round.up).bytes - early;
        oracles.0.check(&world, up.state(), bytes);
        oracles
            .1
            .check(&world, down.state(), down.report(round.down).bytes);
        let keeps_pipe = |need| u64::from(matches!(need, Need::Sink | Need::Turn | Need::Memory));
        check_loans(&pool.loans, keeps_pipe(round.up) + keeps_pipe(round.down));
        let has_ended = up.state().is_final() && down.state().is_final();
        assert_eq!(round.next == Next::End, has_ended);
        if !goes_on(&world, &mut connection, round.next, (round.up, round.down)) {
            oracles.0.check_at_rest(&world);
            oracles.1.check_at_rest(&world);
            return;
        }
    }
    panic!("it goes on and on");
}

/// Returns whether there is another round: at once, or since something has woken the connection.
fn goes_on(
    world: &Rc<World>,
    connection: &mut Joined,
    next: Next,
    (up, down): (Need, Need),
) -> bool {
    match next {
        Next::End => false,
        Next::Yield | Next::Again | Next::EventOrPause => true,
        Next::Event | Next::EventInTime => wait(
            world,
            (&mut connection.client, interest(up, down)),
            (&mut connection.upstream, interest(down, up)),
        ),
    }
}

#[test]
fn an_error_is_known_that_nobody_noted() {
    relay_both_directions(&History::of_an_error_that_nobody_noted());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_direction_delivers_all_that_came_and_then_its_end(history in History::any(false, 0)) {
        relay_one_direction(&history);
    }

    #[test]
    fn a_connection_delivers_all_that_came_and_then_its_ends(history in History::any(true, 0)) {
        relay_both_directions(&history);
    }

    #[test]
    fn a_direction_does_so_too_whose_process_dies(history in History::any(false, 4)) {
        relay_one_direction(&history);
    }

    #[test]
    fn a_connection_does_so_too_whose_process_dies(history in History::any(true, 4)) {
        relay_both_directions(&history);
    }
}
