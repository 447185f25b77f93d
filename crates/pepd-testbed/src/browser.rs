//! A headless Chromium, driven through pipes: no driver, no port, and so in any namespace.
//!
//! The protocol is Chromium's own (Chrome DevTools Protocol, `--remote-debugging-pipe`): JSON
//! messages, each ended by a zero byte. It tells everything that the page logs and asks for,
//! which is what tests of a page need to know.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::netns::Netns;
use crate::process::Process;
use crate::wait::Deadline;

/// The time that Chromium may take for anything on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Root may not have Chromium's sandbox, which is no loss where the page is our own; the rest
/// keeps it from asking anybody but the page.
const OPTIONS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
];

/// A running Chromium with one page. Dropping it ends it.
#[derive(Debug)]
pub struct Browser {
    process: Process,
    requests: File,
    messages: Receiver<Value>,
    last_id: u64,
    session: Option<String>,
    events: Vec<Value>,
    _directory: TempDir,
}

impl Browser {
    /// Starts it in `netns`, or where the test runs.
    ///
    /// # Errors
    /// When it is not installed, or does not answer.
    pub fn start(netns: Option<&Netns>) -> Result<Self> {
        let directory = TempDir::with_prefix("pepd-browser-")?;
        let place = |name: &str| directory.path().join(name);
        let pipe = |name: &str| {
            mkfifo(&place(name), Mode::S_IRUSR | Mode::S_IWUSR)?;
            // Read and write: opening waits for nobody then (fifo(7)).
            let file = File::options().read(true).write(true).open(place(name))?;
            Ok::<_, anyhow::Error>(file)
        };
        let requests = pipe("requests")?;
        let answers = pipe("answers")?;
        let mut command = netns.map_or_else(|| Command::new("sh"), |netns| netns.command("sh"));
        command
            .arg("-c")
            .arg("exec \"$@\" 3< \"$0/requests\" 4> \"$0/answers\"")
            .arg(directory.path())
            .arg("chromium")
            .args(OPTIONS)
            .arg(format!("--user-data-dir={}", place("profile").display()))
            .env("HOME", directory.path());
        let process = Process::spawn(&mut command)?;
        let mut browser = Self {
            process,
            requests,
            messages: read(answers),
            last_id: 0,
            session: None,
            events: Vec::new(),
            _directory: directory,
        };
        browser.open_page()?;
        Ok(browser)
    }

    fn open_page(&mut self) -> Result<()> {
        let page = self.call("Target.createTarget", json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": page["targetId"], "flatten": true});
        let attached = self.call("Target.attachToTarget", attach)?;
        let session = attached["sessionId"].as_str().context("no session")?;
        self.session = Some(session.to_owned());
        for domain in ["Page", "Runtime", "Network", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(())
    }

    /// Sets the size of the window and the preferred colours.
    ///
    /// # Errors
    /// When Chromium does not answer.
    pub fn set_display(&mut self, width: u32, height: u32, dark: bool) -> Result<()> {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        self.call("Emulation.setDeviceMetricsOverride", size)?;
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", media)?;
        Ok(())
    }

    /// Goes to `url`.
    ///
    /// # Errors
    /// When there is nobody.
    pub fn open(&mut self, url: &str) -> Result<()> {
        let answer = self.call("Page.navigate", json!({"url": url}))?;
        ensure!(answer.get("errorText").is_none(), "{url}: {answer}");
        Ok(())
    }

    /// Returns the value of `expression` in the page.
    ///
    /// # Errors
    /// When it throws.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let ask = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", ask)?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            bail!("`{expression}`: {thrown}");
        }
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until `condition` holds in the page.
    ///
    /// # Errors
    /// When it does not within `limit`; the message has what the page says.
    pub fn wait(&mut self, limit: Duration, condition: &str) -> Result<()> {
        let deadline = Deadline::after(limit);
        while self.evaluate(condition)? != Value::Bool(true) {
            if deadline.passed() {
                let page = self.evaluate("document.body.innerText")?;
                bail!("not within {limit:?}: `{condition}`; the page:\n{page}");
            }
            deadline.glance();
        }
        Ok(())
    }

    /// Writes the whole page as a PNG.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn screenshot(&mut self, path: &Path) -> Result<()> {
        let ask = json!({"format": "png", "captureBeyondViewport": true});
        let answer = self.call("Page.captureScreenshot", ask)?;
        let text = answer["data"].as_str().context("no picture")?;
        fs::write(path, base64(text)?).with_context(|| path.display().to_string())
    }

    /// Returns what the page, or Chromium about the page, has logged as an error, and what the page
    /// threw.
    ///
    /// # Errors
    /// When Chromium does not answer.
    pub fn complaints(&mut self) -> Result<Vec<String>> {
        // What came before is here once this has been answered.
        self.evaluate("0")?;
        let complaint = |event: &Value| {
            let params = &event["params"];
            match event["method"].as_str()? {
                "Runtime.exceptionThrown" => Some(params.to_string()),
                "Runtime.consoleAPICalled"
                    if ["error", "warning", "assert"]
                        .contains(&params["type"].as_str().unwrap_or_default()) =>
                {
                    Some(params.to_string())
                }
                "Log.entryAdded" if params["entry"]["level"] != "verbose" => {
                    Some(params["entry"].to_string())
                }
                _ => None,
            }
        };
        Ok(self.events.iter().filter_map(complaint).collect())
    }

    /// Returns the addresses that the page has asked for.
    ///
    /// # Errors
    /// When Chromium does not answer.
    pub fn requests(&mut self) -> Result<Vec<String>> {
        self.evaluate("0")?;
        let request = |event: &Value| {
            (event["method"] == "Network.requestWillBeSent")
                .then(|| {
                    event["params"]["request"]["url"]
                        .as_str()
                        .map(str::to_owned)
                })
                .flatten()
        };
        Ok(self.events.iter().filter_map(request).collect())
    }

    fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.requests.write_all(&bytes)?;
        let deadline = Deadline::after(LIMIT);
        loop {
            match self.messages.recv_timeout(deadline.remaining()) {
                Ok(message) if message["id"] == self.last_id => {
                    if let Some(error) = message.get("error") {
                        bail!("{method}: {error}");
                    }
                    return Ok(message["result"].clone());
                }
                Ok(event) => self.events.push(event),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    bail!("Chromium does not answer {method}: {}", self.process.log());
                }
            }
        }
    }
}

/// Reads messages on a thread of its own, until nobody wants them or Chromium has gone.
fn read(answers: File) -> Receiver<Value> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut answers = BufReader::new(answers);
        let mut bytes = Vec::new();
        while answers.read_until(0, &mut bytes).is_ok_and(|n| n > 0) {
            bytes.pop();
            let Ok(message) = serde_json::from_slice(&bytes) else {
                break;
            };
            if sender.send(message).is_err() {
                break;
            }
            bytes.clear();
        }
    });
    receiver
}

/// Decodes base64 (RFC 4648, section 4).
fn base64(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for symbol in text.bytes().filter(|&symbol| symbol != b'=') {
        let six = match symbol {
            b'A'..=b'Z' => symbol - b'A',
            b'a'..=b'z' => symbol - b'a' + 26,
            b'0'..=b'9' => symbol - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            other => bail!("not base64: byte {other}"),
        };
        bits = (bits << 6 | u32::from(six)) & 0xff_ffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff).try_into()?);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_of_the_rfc() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9vYmFy", "foobar"),
        ] {
            assert_eq!(base64(text).unwrap(), bytes.as_bytes());
        }
        assert!(base64("Zm9v\n").is_err());
    }
}
