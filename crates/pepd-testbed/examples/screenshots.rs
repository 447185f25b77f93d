//! Takes pictures of a page in light and dark, wide and narrow:
//!
//!     cargo run -p pepd-testbed --example screenshots -- http://127.0.0.1:9730/ DIRECTORY [SCRIPT [CONDITION]]
//!
//! SCRIPT runs in the page before each picture, CONDITION is waited for.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use pepd_testbed::Browser;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().context("which page?")?;
    let directory = arguments.next().context("which directory?")?;
    let script = arguments.next().unwrap_or_default();
    let condition = arguments.next();
    let condition = condition
        .as_deref()
        .unwrap_or("document.readyState === 'complete'");
    let mut browser = Browser::start(None)?;
    for (width, height) in [(1280, 900), (400, 800)] {
        for (scheme, dark) in [("light", false), ("dark", true)] {
            browser.set_display(width, height, dark)?;
            browser.open(&url)?;
            browser.wait(
                Duration::from_secs(20),
                "document.readyState === 'complete'",
            )?;
            if !script.is_empty() {
                browser.evaluate(&script)?;
            }
            browser.wait(Duration::from_secs(20), condition)?;
            let file = format!("{scheme}-{width}.png");
            browser.screenshot(&Path::new(&directory).join(file))?;
        }
    }
    for complaint in browser.complaints()? {
        println!("{complaint}");
    }
    Ok(())
}
