//! The dashboard of the real daemon in a real browser: what starts while it is open shows, it
//! survives a restart, and it asks nobody but the daemon.

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Browser, Family, Pepd, Stage, World, require};

use crate::harness::{LIMIT, PEPD};

const PAGE: &str = "http://127.0.0.1:9730/";

/// The number of requests, one a second, within which the page must show a new connection.
const LOOKS: u64 = 2;

/// Counts how often the page asks for the connections, and notes the pause before the next time.
const COUNT_LOOKS: &str = "(() => {
    const [ask, later] = [window.fetch, window.setTimeout];
    window.looks = 0;
    window.fetch = (address, ...more) => {
        if (String(address).startsWith('v1/flows?')) window.looks += 1;
        return ask(address, ...more);
    };
    window.setTimeout = (work, pause, ...more) => {
        if (work.name === 'look') window.pause = pause;
        return later(work, pause, ...more);
    };
})()";

fn config() -> String {
    format!(
        "{}\n[admin]\nmetrics = \"127.0.0.1:9730\"\n",
        World::config()
    )
}

/// Opens a page that has had its first answer.
fn page(stage: &Stage) -> Result<Browser> {
    let mut browser = Browser::start(Some(stage.world.hb()))?;
    browser.set_display(1280, 900, false)?;
    browser.open(PAGE)?;
    browser.wait(LIMIT, "document.querySelectorAll('#tiles dd').length > 0")?;
    Ok(browser)
}

/// Returns whether the table has a connection of this pair's client.
fn shows(pair: &Pair) -> Result<String> {
    let client = pair.client.local_addr()?;
    Ok(format!(
        "[...document.querySelectorAll('#flows tbody button')]\
         .some((button) => button.textContent.startsWith('{client} '))"
    ))
}

/// Returns how many times the page has asked, from now on, when a change of the table makes
/// `condition` true.
fn looks_until(condition: &str) -> String {
    format!(
        "new Promise((resolve) => {{
            const before = window.looks;
            const observer = new MutationObserver(look);
            function look() {{
                if (!({condition})) return;
                observer.disconnect();
                resolve(window.looks - before);
            }}
            const table = document.querySelector('#flows tbody');
            observer.observe(table, {{childList: true, subtree: true, characterData: true}});
            look();
        }})"
    )
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
    browser.evaluate(COUNT_LOOKS)?;
    // Two seconds, on a machine that keeps up.
    for family in Family::BOTH {
        let pair = stage.world.pair(family)?;
        pair.exchange(1000)?;
        let looks = browser.evaluate(&looks_until(&shows(&pair)?))?;
        ensure!(
            looks.as_u64().is_some_and(|looks| looks <= LOOKS),
            "it has looked {looks} times"
        );
        pairs.push(pair);
    }
    browser.wait(LIMIT, "window.pause !== undefined")?;
    ensure!(browser.evaluate("window.pause")? == 1000);

    browser.evaluate("document.querySelector('#flows tbody button').click()")?;
    browser.wait(
        LIMIT,
        "document.querySelectorAll('#flow svg.chart').length === 10",
    )?;
    pairs.last().unwrap().exchange(1_000_000)?;
    // Each leg that was used is drawn.
    browser.wait(
        LIMIT,
        "!document.querySelector('#legs').hidden \
         && document.querySelectorAll('#legs polyline').length > 0",
    )?;
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
    // Chromium may say that there was nobody for a while, or that the daemon went away before it
    // had answered, but nothing else.
    let away = [
        "net::ERR_CONNECTION_REFUSED",
        "net::ERR_CONNECTION_RESET",
        "net::ERR_EMPTY_RESPONSE",
    ];
    for complaint in browser.complaints()? {
        ensure!(
            away.iter().any(|error| complaint.contains(error)),
            "{complaint}"
        );
    }
    stage.finish()
}

/// What was known of a connection is still shown after another process has taken it over, with a line
/// where that was.
#[test]
fn a_death_is_a_line_in_a_connections_history() -> Result<()> {
    require!(root, program("nft"), program("chromium"));
    let mut stage = Stage::with_config(PEPD, &config())?;
    let mut browser = page(&stage)?;
    browser.evaluate("window.sameDocument = true")?;
    let pair = stage.world.pair(Family::V4)?;
    pair.exchange(1000)?;
    browser.wait(LIMIT, &shows(&pair)?)?;
    browser.evaluate("document.querySelector('#flows tbody button').click()")?;
    browser.wait(
        LIMIT,
        "document.querySelectorAll('#flow polyline').length > 0",
    )?;
    let before = browser.evaluate("document.querySelectorAll('#flow polyline').length")?;
    stage.pepd()?.dies(Signal::SIGKILL)?;
    // Ten charts, each with its line.
    browser.wait(
        LIMIT,
        "document.querySelectorAll('#flow .break').length === 10",
    )?;
    browser.wait(
        LIMIT,
        "document.querySelector('#facts').textContent.includes('1 connection went on')",
    )?;
    pair.exchange(1_000_000)?;
    browser.wait(
        LIMIT,
        &format!("document.querySelectorAll('#flow polyline').length >= {before}"),
    )?;
    browser.wait(
        LIMIT,
        "document.querySelectorAll('#legs .break').length > 0 \
         && document.querySelector('#flow-ended').hidden && window.sameDocument",
    )?;
    stage.finish()
}

/// A filter that the daemon does not understand is reported as wrong, and does not count.
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
