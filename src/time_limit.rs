//! Work that may never come back: a file on a file system that does not answer, a kernel module
//! that is being loaded.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

/// The reason why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum NoResult {
    /// It has not come back within the limit; its thread waits on.
    #[error("no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// There is no thread to be had, or it has panicked.
    #[error("run it on a thread of its own: {0}")]
    Thread(io::Error),
}

/// Runs `work` on a thread of its own, and waits for it no longer than `limit`.
pub fn run<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoResult> {
    let (sender, receiver) = sync_channel(1);
    let thread = spawn(move || {
        // Nobody may be waiting any more.
        _ = sender.send(work());
    })?;
    match receiver.recv_timeout(limit) {
        Ok(result) => {
            // Once it is over there is one thread less, for whoever counts.
            _ = thread.join();
            Ok(result)
        }
        Err(RecvTimeoutError::Timeout) => Err(NoResult::TimedOut(limit)),
        Err(RecvTimeoutError::Disconnected) => Err(panicked()),
    }
}

/// As [`run`], while the runtime goes on.
pub async fn run_async<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoResult> {
    let (sender, receiver) = oneshot::channel();
    // Not one of the runtime's: that waits for its threads when it ends.
    spawn(move || {
        _ = sender.send(work());
    })?;
    match tokio::time::timeout(limit, receiver).await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(_)) => Err(panicked()),
        Err(_) => Err(NoResult::TimedOut(limit)),
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<thread::JoinHandle<()>, NoResult> {
    thread::Builder::new()
        .name("wait".to_owned())
        .spawn(work)
        .map_err(NoResult::Thread)
}

fn panicked() -> NoResult {
    NoResult::Thread(io::Error::from(io::ErrorKind::Interrupted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_come_back_is_left_behind() {
        let (_never, wait) = std::sync::mpsc::channel::<()>();
        let result = run(Duration::from_millis(1), move || wait.recv().is_ok());
        assert!(matches!(result, Err(NoResult::TimedOut(_))), "{result:?}");
        assert_eq!(run(Duration::MAX, || 7).unwrap(), 7);
    }
}
