//! A thread with a runtime of its own.

use std::io;
use std::thread::JoinHandle;

use tokio::runtime::Runtime;

/// Starts a thread called `name` that runs the future that `begin` gives there, on a runtime of its own.
/// When the future has ended the runtime is dropped, with every task that is left.
///
/// # Errors
///
/// If the runtime or the thread lacks what it needs.
pub fn spawn<F: Future<Output = ()>>(
    name: String,
    begin: impl FnOnce() -> F + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut runtime = Unwaited(Some(runtime));
    let run = move || {
        if let Some(runtime) = runtime.0.take() {
            runtime.block_on(begin());
        }
    };
    std::thread::Builder::new().name(name).spawn(run)
}

/// A runtime that waits for nothing when it is dropped: where there is no thread for it, it is dropped on
/// another one's, and to wait there is a panic.
struct Unwaited(Option<Runtime>);

impl Drop for Unwaited {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
