//! From OpenMetrics to Prometheus' text format 0.0.4.

/// Rewrites the metrics in the older format. They differ in little: there a counter's description
/// bears the name of its sample, with `_total`, and there are no units and no end mark.
pub(super) fn from_openmetrics(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut help: Option<(&str, &str)> = None;
    for line in openmetrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, words)) = help.take() {
                push(&mut text, &["# HELP ", name, suffix, " ", words]);
            }
            push(&mut text, &["# TYPE ", name, suffix, " ", kind]);
        } else if !line.starts_with('#') {
            push(&mut text, &[line]);
        }
    }
    text
}

fn push(text: &mut String, parts: &[&str]) {
    text.extend(parts.iter().copied().chain(["\n"]));
}

#[cfg(test)]
mod tests {
    use super::from_openmetrics;

    #[test]
    fn counters_are_described_by_their_samples_name() {
        let openmetrics = "\
# HELP pepd_bytes Payload.
# TYPE pepd_bytes counter
# UNIT pepd_bytes bytes
pepd_bytes_total{campus=\"a b # c\"} 7
# HELP pepd_live Now.
# TYPE pepd_live gauge
pepd_live 2
# EOF
";
        let text = "\
# HELP pepd_bytes_total Payload.
# TYPE pepd_bytes_total counter
pepd_bytes_total{campus=\"a b # c\"} 7
# HELP pepd_live Now.
# TYPE pepd_live gauge
pepd_live 2
";
        assert_eq!(from_openmetrics(openmetrics), text);
    }
}
