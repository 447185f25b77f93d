//! Registering with the reactor what packets are sent to by now.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use pepd_sys::reactor;
use pepd_telemetry::Throttle;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::shared::Context;

/// The pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(100);

/// Registers what `open` gives for reading, as often as it takes. Whoever is sent to it is answered
/// by nobody else; so new connections are routed until it has succeeded.
pub(crate) async fn register(
    context: &Context,
    open: impl Fn() -> io::Result<OwnedFd>,
) -> AsyncFd<OwnedFd> {
    let admission = &context.shared.admission;
    loop {
        match open().and_then(|fd| Ok(reactor::register(fd, Interest::READABLE)?)) {
            Ok(registered) => {
                admission.recovered();
                return registered;
            }
            Err(error) => {
                admission.exhausted();
                report(&error);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn report(error: &io::Error) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(60));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::warn!(
            %error, held_back,
            "new connections are routed unsplit until the kernel has descriptors and memory for \
             epoll again (LimitNOFILE=, sysctl fs.epoll.max_user_watches)"
        );
    }
}
