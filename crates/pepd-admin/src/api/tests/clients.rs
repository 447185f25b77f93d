//! Clients that ask too much, too slowly, or nothing at all.

use super::*;

#[test]
fn a_request_with_a_body_is_refused_before_the_body() {
    on_one_thread(async {
        let served = serve_flows(0, Limits::STANDARD);
        for body in [
            "content-length: 104857600\r\n\r\n",
            "transfer-encoding: chunked\r\n\r\n",
        ] {
            let head = format!("POST /v1/drain HTTP/1.1\r\nhost: x\r\n{body}");
            assert_eq!(said(&served.path, &head).await.0, 413);
        }
        // None is none.
        let head = "GET /v1/status HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(said(&served.path, head).await.0, 200);
    });
}

#[test]
fn a_head_without_end_is_refused() {
    on_one_thread(async {
        let served = serve_flows(0, Limits::STANDARD);
        let head = format!("GET /v1/status HTTP/1.1\r\nx: {}", "y".repeat(100_000));
        let mut stream = UnixStream::connect(&served.path).await.unwrap();
        // It is cut off on the way.
        let _ = stream.write_all(head.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"));
        assert_eq!(asked(&served.path, "GET", "/v1/status").await.0, 200);
    });
}

#[test]
fn one_who_says_nothing_or_little_is_closed() {
    on_one_thread(async {
        let limits = Limits {
            patience: Duration::from_millis(100),
            ..Limits::STANDARD
        };
        let served = serve_flows(0, limits);
        for beginning in ["", "GET /v1", "GET /v1/status HTTP/1.1\r\nhost: x\r\n"] {
            let mut stream = UnixStream::connect(&served.path).await.unwrap();
            stream.write_all(beginning.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, b"");
        }
    });
}

/// Nobody is patient with those who take a place that others need.
#[test]
fn the_silent_do_not_keep_out_those_who_ask() {
    on_one_thread(async {
        let limits = Limits {
            connections: 4,
            patience: DEADLINE,
            patience_when_full: Duration::from_millis(20),
        };
        let served = serve_flows(3, limits);
        let mut silent = Vec::new();
        for _ in 0..50 {
            silent.push(UnixStream::connect(&served.path).await.unwrap());
        }
        assert_eq!(asked(&served.path, "GET", "/v1/status").await.0, 200);
    });
}

/// Their lists stay in memory until they are fetched, so only some are made at a time.
#[test]
fn those_who_do_not_fetch_their_lists_are_closed() {
    on_one_thread(async {
        let limits = Limits {
            connections: 16,
            patience: Duration::from_millis(600),
            patience_when_full: Duration::from_millis(20),
        };
        let served = serve_flows(3000, limits);
        let mut lazy = Vec::new();
        for _ in 0..12 {
            let mut stream = UnixStream::connect(&served.path).await.unwrap();
            stream
                .write_all(b"GET /v1/flows?limit=10000 HTTP/1.1\r\nhost: x\r\n\r\n")
                .await
                .unwrap();
            lazy.push(stream);
        }
        // On a busy machine one who fetches may be slow as well, and has to ask again.
        let list: FlowList = loop {
            let (status, body) = asked(&served.path, "GET", "/v1/flows?limit=10000").await;
            match serde_json::from_str(&body) {
                Ok(list) if status == 200 => break list,
                _ => assert!([200, 503].contains(&status), "{body}"),
            }
        };
        assert_eq!(list.flows.len(), 3000);
        // Those who came first had to go first: they have what the kernel's buffer holds.
        let mut cut_short = 0;
        for mut stream in lazy {
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            cut_short += usize::from(answer.len() < 1 << 20);
        }
        assert!(cut_short >= 8, "{cut_short} of 12 lists were given up");
    });
}

/// The daemon takes its time with a reload; whoever waits for it has done nothing wrong.
#[test]
fn one_who_waits_for_an_order_keeps_the_place() {
    on_one_thread(async {
        let limits = Limits {
            connections: 2,
            patience: Duration::from_millis(50),
            patience_when_full: Duration::from_millis(10),
        };
        let mut served = serve_flows(0, limits);
        let path = served.path.clone();
        let reload =
            tokio::task::spawn_local(async move { asked(&path, "POST", "/v1/reload").await });
        let Some(ControlRequest::Reload(answer)) = served.requests.recv().await else {
            panic!("no order");
        };
        let mut silent = Vec::new();
        for _ in 0..10 {
            silent.push(UnixStream::connect(&served.path).await.unwrap());
        }
        // By then the patience with them all is over.
        for _ in 0..5 {
            assert_eq!(asked(&served.path, "GET", "/v1/status").await.0, 200);
        }
        for mut stream in silent {
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
        answer.send(Ok(Vec::new())).unwrap();
        assert_eq!(reload.await.unwrap().0, 200);
    });
}
