//! Requests to the admin API, the dashboard and the metrics, as bytes on a socket.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pepd_admin::api::{
    CachedView, ControlRequest, ControlSender, CpuQuota, Limits, Listen, NotMoved, read_only,
    serve, with_control,
};
use pepd_admin::fixture::Fixture;
use pepd_admin::page::{self, Names};
use pepd_admin::wire::MoveReport;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

/// The connections to a server, as it accepts them.
struct Incoming(tokio::sync::Mutex<mpsc::Receiver<DuplexStream>>);

impl Listen for Incoming {
    type Stream = DuplexStream;

    async fn next(&self) -> io::Result<DuplexStream> {
        match self.0.lock().await.recv().await {
            Some(stream) => Ok(stream),
            None => std::future::pending().await,
        }
    }
}

/// Says it to the socket, which takes orders, and to the port, which does not. Each answers in HTTP
/// or not at all, has no trouble of its own, and answers the next one.
pub fn run(bytes: &[u8]) {
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            for with_orders in [true, false] {
                says(bytes, with_orders).await;
            }
        });
    });
}

thread_local! {
    static RUNTIME: Runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
}

async fn says(bytes: &[u8], with_orders: bool) {
    let view = Arc::new(CachedView::new(
        Arc::new(Fixture::new(5)),
        Duration::from_secs(3600),
    ));
    let (sender, mut orders) = ControlSender::channel();
    let router = if with_orders {
        with_control(view, sender)
    } else {
        let names = Names::new(["hb-a".to_owned()]);
        page::router(Arc::clone(&view), read_only(view), names)
    };
    let (connect, incoming) = mpsc::channel(1);
    let incoming = Incoming(tokio::sync::Mutex::new(incoming));
    let quota = Rc::new(RefCell::new(CpuQuota::new()));
    let carry_out = async {
        while let Some(order) = orders.recv().await {
            match order {
                ControlRequest::Reload(answer) => drop(answer.send(Ok(Vec::new()))),
                ControlRequest::Drain(_, answer) => drop(answer.send(Ok(()))),
                ControlRequest::Move(order, answer) => {
                    let report = MoveReport {
                        to: order.to,
                        dry_run: order.dry_run,
                        ..MoveReport::default()
                    };
                    let is_known = !report.to.is_empty();
                    let known = is_known.then_some(report);
                    let none = || NotMoved::Because("there is none".to_owned());
                    drop(answer.send(known.ok_or_else(none)));
                }
                ControlRequest::Link(order, answer) => {
                    let is_there = order.leg == "satellite";
                    let legs = || vec!["satellite".to_owned()];
                    drop(answer.send(is_there.then_some(()).ok_or_else(legs)));
                }
            }
        }
        std::future::pending().await
    };
    let ask = async {
        judge(&exchange(&connect, bytes).await);
        let answer = exchange(&connect, b"GET /v1 HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
    };
    tokio::select! {
        biased;
        () = ask => {}
        () = carry_out => {}
        () = serve(incoming, router, Limits::STANDARD, quota) => {}
    }
}

/// Says it, ends its side, and reads to the end.
async fn exchange(connect: &mpsc::Sender<DuplexStream>, bytes: &[u8]) -> Vec<u8> {
    let (mut client, server) = duplex(1 << 20);
    connect.send(server).await.expect("the server is there");
    // It may have been answered and closed before all is said.
    let _ = client.write_all(bytes).await;
    let _ = client.shutdown().await;
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer).await;
    answer
}

fn judge(answer: &[u8]) {
    if answer.is_empty() {
        return;
    }
    let head = String::from_utf8_lossy(answer.get(..12).unwrap_or(answer));
    let code = head
        .strip_prefix("HTTP/1.1 ")
        .or(head.strip_prefix("HTTP/1.0 "));
    let code = code.and_then(|code| code.parse::<u16>().ok());
    assert!(
        code.is_some_and(|code| (100..500).contains(&code)),
        "{head}"
    );
}
