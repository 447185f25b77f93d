//! docs/openapi.json: it is what the types say, and the real daemon answers as it says.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use pepd_admin::api::openapi;
use pepd_admin::fixture;
use pepd_testbed::link::{Rate, Shape};
use pepd_testbed::{Family, Pepd, World, require, wait_until};
use serde_json::{Value, json};
use socket2::SockRef;

use super::place::{curl, curl_with};
use crate::cluster::moves::ground::Ground;
use crate::harness::{LIMIT, PEPD};
use crate::streams::{download, while_busy};

/// The types of which a daemon on one box of this kernel cannot tell, since it has no modem and no tunnels,
/// and the field that has the first. The daemon on paper does.
const ON_PAPER: [&str; 3] = ["GuardDrops", "ModemState", "PeerState"];

/// More orders than may wait, and the one that is carried out.
const ORDERS: usize = 24;

/// See [`ON_PAPER`].
const MODEM: (&str, &str) = ("LinkState", "modem");

#[test]
fn the_document_is_what_the_types_say() -> Result<()> {
    let there = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/openapi.json");
    let text = serde_json::to_string_pretty(&openapi::document())? + "\n";
    if fs::read_to_string(&there).ok().as_ref() == Some(&text) {
        return Ok(());
    }
    let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openapi.json");
    fs::write(&new, text)?;
    panic!(
        "the API has changed: cp {} {}",
        new.display(),
        there.display()
    );
}

/// What the document says, and what of it was seen in answers.
struct Seen {
    document: Value,
    fields: BTreeSet<(String, String)>,
}

impl Seen {
    fn new() -> Self {
        let mut document = openapi::document();
        let types = document["components"]["schemas"].as_object_mut();
        // For those who ask, there may be more some day. Here each field has to be in it.
        for schema in types.into_iter().flat_map(|types| types.values_mut()) {
            if schema.get("properties").is_some() {
                schema["additionalProperties"] = json!(false);
            }
        }
        Self {
            document,
            fields: BTreeSet::new(),
        }
    }

    /// Checks an answer against what the document says of it.
    fn check(&mut self, method: &str, path: &str, status: &str, answer: &Value) -> Result<()> {
        let operation = &self.document["paths"][path][method.to_lowercase()];
        let response = &operation["responses"][status];
        let schema = response["content"]["application/json"]["schema"].clone();
        ensure!(
            schema.is_object(),
            "{method} {path} may not be answered {status}: {answer}"
        );
        self.hold(&schema, answer)
            .with_context(|| format!("{method} {path}: {status}"))
    }

    fn hold(&mut self, schema: &Value, answer: &Value) -> Result<()> {
        let mut whole = schema.clone();
        whole["components"] = self.document["components"].clone();
        let validator = jsonschema::validator_for(&whole)?;
        let wrong: Vec<_> = validator
            .iter_errors(answer)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        ensure!(wrong.is_empty(), "{}\n{answer:#}", wrong.join("\n"));
        self.walk(schema, answer, "");
        Ok(())
    }

    /// Notes the fields of each type that have a value.
    fn walk(&mut self, schema: &Value, value: &Value, name: &str) {
        if value.is_null() {
            return;
        }
        if let Some(link) = schema["$ref"].as_str() {
            let name = link.rsplit('/').next().unwrap_or_default();
            let target = self.document["components"]["schemas"][name].clone();
            return self.walk(&target, value, name);
        }
        let variants = schema["anyOf"].as_array();
        for variant in variants
            .into_iter()
            .flatten()
            .filter(|it| it["type"] != "null")
        {
            self.walk(variant, value, name);
        }
        for item in value.as_array().into_iter().flatten() {
            self.walk(&schema["items"], item, name);
        }
        for (key, value) in value.as_object().into_iter().flatten() {
            self.fields.insert((name.to_owned(), key.clone()));
            self.walk(&schema["properties"][key], value, name);
        }
    }

    /// The fields of the document that were in no answer.
    fn unseen(&self) -> BTreeSet<(String, String)> {
        let types = self.document["components"]["schemas"].as_object();
        let all = types.into_iter().flatten().flat_map(|(name, schema)| {
            let fields = schema["properties"].as_object().into_iter().flatten();
            fields.map(|(field, _)| (name.clone(), field.clone()))
        });
        all.filter(|field| !self.fields.contains(field)).collect()
    }
}

#[test]
fn an_answer_of_another_kind_is_noticed() -> Result<()> {
    let mut seen = Seen::new();
    let mut status = serde_json::to_value(fixture::status(3))?;
    seen.check("GET", "/v1/status", "200", &status)?;
    status["legs"][0]["colour"] = json!("red");
    assert!(
        seen.check("GET", "/v1/status", "200", &status).is_err(),
        "a field too many"
    );
    let mut status = serde_json::to_value(fixture::status(3))?;
    status["uptime"] = json!("1s");
    assert!(
        seen.check("GET", "/v1/status", "200", &status).is_err(),
        "a text for a number"
    );
    status["uptime"] = Value::Null;
    assert!(
        seen.check("GET", "/v1/status", "200", &status).is_err(),
        "nothing"
    );
    assert!(
        seen.check("GET", "/v1/status", "404", &status).is_err(),
        "a status of others"
    );
    Ok(())
}

/// Asks, checks the answer and returns it. In `address` is what the `path` of the document leaves open.
fn ask(world: &World, seen: &mut Seen, [method, path, address]: [&str; 3]) -> Result<Value> {
    let (status, body) = curl(&world.admin_socket(), method, address)?;
    let answer = serde_json::from_str(&body).with_context(|| body.clone())?;
    seen.check(method, path, &status, &answer)?;
    Ok(answer)
}

fn get(world: &World, seen: &mut Seen, path: &str) -> Result<Value> {
    ask(world, seen, ["GET", path, path])
}

/// A file that has most of what is told of: a rate that is found, buffers that are sized, windows that are
/// learned, a link, held ACKs.
fn config(world: &World) -> String {
    let leg = "congestion = \"find-rate\"\nbuffer = \"auto\"\nlink = { interface = \"to-server\" }";
    let rules = "[[rule]]\ndestination_port = [5999]\naction = \"hold-acks\"\n";
    let learns = "congestion = \"auto\"\ninitial_window = \"auto\"";
    let config = World::config().replace("congestion = \"cubic\"", leg);
    let config = config.replace("congestion = \"reno\"", learns);
    format!(
        "{config}\n{rules}\n[limits]\nmemory = \"1GiB\"\n{}",
        world.admin()
    )
}

#[test]
fn the_daemon_answers_as_the_document_says() -> Result<()> {
    require!(root, program("nft"), program("curl"));
    let far = Shape::new(Duration::from_millis(10), Rate::mbit(10));
    let world = World::emulated(Shape::new(Duration::from_millis(1), Rate::mbit(100)), far)?;
    let mut daemon = Pepd::start(PEPD, world.hb(), &config(&world))?;
    // What the next process says of the one before.
    daemon.dies(Signal::SIGKILL)?;
    let mut seen = Seen::new();
    let seen = &mut seen;
    // One that ends in an error, and one that goes on.
    let reset = world.pair(Family::V4)?;
    SockRef::from(&reset.client).set_linger(Some(Duration::ZERO))?;
    drop(reset);
    let pairs = [world.pair(Family::V6)?];
    pairs[0].exchange(100_000)?;
    let index = get(&world, seen, "/v1")?;
    let paths = seen.document["paths"]
        .as_object()
        .map_or(0, |paths| paths.len());
    let told = ["get", "post"].map(|method| index[method].as_array().map_or(0, Vec::len));
    // `/v1` itself is in neither.
    assert_eq!(told.iter().sum::<usize>() + 1, paths, "{index}");
    for path in [
        "/v1/status",
        "/v1/flows",
        "/v1/legs",
        "/v1/peers",
        "/v1/limits",
        "/v1/counters",
    ] {
        get(&world, seen, path)?;
    }
    let flows = get(&world, seen, "/v1/flows")?;
    let id = &flows["flows"][0]["id"];
    let one = format!("/v1/flows/{id}");
    ask(&world, seen, ["GET", "/v1/flows/{id}", &one])?;
    histories(&world, seen, &one)?;
    while_busy(&pairs, || {
        wait_until(LIMIT, "a leg is under load", || {
            let legs = get(&world, seen, "/v1/legs").unwrap_or_default();
            let legs = legs["legs"].as_array().cloned().unwrap_or_default();
            legs.iter().any(|leg| leg["loaded_rtt"].is_object())
        })
    })?;
    // By now the sockets have been sampled.
    ask(&world, seen, ["GET", "/v1/flows/{id}", &one])?;
    measure(&world, seen, &mut daemon)?;
    refuse(&world, seen)?;
    moves(seen)?;
    order(&world, seen, &daemon.config_file())?;
    world.hb().sysctl("net.ipv4.ip_forward", "0")?;
    wait_until(LIMIT, "something is in the way", || {
        let status = get(&world, seen, "/v1/status");
        status.is_ok_and(|status| status["alarms"] != json!([]))
    })?;
    get(&world, seen, "/v1/status")?;
    all_is_seen(seen)?;
    overwhelm(&world, seen)?;
    ask(&world, seen, ["POST", "/v1/drain", "/v1/drain"])?;
    // It goes on until the last connection ends.
    let reload = "/v1/reload";
    let (status, body) = curl(&world.admin_socket(), "POST", reload)?;
    assert_eq!(status, "409", "{body}");
    seen.check("POST", reload, &status, &serde_json::from_str(&body)?)?;
    drop(pairs);
    daemon.stop().map(drop)
}

/// Has half of some connections routed and compared, for a while.
fn measure(world: &World, seen: &mut Seen, daemon: &mut Pepd) -> Result<()> {
    let before = config(world);
    let auto = before.replace("port = 7300\n", "port = 7300\nsplit = \"auto\"\n");
    daemon.reload(&format!("{auto}\n[measure]\nunsplit = \"50%\"\n"))?;
    let listener = world.listen(Family::V4)?;
    for _ in 0..100 {
        download(world, &listener, 100)?;
    }
    wait_until(LIMIT, "there is enough to compare", || {
        let status = get(world, seen, "/v1/status").unwrap_or_default();
        let pair = &status["worth"]["pairs"][0];
        pair["compared"][0]["gain"].is_object() && pair["choice"].is_object()
    })?;
    daemon.reload(&before).map(drop)
}

/// Asks for the history of a connection, given its address, and of a leg, as soon as there is one.
fn histories(world: &World, seen: &mut Seen, one: &str) -> Result<()> {
    for (path, address) in [
        ("/v1/flows/{id}/history", format!("{one}/history")),
        ("/v1/legs/{leg}/history", "/v1/legs/wan/history".to_owned()),
    ] {
        wait_until(LIMIT, "there is a history", || {
            let answer = ask(world, seen, ["GET", path, &address]);
            answer.is_ok_and(|answer| answer["points"].as_array().is_some_and(|it| !it.is_empty()))
        })?;
        ask(world, seen, ["GET", path, &address])?;
    }
    Ok(())
}

/// Gives the orders that a daemon outlives: with a file of which something takes effect at a start only, and
/// with one that is refused.
fn order(world: &World, seen: &mut Seen, file: &Path) -> Result<()> {
    let reload = ["POST", "/v1/reload", "/v1/reload"];
    let text = fs::read_to_string(file)?;
    fs::write(file, text.replace("[node]\n", "[node]\nworkers = 7\n"))?;
    let done = ask(world, seen, reload)?;
    ensure!(done["notes"].to_string().contains("workers"), "{done}");
    fs::write(file, "[node\n")?;
    let refused = ask(world, seen, reload)?;
    ensure!(refused["error"]["what"].is_string(), "{refused}");
    for state in ["gone", "up", "going-down"] {
        let time = if state == "going-down" {
            "&for=600"
        } else {
            ""
        };
        let address = format!("/v1/link/{state}?leg=wan{time}");
        ask(world, seen, ["POST", "/v1/link/{state}", &address])?;
        if state == "gone" {
            wait_until(LIMIT, "the box is not ready, and says why", || {
                let ready = get(world, seen, "/v1/ready");
                ready.is_ok_and(|ready| ready["new"]["why"].is_string())
            })?;
        }
    }
    Ok(())
}

/// Has a connection move to another box, and another one stay.
fn moves(seen: &mut Seen) -> Result<()> {
    let ground = Ground::open(Family::V4, ["", "[limits]\nconnections = 1\n"])?;
    ground.listens()?;
    let _pairs = [ground.pair()?, ground.pair()?];
    let mut ask = |at, method, path, address: &str| {
        let (status, body) = curl(&ground.socket(at), method, address)?;
        let answer: Value = serde_json::from_str(&body).with_context(|| body.clone())?;
        seen.check(method, path, &status, &answer)?;
        Ok::<_, anyhow::Error>(answer)
    };
    let refused = ask(0, "POST", "/v1/move", "/v1/move?to=three")?;
    ensure!(refused["error"]["what"].is_string(), "{refused}");
    let moved = ask(0, "POST", "/v1/move", "/v1/move?to=two")?;
    ensure!(
        moved["moved"][0]["pause"].is_number() && moved["stayed"][0]["why"].is_string(),
        "{moved}"
    );
    let came = ask(1, "GET", "/v1/flows", "/v1/flows")?;
    ensure!(came["flows"][0]["came"]["from"] == "one", "{came}");
    ask(0, "GET", "/v1/status", "/v1/status").map(drop)
}

/// Asks for what is refused.
fn refuse(world: &World, seen: &mut Seen) -> Result<()> {
    for what in [
        ["GET", "/v1/flows", "/v1/flows?colour=red"],
        ["GET", "/v1/flows/{id}", "/v1/flows/987654321"],
        ["GET", "/v1/flows/{id}/history", "/v1/flows/x/history"],
        ["GET", "/v1/legs/{leg}/history", "/v1/legs/nosuch/history"],
        ["POST", "/v1/link/{state}", "/v1/link/gone?leg=nosuch"],
        ["POST", "/v1/link/{state}", "/v1/link/lost?leg=wan"],
    ] {
        let answer = ask(world, seen, what)?;
        ensure!(answer["error"]["what"].is_string(), "{what:?}: {answer}");
    }
    Ok(())
}

/// Gives more orders at once than may wait, until one is refused; and sends one with a body.
fn overwhelm(world: &World, seen: &mut Seen) -> Result<()> {
    let socket = &world.admin_socket();
    let reload = "/v1/reload";
    let mut refused = None;
    wait_until(LIMIT, "an order has to wait for too many others", || {
        let answers = thread::scope(|scope| {
            let orders = [(); ORDERS].map(|()| scope.spawn(|| curl(socket, "POST", reload)));
            orders.map(|order| order.join().unwrap())
        });
        let answers = answers.into_iter().flatten();
        refused = answers.into_iter().find(|(status, _)| status == "503");
        refused.is_some()
    })?;
    let (status, body) = refused.context("it was found")?;
    seen.check("POST", reload, &status, &serde_json::from_str(&body)?)?;
    let (status, body) = curl_with(socket, "POST", reload, &["--data", "now"])?;
    assert_eq!(status, "413", "{body}");
    seen.check("POST", reload, &status, &serde_json::from_str(&body)?)
}

/// All fields of the document were in an answer, or are in one of the daemon on paper where the real one
/// cannot have them.
fn all_is_seen(seen: &mut Seen) -> Result<()> {
    let unseen = seen.unseen();
    let is_real = |(name, field): &&(String, String)| {
        !ON_PAPER.contains(&&**name) && (&**name, &**field) != MODEM
    };
    let missing: Vec<_> = unseen.iter().filter(is_real).collect();
    ensure!(missing.is_empty(), "in no answer: {missing:?}");
    let status = serde_json::to_value(fixture::status(3))?;
    seen.check("GET", "/v1/status", "200", &status)?;
    ensure!(
        seen.unseen().is_empty(),
        "in no answer on paper: {:?}",
        seen.unseen()
    );
    Ok(())
}
