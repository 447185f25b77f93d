//! The dashboard of the real daemon in a real browser: what starts while it is open shows, it
//! survives a restart, and it asks nobody but the daemon.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Browser, Family, Pepd, Stage, World, require};

const PEPD: &str = env!("CARGO_BIN_EXE_pepd");
const LIMIT: Duration = Duration::from_secs(60);
const PAGE: &str = "http://127.0.0.1:9730/";

/// How soon a new connection is to be seen.
const SOON: Duration = Duration::from_secs(2);

fn config() -> String {
    format!(
        "{}\n[admin]\nmetrics = \"127.0.0.1:9730\"\n",
        World::config()
    )
}

/// A page that has had its first answer.
fn page(stage: &Stage) -> Result<Browser> {
    let mut browser = Browser::start(Some(stage.world.hb()))?;
    browser.look(1280, 900, false)?;
    browser.open(PAGE)?;
    browser.wait(LIMIT, "document.querySelectorAll('#tiles dd').length > 0")?;
    Ok(browser)
}

/// Whether the table has a connection of this pair's client.
fn shows(pair: &Pair) -> Result<String> {
    let client = pair.client.local_addr()?;
    Ok(format!(
        "[...document.querySelectorAll('#flows tbody button')]\
         .some((button) => button.textContent.startsWith('{client} '))"
    ))
}

fn asks_nobody_else(browser: &mut Browser) -> Result<()> {
    let requests = browser.requests()?;
    ensure!(
        requests.len() > 10,
        "it has asked for its parts: {requests:?}"
    );
    for request in requests {
        ensure!(request.starts_with(PAGE), "it asked for {request}");
    }
    Ok(())
}

#[test]
fn a_connection_shows_soon_and_can_be_looked_into() -> Result<()> {
    require!(root, program("nft"), program("chromium"));
    let stage = Stage::with_config(PEPD, &config())?;
    let mut browser = page(&stage)?;
    let mut pairs = Vec::new();
    let mut times = Vec::new();
    // The machine may be busy with something else for a moment, but not each time.
    for family in [Family::V4, Family::V6, Family::V4, Family::V6] {
        let pair = stage.world.pair(family)?;
        let opened = Instant::now();
        pair.exchange(1000)?;
        browser.wait(LIMIT, &shows(&pair)?)?;
        times.push(opened.elapsed());
        pairs.push(pair);
    }
    ensure!(times.iter().any(|time| *time < SOON), "{times:?}");

    browser.evaluate("document.querySelector('#flows tbody button').click()")?;
    browser.wait(
        LIMIT,
        "document.querySelectorAll('#flow svg.chart').length === 10",
    )?;
    pairs.last().unwrap().exchange(1_000_000)?;
    browser.wait(
        LIMIT,
        "document.querySelectorAll('#flow polyline').length > 0 \
         && document.querySelector('#flow-ended').hidden",
    )?;
    drop(pairs);
    browser.wait(LIMIT, "!document.querySelector('#flow-ended').hidden")?;
    browser.wait(
        LIMIT,
        "document.querySelectorAll('#flows tbody tr').length === 0",
    )?;

    asks_nobody_else(&mut browser)?;
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "{complaints:#?}");
    stage.finish()
}

#[test]
fn the_page_survives_a_restart() -> Result<()> {
    require!(root, program("nft"), program("chromium"));
    let mut stage = Stage::with_config(PEPD, &config())?;
    let mut browser = page(&stage)?;
    browser.evaluate("window.sameDocument = true")?;
    let (status, log) = stage.pepd.take().unwrap().stop()?;
    ensure!(status.success(), "{log}");
    browser.wait(LIMIT, "!document.querySelector('#away').hidden")?;
    stage.pepd = Some(Pepd::start(PEPD, stage.world.hb(), &config())?);
    browser.wait(LIMIT, "document.querySelector('#away').hidden")?;
    let pair = stage.world.pair(Family::V4)?;
    pair.exchange(1000)?;
    browser.wait(LIMIT, &shows(&pair)?)?;
    browser.wait(LIMIT, "window.sameDocument === true")?;
    asks_nobody_else(&mut browser)?;
    // That there was nobody for a while is Chromium's to say, and all it may say.
    for complaint in browser.complaints()? {
        ensure!(
            complaint.contains("net::ERR_CONNECTION_REFUSED"),
            "{complaint}"
        );
    }
    stage.finish()
}

/// A filter that the daemon does not understand is said to be wrong, and does not count.
#[test]
fn a_wrong_filter_leaves_the_table_as_it_is() -> Result<()> {
    require!(root, program("nft"), program("chromium"));
    let stage = Stage::with_config(PEPD, &config())?;
    let mut browser = page(&stage)?;
    let pair = stage.world.pair(Family::V4)?;
    pair.exchange(1000)?;
    let shown = shows(&pair)?;
    browser.wait(LIMIT, &shown)?;
    let set = |value: &str| {
        format!(
            "(() => {{ const field = document.querySelector('#client'); \
             field.value = '{value}'; \
             field.dispatchEvent(new Event('change', {{bubbles: true}})); }})()"
        )
    };
    browser.evaluate(&set("<b>no address</b>"))?;
    browser.wait(
        LIMIT,
        "document.querySelector('#client').validationMessage !== ''",
    )?;
    browser.wait(LIMIT, &shown)?;
    browser.evaluate(&set("192.0.2.0/24"))?;
    browser.wait(
        LIMIT,
        "document.querySelectorAll('#flows tbody tr').length === 0",
    )?;
    browser.evaluate(&set("10.0.0.0/8"))?;
    browser.wait(LIMIT, &shown)?;
    stage.finish()
}
