//! A leg's congestion control that is chosen while the relay runs.

use std::sync::Arc;

use arc_swap::ArcSwap;

/// A congestion control that is chosen again and again, by the kernel's names. All that have a clone see what was
/// chosen last, and a leg that has one gives it to its new connections.
#[derive(Clone, Debug)]
pub struct ChosenControl(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    last: ArcSwap<String>,
    own: Option<String>,
}

/// The same one: what is chosen is no difference between two settings.
impl PartialEq for ChosenControl {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ChosenControl {}

impl ChosenControl {
    /// Begins with `first`. `own` is what a control of pepd's own is called that may be chosen, whose
    /// connections share a rate.
    #[must_use]
    pub fn new(first: String, own: Option<String>) -> Self {
        let last = ArcSwap::from_pointee(first);
        Self(Arc::new(Inner { last, own }))
    }

    /// Chooses another one, for connections that begin from now on.
    pub fn choose(&self, name: String) {
        self.0.last.store(Arc::new(name));
    }

    /// Returns what was chosen last.
    #[must_use]
    pub fn name(&self) -> Arc<String> {
        self.0.last.load_full()
    }

    /// Returns the control of pepd's own that may be chosen.
    pub(crate) fn own(&self) -> Option<&str> {
        self.0.own.as_deref()
    }

    /// Returns whether what was chosen last shares a rate.
    pub(crate) fn shares(&self) -> bool {
        self.own() == Some(self.name().as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_see_what_was_chosen_last() {
        let chosen = ChosenControl::new("cubic".to_owned(), Some("pepdf_1".to_owned()));
        let seen = chosen.clone();
        assert!(!seen.shares());
        chosen.choose("pepdf_1".to_owned());
        assert!(seen.shares() && *seen.name() == "pepdf_1");
        assert_eq!(seen, chosen);
        assert_ne!(chosen, ChosenControl::new("pepdf_1".to_owned(), None));
    }
}
