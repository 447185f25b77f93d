//! `pepd ready`: whether connections are best led to this box, for routing daemons and the like.

use std::process::ExitCode;

use pepd_admin::wire::{Readiness, ReadyAnswer, ReadyQuery};

use crate::cli::ReadyArgs;
use crate::commands::client::Client;
use crate::commands::endpoint;
use crate::exit::{FOUND, Failure, Result};
use crate::ui::output::print;

/// Says in a line whether it is, and by the exit code.
pub fn ready(args: &ReadyArgs) -> Result<ExitCode> {
    let client = Client::new(&args.target)?;
    let text = client.get_soon(endpoint::READY)?;
    let readiness: Readiness = client.parse(&text)?;
    let answer = answer(&readiness, args)?;
    if args.json {
        print(&[&text[..], b"\n"].concat())?;
    } else {
        print(format!("{}\n", answer.line).as_bytes())?;
    }
    Ok(match answer.fit {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(FOUND),
    })
}

/// Answers for each campus that is asked about: it is fit if it is for all of them.
fn answer(readiness: &Readiness, args: &ReadyArgs) -> Result<ReadyAnswer> {
    let ask = |campus: Option<&String>| {
        let query = ReadyQuery {
            campus: campus.cloned(),
            live: args.live,
        };
        readiness
            .answer(&query)
            .map_err(|unknown| Failure::unavailable(format!("--campus: {unknown}")))
    };
    if args.campus.is_empty() {
        return ask(None);
    }
    let answers = args.campus.iter().map(|campus| ask(Some(campus)));
    let answers = answers.collect::<Result<Vec<_>>>()?;
    let lines: Vec<&str> = answers.iter().map(|answer| &*answer.line).collect();
    Ok(ReadyAnswer {
        fit: answers.iter().all(|answer| answer.fit),
        line: lines.join("; "),
    })
}
