//! `pepd status`: the daemon as a whole.

mod moves;
mod windows;
mod worth;

use pepd_admin::wire::{
    Alarm, AutoBuffers, BufferSum, ChosenControl, Confinement, FoundRate, GuardDrops, Held,
    LastReload, LegState, LimitUse, LinkState, PairDirection, PairLeg, PairSnapshot, PeerState,
    RateLimit, Readiness, ReadyQuery, ReloadState, SizedBy, Status, Survival,
};

use crate::cli::AskArgs;
use crate::clock::unix_time;
use crate::commands::client::Client;
use crate::commands::endpoint;
use crate::exit::Result;
use crate::ui::format;
use crate::ui::labels;
use crate::ui::output::print;
use crate::ui::table;

/// Prints how the daemon is.
pub fn status(args: &AskArgs) -> Result {
    let client = Client::new(&args.target)?;
    if args.json {
        let mut text = client.get_text(endpoint::STATUS)?;
        text.push(b'\n');
        return print(&text);
    }
    let status: Status = client.get(endpoint::STATUS)?;
    print(describe(&status, unix_time(), table::width()).as_bytes())
}

fn describe(status: &Status, now: f64, width: Option<u16>) -> String {
    let mut text = format!("{}\n", labels::headline(status));
    text += &ready(status.ready.as_ref());
    text += &confinement(status.confinement.as_ref(), width);
    text += &reload(status.reload.as_ref(), now);
    text += &survival(status.survival.as_ref(), now);
    if let Some(trouble) = &status.trouble {
        text += &format!("kernel state: {trouble}\n");
    }
    let parts = [
        alarms(&status.alarms, width),
        pairs(&status.pairs, width),
        limits(&status.limits, width),
        peers(&status.peers, now, width),
        links(&status.links, now, width),
        legs(&status.legs, width),
        rates(&status.rates, width),
        chosen(&status.chosen, now, width),
        buffers(&status.buffers, width),
        windows::windows(&status.windows, width),
        held(status.held.as_ref()),
        worth::worth(status.worth.as_ref(), width),
        moves::moves(status.moves.as_ref(), width),
        guards(&status.guards, width),
        counters(status, width),
        advice(&status.advice, width),
    ];
    for part in parts.iter().filter(|part| !part.is_empty()) {
        text.push('\n');
        text += part;
    }
    text
}

/// Says why connections are best led elsewhere, if they are.
fn ready(ready: Option<&Readiness>) -> String {
    let answer = ready.and_then(|ready| ready.answer(&ReadyQuery::default()).ok());
    match answer {
        Some(answer) if answer.line != "ready" => format!("{}\n", answer.line),
        _ => String::new(),
    }
}

/// Says what the daemon may still do.
fn confinement(confinement: Option<&Confinement>, width: Option<u16>) -> String {
    let Some(confinement) = confinement else {
        return String::new();
    };
    if width.is_none() {
        return format!("confined: {confinement}\n");
    }
    let mut table = table::table(&["", ""], &[], &[1], width);
    table.add_row(["confined:", &confinement.to_string()]);
    // Two words need no header.
    table::text(&table).trim_start().to_owned()
}

/// Gives a line on a reload that is under way or was refused.
fn reload(last: Option<&LastReload>, now: f64) -> String {
    let Some(last) = last else {
        return String::new();
    };
    let age = format::age((now - last.since).max(0.0));
    match last.state {
        ReloadState::Done => String::new(),
        ReloadState::Underway => format!("a reload is under way, for {age}\n"),
        ReloadState::Refused => format!(
            "the last reload was refused, {age} ago, and nothing has changed:\n{}\n",
            last.reason.as_deref().unwrap_or_default().trim_end()
        ),
    }
}

/// Says how often another process has taken over and why, and what the last time has cost.
fn survival(survival: Option<&Survival>, now: f64) -> String {
    let Some((survival, last)) = survival.and_then(|it| Some((it, it.last.as_ref()?))) else {
        return String::new();
    };
    let died = survival.deaths.iter().filter(|deaths| deaths.count > 0);
    let causes: Vec<String> = died
        .map(|deaths| format!("{} {}", deaths.cause, deaths.count))
        .collect();
    format!(
        "another process has taken over {} ({}), the last time {} ago: {}; {} connections went on \
         after {}, {} were reset\n",
        match survival.count() {
            1 => "once".to_owned(),
            times => format!("{times} times"),
        },
        causes.join(", "),
        format::age((now - last.time).max(0.0)),
        last.why,
        last.connections,
        format::seconds(last.pause),
        last.lost,
    )
}

/// Lists what stands in the way of connections, each with its cure.
fn alarms(alarms: &[Alarm], width: Option<u16>) -> String {
    if alarms.is_empty() {
        return String::new();
    }
    let mut table = table::table(&["", ""], &[], &[1], width);
    for Alarm { what, cure, .. } in alarms {
        table.add_row(["ALARM:", what]);
        table.add_row(["cure:", cure]);
    }
    // Two words need no header.
    table::text(&table).trim_start().to_owned()
}

/// Gives two lines for each pair: what clients send with their legs, what servers send with theirs.
fn pairs(pairs: &[PairSnapshot], width: Option<u16>) -> String {
    if pairs.is_empty() {
        return "no connections yet\n".to_owned();
    }
    let header = [
        "CAMPUSES", "LIVE", "ALL", "GOODPUT", "BYTES", "PHASE", "LEG", "RTT", "RETR",
    ];
    let mut table = table::table(&header, &[1, 2, 3, 4, 7, 8], &[0], width);
    for pair in pairs {
        let both = |up: String, down: String| format!("{up}\n{down}");
        let (near, far) = (&pair.client_leg, &pair.upstream_leg);
        table.add_row([
            format!("{} →\n{}", pair.client_campus, pair.server_campus),
            format::count(pair.live),
            format::count(pair.accepted),
            both(
                format::rate(pair.up.goodput),
                format::rate(pair.down.goodput),
            ),
            both(format::bytes(pair.up.bytes), format::bytes(pair.down.bytes)),
            both(phase(&pair.up), phase(&pair.down)),
            both(near.profile.clone(), far.profile.clone()),
            both(rtt(near), rtt(far)),
            both(retransmitted(near), retransmitted(far)),
        ]);
    }
    table::text(&table)
}

/// Gives the main phase of the last seconds or, if nothing was carried lately, of all the time.
fn phase(direction: &PairDirection) -> String {
    let recent = &direction.recent_phases;
    labels::main_phase(if recent.total() > 0.0 {
        recent
    } else {
        &direction.phases
    })
}

fn rtt(leg: &PairLeg) -> String {
    leg.rtt.map_or_else(|| "–".to_owned(), format::seconds)
}

fn retransmitted(leg: &PairLeg) -> String {
    leg.retransmitted
        .map_or_else(|| "–".to_owned(), format::permille)
}

fn limits(limits: &[LimitUse], width: Option<u16>) -> String {
    if limits.is_empty() {
        return String::new();
    }
    let mut table = table::table(&["LIMIT", "IN USE", "OF", "SHARE"], &[1, 2, 3], &[], width);
    for limit in limits {
        table.add_row([
            limit.name.clone(),
            labels::amount(limit, limit.used),
            labels::amount(limit, limit.limit),
            share_used(limit),
        ]);
    }
    table::text(&table)
}

/// Gives the share of a limit that is in use.
fn share_used(limit: &LimitUse) -> String {
    if limit.limit == 0 {
        return "–".to_owned();
    }
    format::percent(format::number(limit.used) / format::number(limit.limit))
}

fn peers(peers: &[PeerState], now: f64, width: Option<u16>) -> String {
    if peers.is_empty() {
        return String::new();
    }
    let header = ["PEER", "STATE", "SINCE", "RTT", "LOST", "PROBES"];
    let mut table = table::table(&header, &[3, 4, 5], &[], width);
    for peer in peers {
        table.add_row([
            peer.name.clone(),
            labels::liveness(peer.liveness).to_owned(),
            peer.since
                .map_or_else(|| "–".to_owned(), |since| format::age(now - since)),
            peer.rtt.map_or_else(|| "–".to_owned(), format::seconds),
            format::count(peer.lost),
            format::count(peer.probes),
        ]);
    }
    table::text(&table)
}

/// Lists the links of which something tells.
fn links(links: &[LinkState], now: f64, width: Option<u16>) -> String {
    if links.is_empty() {
        return String::new();
    }
    let header = ["LINK OF LEG", "STATE", "SINCE", "CHANGES", "TOLD BY"];
    let mut table = table::table(&header, &[3], &[4], width);
    for link in links {
        table.add_row([
            link.leg.clone(),
            link_state(link, labels::link(link.state), now),
            link.since
                .map_or_else(|| "–".to_owned(), |since| format::age(now - since)),
            format::count(link.changes),
            told_by(link),
        ]);
    }
    table::text(&table)
}

/// Lists the legs that had connections: what is sent over them, and how long round trips are at the least and
/// while they are busy.
fn legs(legs: &[LegState], width: Option<u16>) -> String {
    if legs.is_empty() {
        return String::new();
    }
    let header = [
        "LEG",
        "SENT",
        "AGAIN",
        "BUSY",
        "LEAST RTT",
        "BUSY RTT",
        "95 % BELOW",
    ];
    let mut table = table::table(&header, &[1, 2, 3, 4, 5, 6], &[], width);
    let known = |figure: Option<f64>, write: fn(f64) -> String| {
        figure.map_or_else(|| "–".to_owned(), write)
    };
    for leg in legs {
        let loaded = leg.loaded_rtt;
        table.add_row([
            leg.leg.clone(),
            format::rate(leg.sent),
            known(leg.resent, format::permille),
            format::age(leg.busy_seconds),
            known(leg.least_rtt, format::seconds),
            known(loaded.map(|rtt| rtt.median), format::seconds),
            known(loaded.map(|rtt| rtt.p95), format::seconds),
        ]);
    }
    table::text(&table)
}

/// Says what limits a rate that is found.
fn limited_by(limit: RateLimit) -> &'static str {
    match limit {
        RateLimit::Looking => "nothing yet",
        RateLimit::Applications => "less to send",
        RateLimit::Ceiling => "its rate",
        RateLimit::Link => "the link",
        RateLimit::Others => "the link, which others use, too",
        RateLimit::Drops => "the link, which drops what is too much",
    }
}

/// Lists the rates that are found.
fn rates(rates: &[FoundRate], width: Option<u16>) -> String {
    if rates.is_empty() {
        return String::new();
    }
    let header = [
        "RATE OF LEG",
        "STATE",
        "CARRIES",
        "MAY SEND",
        "LOST",
        "QUEUE",
        "NARROW",
        "LIMITED BY",
    ];
    let mut table = table::table(&header, &[2, 3, 4, 5, 6], &[7], width);
    for rate in rates {
        let bits = |rate: u64| format::rate(format::number(rate));
        table.add_row([
            rate.leg.clone(),
            rate.state.name().to_owned(),
            bits(rate.capacity),
            bits(rate.rate),
            format::permille(rate.loss),
            format::seconds(rate.queue),
            format::count(rate.narrow),
            rate.limit
                .map_or_else(|| "–".to_owned(), |limit| limited_by(limit).to_owned()),
        ]);
    }
    table::text(&table)
}

/// Lists what is chosen for the legs that leave their congestion control to the daemon.
fn chosen(chosen: &[ChosenControl], now: f64, width: Option<u16>) -> String {
    if chosen.is_empty() {
        return String::new();
    }
    let header = ["CONTROL OF LEG", "CHOSEN", "FOR", "BECAUSE"];
    let mut table = table::table(&header, &[2], &[3], width);
    for leg in chosen {
        let trial = if leg.trial { " (on trial)" } else { "" };
        table.add_row([
            leg.leg.clone(),
            format!("{}{trial}", leg.congestion),
            format::age((now - leg.since).max(0.0)),
            leg.why.clone(),
        ]);
    }
    table::text(&table)
}

/// Lists the buffers that are sized by what their paths need.
fn buffers(buffers: &[AutoBuffers], width: Option<u16>) -> String {
    if buffers.is_empty() {
        return String::new();
    }
    let header = ["BUFFERS OF LEG", "", "HOLD", "LARGEST", "SIZED BY"];
    let mut table = table::table(&header, &[2, 3], &[4], width);
    for leg in buffers {
        for (name, way, sum) in [(&*leg.leg, "send", leg.send), ("", "receive", leg.receive)] {
            table.add_row([
                name.to_owned(),
                way.to_owned(),
                format::bytes(sum.held),
                format::bytes(sum.largest),
                sized_by(&sum),
            ]);
        }
    }
    table::text(&table)
}

/// Says how many buffers have their size from what.
fn sized_by(sum: &BufferSum) -> String {
    let parts = SizedBy::ALL.iter().filter_map(|&why| {
        let count = sum.sized_by(why);
        (count > 0).then(|| format!("{} by {}", format::count(count), why.name()))
    });
    let parts: Vec<_> = parts.collect();
    if parts.is_empty() {
        return "–".to_owned();
    }
    parts.join(", ")
}

/// Says what is held because a link is gone.
fn held(held: Option<&Held>) -> String {
    let is_anything = |held: &&Held| held.connections > 0;
    held.filter(is_anything).map_or_else(String::new, |held| {
        let beyond = match held.beyond_total {
            0 => String::new(),
            beyond => format!(
                "\nthere was no room for {} more since the start",
                format::count(beyond)
            ),
        };
        format!(
            "held of {} {} end to end: {} ACKs, {} packets ({}){beyond}
",
            format::count(held.connections),
            if held.connections == 1 {
                "connection that stays"
            } else {
                "connections that stay"
            },
            format::count(held.acks),
            format::count(held.packets),
            format::bytes(held.bytes),
        )
    })
}

/// Says whether a link is there, when it is thought to be again, and how many new connections wait for that.
pub(super) fn link_state(link: &LinkState, state: &str, now: f64) -> String {
    let left = link.up_at.map(|at| format::seconds((at - now).max(0.0)));
    let up = left.map(|left| match link.flaps {
        false => format!("up in {left}"),
        true => format!("flaps: up in {left}"),
    });
    let waiting = (link.waiting > 0).then(|| format!("{} waiting", format::count(link.waiting)));
    let said: Vec<_> = [Some(state.to_owned()), up, waiting]
        .into_iter()
        .flatten()
        .collect();
    said.join(", ")
}

/// Returns whether what told of a link last is what tells of it.
fn is_of(by: &str, source: &str) -> bool {
    let more = by.strip_prefix(source);
    more.is_some_and(|more| more.is_empty() || more.starts_with(','))
}

/// Names what told of a link last, and what tells of it otherwise, with what a modem says of it.
fn told_by(link: &LinkState) -> String {
    let source = match &link.by {
        // It says nothing else, or more of itself.
        Some(by) if is_of(by, &link.source) => by.clone(),
        Some(by) => format!("{by}; {}", link.source),
        None => link.source.clone(),
    };
    let Some(modem) = &link.modem else {
        return source;
    };
    let rate = |rate: u64| format::rate(format::number(rate));
    let said = [
        modem.session.is_none().then(|| "no session".to_owned()),
        modem.transmit_rate.map(|it| format!("{} out", rate(it))),
        modem.receive_rate.map(|it| format!("{} in", rate(it))),
        modem.latency.map(format::seconds),
    ];
    let said: Vec<_> = [Some(source)].into_iter().chain(said).flatten().collect();
    said.join(", ")
}

/// Lists what the tunnels' guards have dropped, if they have.
fn guards(guards: &[GuardDrops], width: Option<u16>) -> String {
    let has_dropped = |guard: &&GuardDrops| guard.packets + guard.unreachable > 0;
    let dropping = || guards.iter().filter(has_dropped);
    if dropping().next().is_none() {
        return String::new();
    }
    let mut table = table::table(
        &[
            "DROPPED OUT OF TUNNEL",
            "PACKETS",
            "BYTES",
            "SAID UNREACHABLE",
        ],
        &[1, 2, 3],
        &[],
        width,
    );
    for guard in dropping() {
        table.add_row([
            guard
                .peer
                .clone()
                .unwrap_or_else(|| "(from no peer)".to_owned()),
            format::count(guard.packets),
            format::bytes(guard.bytes),
            format::count(guard.unreachable),
        ]);
    }
    table::text(&table)
}

/// Lists what has been counted; what has not happened is no news.
fn counters(status: &Status, width: Option<u16>) -> String {
    let all = status.counters.iter().chain(&status.routed);
    let mut counted: Vec<_> = all.filter(|counter| counter.count > 0).collect();
    if counted.is_empty() {
        return String::new();
    }
    counted.sort_by_key(|counter| std::cmp::Reverse(counter.count));
    let mut table = table::table(&["COUNT", "COUNTER", "MEANING"], &[0], &[2], width);
    for counter in counted {
        table.add_row([
            format::count(counter.count),
            counter.name.clone(),
            counter.meaning.clone(),
        ]);
    }
    table::text(&table)
}

fn advice(advice: &[String], width: Option<u16>) -> String {
    if advice.is_empty() {
        return String::new();
    }
    let mut table = table::table(&["", ""], &[], &[1], width);
    for sentence in advice {
        table.add_row(["advice:", sentence]);
    }
    // Two words need no header.
    table::text(&table).trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use pepd_admin::fixture;

    use super::*;

    #[test]
    fn at_80_columns() {
        let text = describe(&fixture::status(120), fixture::NOW, Some(80));
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert_snapshot!(text);
    }

    #[test]
    fn a_daemon_that_has_just_started() {
        let mut status = fixture::status(0);
        status.pairs.clear();
        status.peers.clear();
        status.guards.clear();
        status.advice.clear();
        status.counters.iter_mut().for_each(|c| c.count = 0);
        status.routed.clear();
        status.held = None;
        status.worth = None;
        status.moves = None;
        status.legs.clear();
        status.rates.clear();
        status.chosen.clear();
        status.buffers.clear();
        status.windows.clear();
        status.uptime = 3.0;
        assert_snapshot!(describe(&status, fixture::NOW, None));
    }
}
