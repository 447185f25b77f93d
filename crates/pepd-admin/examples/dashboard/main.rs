//! Serves the dashboard with made-up figures, to look at it without a daemon:
//!
//!     cargo run -p pepd-admin --example dashboard -- 127.0.0.1:9730
//!
//! The figures change with time as a daemon's would.

mod fixture;

use std::cell::RefCell;
use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;

use pepd_admin::View;
use pepd_admin::api::{self, CachedView, CpuQuota, Limits};
use pepd_admin::page::{self, Names};
use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:9730");
    let listener = TcpListener::bind(address).await?;
    println!("http://{}/", listener.local_addr()?);
    let view: Arc<dyn View> = fixture::Fixture::new();
    let cached = Arc::new(CachedView::new(view, CachedView::MAX_AGE));
    let router = page::router(
        Arc::clone(&cached),
        api::read_only(cached),
        Names::default(),
    );
    let quota = Rc::new(RefCell::new(CpuQuota::new()));
    api::serve(listener, router, Limits::STANDARD, quota).await;
    Ok(())
}
