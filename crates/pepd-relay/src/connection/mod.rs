//! One connection from its accept to its end. In the order in which it passes them:
//! `establish` (from the accepted client to two joined legs, with `upstream`), `leg` (what a
//! direction asks of one) and `leg_socket`, `state`, `direction` and `forward` (the relay), `record`
//! (its entry in the table of flows, and its end), `access_log`, `outcome`. What it notes for
//! whoever goes on with it after a crash is in `memo`, and how that is done in `recovery` and
//! `take_over`.
//! `simulation` tests the relay, and the recovery, without a socket.

pub(crate) mod access_log;
mod direction;
mod establish;
pub(crate) mod forward;
mod join;
pub(crate) mod leg;
pub(crate) mod leg_socket;
pub(crate) mod memo;
mod outcome;
mod record;
pub(crate) mod recovery;
#[cfg(test)]
mod simulation;
pub(crate) mod state;
mod take_over;
pub(crate) mod upstream;

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use pepd_sys::clock;
use tokio::sync::mpsc::Sender;

use crate::limits::Permit;
use crate::moving;
use crate::moving::asked::{Asked, FreezeOrder};
use crate::shared::Context;
use crate::slots::found::FoundConnection;
use crate::slots::slot::Identity;
pub(crate) use establish::{Accepted, Upstream};
use establish::{Established, establish};
use forward::Connection;
use record::ConnectionRecord;
use take_over::take_over;

/// Serves one connection; never fails, because there is nobody to tell but the log.
///
/// What is needed only before the legs are joined, or after they have ended, is in boxes of its
/// own: the task lives for as long as the connection does.
pub(crate) fn serve(context: Arc<Context>, accepted: Accepted) -> impl Future<Output = ()> {
    let establishing = Box::pin(establish(Arc::clone(&context), accepted));
    carry(context, establishing)
}

/// The connections that are gone on with before those that have gone on already may run.
const TOGETHER: usize = 32;

/// Goes on with all connections that another process has left, a few at a time: what has happened on those that
/// go on is seen to in between. When all of them are known nobody has `begins` any more.
pub(crate) async fn go_on_with_all(
    context: Arc<Context>,
    found: Vec<FoundConnection>,
    begins: Sender<Infallible>,
) {
    let mut begun = 0;
    for found in found {
        let (taking_over, begins) = (take_over(Arc::clone(&context), found), begins.clone());
        let beginning = Box::pin(async move {
            let established = taking_over.await;
            drop(begins);
            established
        });
        tokio::spawn(carry(Arc::clone(&context), beginning));
        begun += 1;
        if begun % TOGETHER == 0 {
            // Until the others have had their turn, and the reactor.
            tokio::task::yield_now().await;
        }
    }
}

/// Goes on with a connection that another process has left, or another box, or that was frozen.
pub(crate) fn go_on(context: Arc<Context>, found: FoundConnection) -> impl Future<Output = ()> {
    let taking_over = Box::pin(take_over(Arc::clone(&context), found));
    carry(context, taking_over)
}

async fn carry(
    context: Arc<Context>,
    established: Pin<Box<impl Future<Output = Option<Established>>>>,
) {
    let counters = &*context.shared.counters;
    let _live = counters.live.increment();
    let Some(Established {
        permit,
        watch,
        mut record,
        mut connection,
    }) = established.await
    else {
        return;
    };
    let mut permit = Some(permit);
    let asked = watch.asked();
    loop {
        let end = {
            let mut run = pin!(connection.run(&context, &record));
            // It waits only between two steps: nothing is lost where it is dropped there.
            poll_fn(|task| match asked.is_wanted(task) {
                true => Poll::Ready(None),
                false => run.as_mut().poll(task).map(Some),
            })
            .await
        };
        if let Some(end) = end {
            Box::pin(connection.finish(end, &context.shared, &mut record)).await;
            return;
        }
        match freeze(connection, &mut permit, asked, &mut record) {
            Some(goes_on) => connection = *goes_on,
            None => return,
        }
    }
}

/// Freezes a connection as it is asked to, and gives it to whoever asks; or gives it back, where it cannot
/// be frozen now or nobody asks any more.
fn freeze(
    connection: Connection,
    permit: &mut Option<Permit>,
    asked: &Asked,
    record: &mut ConnectionRecord,
) -> Option<Box<Connection>> {
    let Some(FreezeOrder { answer, go_on }) = asked.take() else {
        return Some(Box::new(connection));
    };
    let flow = record.flow();
    let age = flow.info().accepted.elapsed();
    let identity = Identity {
        id: flow.id(),
        client: flow.info().client,
        server: flow.info().server,
        handshake: flow.info().handshake,
        accepted: clock::monotonic().saturating_sub(age),
    };
    match moving::freeze(connection, identity, go_on) {
        Ok(mut frozen) => {
            // It is counted all the while.
            frozen.keep(permit.take());
            record.goes_on();
            // Where nobody waits any more, it is thawed.
            let _ = answer.try_send(Ok(frozen));
            None
        }
        Err((connection, why)) => {
            let _ = answer.try_send(Err(why));
            Some(connection)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task lives as long as its connection: a page of 4 KiB holds four.
    #[test]
    fn a_connections_task_is_small() {
        fn size<F: Future>(_: impl FnOnce(Arc<Context>, Accepted) -> F) -> usize {
            size_of::<F>()
        }
        let size = size(serve);
        assert!(size <= 928, "{size}");
    }
}
