//! Tasks without which a worker serves nobody.
//!
//! A panic in the task of one connection ends that connection and no other. In one of these it would
//! leave a worker that does not accept any more, or drop all its connections. So it ends the process:
//! the keeper makes another one, which goes on with all of them.

/// Does `task`; where that panics, the process is aborted as soon as the panic has been reported.
pub(crate) async fn essential<F: Future>(task: F) -> F::Output {
    let _whole = Essential;
    task.await
}

/// Ends the process if it is dropped by a panic, which has been reported by then.
#[derive(Debug)]
pub struct Essential;

impl Drop for Essential {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;
    use crate::runtime_thread;

    /// Says to the test's own process, started again, that it is to panic.
    const PANICS: &str = "PEPD_TEST_ESSENTIAL_PANICS";

    #[test]
    fn a_panic_ends_the_process_and_a_connections_does_not() {
        if std::env::var_os(PANICS).is_some() {
            let thread = runtime_thread::spawn("worker".to_owned(), || {
                essential(async {
                    let connection = tokio::spawn(async { panic!("in a connection") });
                    assert!(connection.await.unwrap_err().is_panic());
                    panic!("in the worker");
                })
            });
            let _ = thread.unwrap().join();
            unreachable!("it goes on");
        }
        let name = "essential::tests::a_panic_ends_the_process_and_a_connections_does_not";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(PANICS, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{said}");
        assert!(said.contains("in a connection"), "{said}");
        assert!(said.contains("in the worker"), "{said}");
    }
}
