//! The API over a real socket, asked by clients of every kind.

mod clients;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::fixture::{self, Fixture};
use crate::metrics::Exposition;
use crate::view::View;
use crate::wire::{
    ErrorBody, FlowHistory, FlowList, FlowQuery, FlowSnapshot, FlowSort, HistoryStep, LegHistory,
    LegList,
};
use pepd_telemetry::Counters;

/// The time that a busy machine may take for anything.
const DEADLINE: Duration = Duration::from_secs(60);

struct Served {
    path: PathBuf,
    requests: mpsc::Receiver<ControlRequest>,
    task: JoinHandle<()>,
    _directory: TempDir,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves on the test's own runtime.
fn serve_view(view: Arc<dyn View>, limits: Limits) -> Served {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("admin.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (sender, requests) = ControlSender::channel();
    let router = with_control(Arc::new(CachedView::new(view, CachedView::MAX_AGE)), sender);
    let quota = Rc::new(RefCell::new(CpuQuota::new()));
    let task = tokio::task::spawn_local(serve(listener, router, limits, quota));
    Served {
        path,
        requests,
        task,
        _directory: directory,
    }
}

fn serve_flows(flows: u64, limits: Limits) -> Served {
    serve_view(Arc::new(Fixture::new(flows)), limits)
}

/// Runs a test on one thread, as the daemon does.
fn on_one_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        tokio::time::timeout(DEADLINE, test)
            .await
            .expect("no deadline is reached");
    });
}

/// Says `head` and gives the status and the body of the answer.
async fn said(path: &Path, head: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(path).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer of HTTP");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

async fn asked(path: &Path, method: &str, address: &str) -> (u16, String) {
    said(
        path,
        &format!("{method} {address} HTTP/1.1\r\nhost: x\r\n\r\n"),
    )
    .await
}

async fn got<T: DeserializeOwned>(path: &Path, address: &str) -> T {
    let (status, body) = asked(path, "GET", address).await;
    assert_eq!(status, 200, "{address}: {body}");
    serde_json::from_str(&body).unwrap()
}

async fn problem(path: &Path, method: &str, address: &str) -> (u16, Problem) {
    let (status, body) = asked(path, method, address).await;
    let ErrorBody { error } = serde_json::from_str(&body).unwrap();
    assert!(!error.what.is_empty() && !error.cure.is_empty());
    (status, error)
}

#[test]
fn every_address_answers_in_its_type() {
    on_one_thread(async {
        let served = serve_flows(5, Limits::STANDARD);
        let path = &served.path;
        let index: Index = got(path, "/v1").await;
        assert_eq!(index.api, API_VERSION);
        let status: Status = got(path, "/v1/status").await;
        assert_eq!(status, fixture::status(5));
        for (address, wanted) in [
            ("/v1/flows/3", serde_json::to_string(&fixture::flow(3))),
            (
                "/v1/flows/3/history",
                serde_json::to_string(&fixture::history(3)),
            ),
        ] {
            assert_eq!(asked(path, "GET", address).await, (200, wanted.unwrap()));
        }
        let ready: Readiness = got(path, "/v1/ready").await;
        assert_eq!(ready, fixture::readiness());
        let PeerList { peers } = got(path, "/v1/peers").await;
        assert_eq!(peers, status.peers);
        let LegList { legs } = got(path, "/v1/legs").await;
        assert_eq!(legs, status.legs);
        let LimitList { limits } = got(path, "/v1/limits").await;
        assert_eq!(limits, status.limits);
        let CounterList { counters } = got(path, "/v1/counters").await;
        assert_eq!(
            counters,
            [status.counters.clone(), status.routed.clone()].concat()
        );
        for address in index.get {
            let address = address.replace("{id}", "1").replace("{leg}", "satellite");
            assert_eq!(asked(path, "GET", &address).await.0, 200, "{address}");
            assert_eq!(asked(path, "HEAD", &address).await.0, 200, "{address}");
            let (status, error) = problem(path, "GET", &format!("{address}?colour=red")).await;
            assert_eq!(status, 400);
            assert!(error.what.contains("colour"), "{error}");
            assert_eq!(problem(path, "POST", &address).await.0, 405, "{address}");
            assert_eq!(problem(path, "DELETE", &address).await.0, 405, "{address}");
        }
        for address in index.post {
            assert_eq!(problem(path, "GET", &address).await.0, 405, "{address}");
        }
    });
}

#[test]
fn what_is_not_there_is_404_and_what_is_no_number_400() {
    on_one_thread(async {
        let served = serve_flows(5, Limits::STANDARD);
        for (address, wanted) in [
            ("/", 404),
            ("/v2/status", 404),
            ("/v1/status/", 404),
            ("/v1/flows/6", 404),
            ("/v1/flows/6/history", 404),
            ("/v1/flows/-1", 400),
            ("/v1/flows/18446744073709551616", 400),
            ("/v1/flows?limit=10001", 400),
            ("/v1/flows?limit=-1", 400),
            ("/v1/flows?sort=colour", 400),
            ("/v1/flows?phase=mad", 400),
            ("/v1/flows?client=10.1.0", 400),
            ("/v1/flows?campus=a&campus=b", 400),
            ("/v1/flows?campus=%ff", 200),
            ("/v1/legs/radio/history", 404),
            ("/v1/legs/satellite/history?step=hour", 400),
            ("/v1/legs/satellite/history?since=now", 400),
        ] {
            let (status, body) = asked(&served.path, "GET", address).await;
            assert_eq!(status, wanted, "{address}: {body}");
        }
    });
}

#[test]
fn flows_are_filtered_sorted_and_limited() {
    on_one_thread(async {
        let served = serve_flows(300, Limits::STANDARD);
        let ids = async |query: &str| -> (usize, Vec<u64>) {
            let list: FlowList = got(&served.path, &format!("/v1/flows?{query}")).await;
            assert_eq!(list.total, 300);
            let ids = list.flows.iter().map(|flow| flow.id).collect();
            (list.matching, ids)
        };
        let (matching, all) = ids("").await;
        assert_eq!((matching, all.len()), (300, FlowQuery::USUAL));
        // 100, 200 and 300 are the fastest, and of equals the first that came comes first.
        assert_eq!(all[..4], [100, 200, 300, 1]);
        assert_eq!(ids("limit=2&sort=newest").await, (300, vec![100, 200]));
        assert_eq!(ids("limit=0").await, (300, vec![]));
        assert_eq!(ids("client=10.1.0.2:40001").await, (1, vec![1]));
        assert_eq!(ids("client=10.1.0.2/32&limit=9").await.0, 2);
        assert_eq!(ids("server=10.2.0.2").await.0, 200);
        assert_eq!(ids("server=fd00:b::/48").await.0, 100);
        assert_eq!(ids("end=[fd00:b::2]:443").await.0, 100);
        assert_eq!(ids("server=fd00:a::/48").await.0, 0);
        assert_eq!(ids("campus=b").await.0, 300);
        assert_eq!(ids("campus=c").await.0, 0);
        assert_eq!(ids("phase=starved").await.0, 300);
        assert_eq!(ids("phase=free").await.0, 0);
        for (_, name) in FlowSort::ALL {
            assert_eq!(ids(&format!("sort={name}&limit=300")).await.1.len(), 300);
        }
    });
}

/// Whoever draws a leg asks for what has come since.
#[test]
fn a_legs_history_is_given_by_the_second_or_the_minute_from_a_time_on() {
    on_one_thread(async {
        let served = serve_flows(1, Limits::STANDARD);
        let history = async |query: String| -> LegHistory {
            got(&served.path, &format!("/v1/legs/satellite/history{query}")).await
        };
        let seconds = history(String::new()).await;
        assert_eq!(seconds, fixture::leg_history(HistoryStep::Second));
        let since = seconds.points[57].time;
        let rest = history(format!("?since={since}")).await;
        assert_eq!(rest.points, seconds.points[58..]);
        let minutes = history("?step=minute".to_owned()).await;
        assert_eq!(minutes, fixture::leg_history(HistoryStep::Minute));
    });
}

#[test]
fn orders_are_given_and_answered() {
    on_one_thread(async {
        let mut served = serve_flows(0, Limits::STANDARD);
        let path = served.path.clone();
        let answers = tokio::task::spawn_local(async move {
            let refused = problem(&path, "POST", "/v1/reload").await;
            let done = asked(&path, "POST", "/v1/reload").await;
            let drained = asked(&path, "POST", "/v1/drain?to=hb-c").await;
            let stays = problem(&path, "POST", "/v1/drain").await;
            let ending = problem(&path, "POST", "/v1/drain").await;
            (refused, done, drained, stays, ending)
        });
        let Some(ControlRequest::Reload(answer)) = served.requests.recv().await else {
            panic!("no order");
        };
        answer.send(Err("pepd.toml:3: no".to_owned())).unwrap();
        let Some(ControlRequest::Reload(answer)) = served.requests.recv().await else {
            panic!("no order");
        };
        answer.send(Ok(vec!["[admin] waits".to_owned()])).unwrap();
        let Some(ControlRequest::Drain(to, answer)) = served.requests.recv().await else {
            panic!("no order");
        };
        assert_eq!(to.as_deref(), Some("hb-c"));
        answer.send(Ok(())).unwrap();
        let Some(ControlRequest::Drain(None, answer)) = served.requests.recv().await else {
            panic!("no order");
        };
        answer.send(Err("no".to_owned())).unwrap();
        // The daemon ends before it has answered the last one.
        drop(served.requests.recv().await);
        let (refused, done, drained, stays, ending) = answers.await.unwrap();
        assert_eq!((refused.0, &*refused.1.what), (422, "pepd.toml:3: no"));
        // It may be another program that is in the way, and not the file.
        assert!(!refused.1.cure.contains("file"), "{}", refused.1.cure);
        assert_eq!(
            done,
            (
                200,
                r#"{"done":"reloaded","notes":["[admin] waits"]}"#.to_owned()
            )
        );
        assert_eq!(drained.0, 200);
        assert_eq!((stays.0, &*stays.1.what), (409, "no"));
        assert_eq!(ending.0, 409);
    });
}

/// A dashboard that is only to be read takes no control requests.
#[test]
fn reading_takes_no_orders() {
    on_one_thread(async {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let view = Arc::new(CachedView::new(
            Arc::new(Fixture::new(1)),
            CachedView::MAX_AGE,
        ));
        let quota = Rc::new(RefCell::new(CpuQuota::new()));
        tokio::task::spawn_local(serve(listener, read_only(view), Limits::STANDARD, quota));
        let index: Index = got(&path, "/v1").await;
        assert!(index.post.is_empty());
        for address in POST {
            assert_eq!(problem(&path, "POST", address).await.0, 404);
        }
    });
}

/// Counts how often the workers are disturbed.
#[derive(Default)]
struct Counting {
    inner: Fixture,
    looks: AtomicUsize,
}

impl View for Counting {
    fn status(&self) -> Status {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.inner.status()
    }

    fn readiness(&self) -> Readiness {
        self.inner.readiness()
    }

    fn flows(&self) -> Vec<FlowSnapshot> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.inner.flows()
    }

    fn flow(&self, id: u64) -> Option<FlowSnapshot> {
        self.inner.flow(id)
    }

    fn history(&self, id: u64) -> Option<FlowHistory> {
        self.inner.history(id)
    }

    fn leg_history(&self, leg: &str, step: HistoryStep, since: f64) -> Option<LegHistory> {
        self.inner.leg_history(leg, step, since)
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }
}

#[test]
fn a_thousand_who_ask_at_once_are_one_look() {
    let view = Arc::new(Counting::default());
    let cached = CachedView::new(Arc::clone(&view) as Arc<dyn View>, DEADLINE);
    for _ in 0..1000 {
        cached.flows();
        cached.status();
        cached.metrics(Exposition::Text).unwrap();
        cached.metrics(Exposition::OpenMetrics).unwrap();
    }
    assert_eq!(view.looks.load(Ordering::Relaxed), 4);
    let stale = CachedView::new(Arc::clone(&view) as Arc<dyn View>, Duration::ZERO);
    stale.flows();
    stale.flows();
    assert_eq!(view.looks.load(Ordering::Relaxed), 6);
}
