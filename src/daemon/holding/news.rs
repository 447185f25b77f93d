//! What is heard of links faster than the thread takes it. No I/O.

use std::collections::BTreeMap;
use std::sync::Arc;

use pepd_hold::Report;

/// The last that was heard of each link, until the thread has taken it.
#[derive(Debug, Default)]
pub(super) struct News(BTreeMap<Arc<str>, Report>);

impl News {
    /// Takes what was heard; returns whether nothing waited of this leg.
    pub(super) fn hear(&mut self, leg: &Arc<str>, report: Report) -> bool {
        match self.0.get_mut(leg) {
            Some(before) => {
                *before = after(*before, report);
                false
            }
            None => {
                self.0.insert(Arc::clone(leg), report);
                true
            }
        }
    }

    /// Gives what was heard last of a leg, once.
    pub(super) fn take(&mut self, leg: &Arc<str>) -> Option<Report> {
        self.0.remove(leg)
    }
}

/// Returns what one who has heard neither is to hear.
fn after(before: Report, report: Report) -> Report {
    match (before, report) {
        // For how long it would be gone was said beforehand.
        (Report::GoingDown(time) | Report::Gone(time), Report::Gone(None)) => Report::Gone(time),
        _ => report,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_the_last_waits_of_each_leg() {
        let (radio, wan): (Arc<str>, Arc<str>) = ("radio".into(), "wan".into());
        let mut news = News::default();
        assert!(news.hear(&radio, Report::Gone(None)));
        for _ in 0..1000 {
            assert!(!news.hear(&radio, Report::Up(None)));
            assert!(!news.hear(&radio, Report::Gone(None)));
        }
        assert!(news.hear(&wan, Report::Up(None)));
        assert_eq!(news.take(&radio), Some(Report::Gone(None)));
        assert_eq!(news.take(&radio), None);
        assert!(news.hear(&radio, Report::Up(None)));
        assert_eq!(news.take(&wan), Some(Report::Up(None)));
    }

    #[test]
    fn for_how_long_a_link_will_be_gone_is_not_forgotten_when_it_goes() {
        let (radio, time) = ("radio".into(), Some(Duration::from_secs(10)));
        let mut news = News::default();
        news.hear(&radio, Report::GoingDown(time));
        news.hear(&radio, Report::Gone(None));
        news.hear(&radio, Report::Gone(None));
        assert_eq!(news.take(&radio), Some(Report::Gone(time)));
        news.hear(&radio, Report::Gone(time));
        news.hear(&radio, Report::Up(None));
        news.hear(&radio, Report::Gone(None));
        assert_eq!(news.take(&radio), Some(Report::Gone(None)));
    }
}
