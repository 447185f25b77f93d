//! The notes of a simulated connection, and going on with it when its process has died.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use super::leg::{Died, Side, SimLeg, SimLoan, SimPipe, SimPool, World};
use crate::connection::direction::Direction;
use crate::connection::forward::Connection;
use crate::connection::leg::{Failure, Fate};
use crate::connection::memo::Memo;
use crate::connection::recovery::{Both, Noted, Recovered, Unclear, recover};
use crate::connection::state::{State, Way};

/// The notes, which outlive whoever takes them.
#[derive(Clone, Debug)]
pub(super) struct SimMemo {
    world: Rc<World>,
    notes: Rc<Notes>,
}

#[derive(Debug)]
struct Notes {
    ways: [OfWay; 2],
    failures: Cell<[Option<Failure>; 2]>,
}

#[derive(Debug)]
struct OfWay {
    state: Cell<State>,
    urgent: Cell<Option<u8>>,
    copies: Cell<bool>,
    pipe: RefCell<Option<Rc<SimPipe>>>,
}

impl OfWay {
    fn new() -> Self {
        Self {
            state: Cell::new(State::Running),
            urgent: Cell::default(),
            copies: Cell::default(),
            pipe: RefCell::default(),
        }
    }

    fn noted(&self) -> Noted {
        let in_pipe = |pipe: &Rc<SimPipe>| usize::try_from(pipe.len.get()).unwrap();
        Noted {
            state: self.state.get(),
            urgent: self.urgent.get(),
            copies: self.copies.get(),
            in_pipe: self.pipe.borrow().as_ref().map(in_pipe),
        }
    }
}

impl SimMemo {
    pub(super) fn new(world: &Rc<World>) -> Self {
        let notes = Notes {
            ways: [OfWay::new(), OfWay::new()],
            failures: Cell::default(),
        };
        Self {
            world: Rc::clone(world),
            notes: Rc::new(notes),
        }
    }

    /// Returns where to note something: each note is an instruction.
    fn of(&self, way: Way) -> &OfWay {
        self.world.live();
        self.kept(way)
    }

    fn kept(&self, way: Way) -> &OfWay {
        match way {
            Way::Up => &self.notes.ways[0],
            Way::Down => &self.notes.ways[1],
        }
    }

    /// Finds how the connection goes on.
    fn recover(&self, early: u64) -> Result<(Both<Recovered>, Both<Fate>), Unclear> {
        let noted = [self.kept(Way::Up).noted(), self.kept(Way::Down).noted()];
        let [mut client, mut upstream] =
            [Side::Client, Side::Upstream].map(|side| self.world.socket(side).borrow().figures(0));
        client.read += early;
        upstream.written += early;
        recover(&noted, self.notes.failures.get(), &[client, upstream])
    }

    /// Goes on with a direction.
    fn direction(&self, way: Way, recovered: &Recovered, pool: &SimPool) -> Direction<SimLoan> {
        let pipe = self.kept(way).pipe.borrow().clone();
        Direction::go_on(way, recovered, pipe.map(|pipe| pool.lend_again(pipe)))
    }
}

impl Memo for SimMemo {
    type Pipe = Rc<SimPipe>;

    fn note_pipe(&self, way: Way, pipe: Option<&Rc<SimPipe>>) {
        *self.of(way).pipe.borrow_mut() = pipe.cloned();
    }

    fn note_urgent(&self, way: Way, byte: Option<u8>) {
        self.of(way).urgent.set(byte);
    }

    fn note_copying(&self, way: Way, copies: bool) {
        self.of(way).copies.set(copies);
    }

    fn note_state(&self, way: Way, state: State) {
        self.of(way).state.set(state);
    }

    fn note_failures(&self, failures: [Option<Failure>; 2]) {
        self.world.live();
        self.notes.failures.set(failures);
    }
}

/// What a process has in its memory that relays one direction: the legs, and the direction.
pub(super) type Alone = (SimLeg, SimLeg, Direction<SimLoan>);

/// And one that relays a connection.
pub(super) type Joined = Connection<SimLeg, SimLoan, SimMemo>;

impl SimMemo {
    /// Goes on with the direction from the client alone.
    pub(super) fn find_direction(&self, early: u64, pool: &SimPool) -> Result<Alone, Unclear> {
        let ([up, _], [client, upstream]) = self.recover(early)?;
        Ok((
            SimLeg::new(&self.world, Side::Client, client),
            SimLeg::new(&self.world, Side::Upstream, upstream),
            self.direction(Way::Up, &up, pool),
        ))
    }

    /// Goes on with both directions.
    pub(super) fn find_connection(&self, early: u64, pool: &SimPool) -> Result<Joined, Unclear> {
        let ([up, down], [client, upstream]) = self.recover(early)?;
        Ok(Connection {
            memo: self.clone(),
            client: SimLeg::new(&self.world, Side::Client, client),
            upstream: SimLeg::new(&self.world, Side::Upstream, upstream),
            up: self.direction(Way::Up, &up, pool),
            down: self.direction(Way::Down, &down, pool),
        })
    }
}

/// Does `work` on what a process has in its memory; where the process dies of it, another goes on with
/// what it finds. None where nobody can know how.
pub(super) fn outlive<T, R>(
    pool: &SimPool,
    memory: &mut T,
    mut work: impl FnMut(&mut T) -> R,
    find: impl Fn() -> Result<T, Unclear>,
) -> Option<R> {
    loop {
        match catch_unwind(AssertUnwindSafe(|| work(memory))) {
            Ok(result) => return Some(result),
            Err(why) if <dyn Any>::is::<Died>(&*why) => {}
            Err(why) => resume_unwind(why),
        }
        pool.world.client.borrow_mut().is_found();
        pool.world.upstream.borrow_mut().is_found();
        pool.loans.dead.set(true);
        match find() {
            Ok(found) => *memory = found,
            Err(Unclear::Closed) => return None,
            Err(why @ Unclear::Contradiction { .. }) => panic!("{why}"),
        }
        pool.loans.dead.set(false);
    }
}
