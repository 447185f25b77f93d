//! The pool of pipes: a worker lends and takes back while the main thread changes its share and
//! looks at it. The pipes are real.

use std::sync::Arc;

use loom::thread;

use crate::pipe_pool::{LendPipes as _, LentPipe as _, PipePool};

/// The share shrinks while a pipe is under way: none is kept that there is no place for.
pub fn the_share_shrinks_meanwhile(dropped: bool) {
    loom::model(move || {
        let pool = Arc::new(PipePool::new(1));
        let lent = pool.lend();
        let shrinking = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                pool.set_most(0);
                let (lent, most) = pool.usage();
                assert!(lent <= 1 && most == 0);
            })
        };
        match lent {
            Some(loan) if dropped => drop(loan),
            Some(loan) => loan.give_back(),
            None => {}
        }
        shrinking.join().unwrap_or_default();
        assert_eq!(pool.usage(), (0, 0));
        assert!(pool.lend().is_none(), "an idle pipe beyond the share");
    });
}
