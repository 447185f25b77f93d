//! Sockets kept for the next upstream leg, one for each family and worker: an accepted connection
//! cannot fail for want of a descriptor, however many listeners there are.

use std::cell::RefCell;

use socket2::{Domain, Socket};

thread_local! {
    static SPARE: RefCell<[Option<Socket>; 2]> = const { RefCell::new([None, None]) };
}

/// Takes this worker's, if it has one.
pub(crate) fn take(domain: Domain) -> Option<Socket> {
    SPARE.with_borrow_mut(|spare| spare[place(domain)].take())
}

/// Keeps a socket, in place of the one that there may be.
pub(crate) fn keep(domain: Domain, socket: Socket) {
    SPARE.with_borrow_mut(|spare| spare[place(domain)] = Some(socket));
}

fn place(domain: Domain) -> usize {
    usize::from(domain == Domain::IPV6)
}
