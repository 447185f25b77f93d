//! What a worker has running for the links under the legs.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::Receiver;
use tokio::task::AbortHandle;

use super::{Before, Silence, endure, restart};
use crate::essential::essential;
use crate::shared::Context;

/// The time for which a link is back within which its legs say nothing of what they can: in the first moments the kernel
/// measures how fast what was lost is sent again, bit by bit. It is longer than any is restarted that anything comes from.
const SAYS_NOTHING: Duration = Duration::from_secs(3);

/// A link that is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Went {
    /// When it went.
    pub(crate) since: Instant,
    /// What it had carried by what another process knew of it, in bytes a second.
    pub(crate) carried: Option<u64>,
}

/// What a worker does about all links.
#[derive(Debug)]
pub(crate) struct LinkTasks {
    links: HashMap<Arc<str>, LinkTask>,
    /// Closed when all connections are known that another process has left.
    all_begun: Receiver<Infallible>,
}

impl LinkTasks {
    /// Begins with no link gone, and connections of another process that are about to go on until that is closed.
    pub(crate) fn new(all_begun: Receiver<Infallible>) -> Self {
        Self {
            links: HashMap::new(),
            all_begun,
        }
    }

    /// Has the leg's connections endure that its link is gone.
    pub(crate) async fn gone(&mut self, context: &Arc<Context>, leg: Arc<str>, went: Went) {
        let link = self.link(&leg).await;
        let before = link.look(context, &leg, went);
        link.enter(endure(Arc::clone(context), leg), Some(before));
    }

    /// Has them go on. A link that was up has nothing to restart.
    pub(crate) async fn up(&mut self, context: &Arc<Context>, leg: Arc<str>) {
        let link = self.link(&leg).await;
        if let Some(before) = link.before.take() {
            link.last = Some((Instant::now(), before.clone()));
            link.enter(restart(Arc::clone(context), leg, before), None);
        }
    }

    /// Returns what is done about the link of a leg, when all of the leg's connections are known: one that comes later than
    /// this would be forgotten.
    async fn link(&mut self, leg: &Arc<str>) -> &mut LinkTask {
        self.all_begun.recv().await;
        self.links.entry(Arc::clone(leg)).or_default()
    }
}

/// What a worker does about the link under a leg.
#[derive(Debug, Default)]
struct LinkTask {
    /// What looks after the leg's connections now.
    task: Option<AbortHandle>,
    /// How it was when the link went; none while it is up.
    before: Option<Before>,
    /// When it was up again, and how it had been.
    last: Option<(Instant, Before)>,
}

impl LinkTask {
    /// Returns how it was before, while the leg itself says nothing of that.
    fn earlier(&self) -> Option<&Before> {
        let last = self.last.as_ref();
        let last = last.filter(|(up, _)| up.elapsed() < SAYS_NOTHING);
        self.before.as_ref().or(last.map(|(_, before)| before))
    }

    /// Looks at the leg, whose link is gone.
    fn look(&self, context: &Context, leg: &str, went: Went) -> Before {
        let silence = match (&self.before, &self.last) {
            (Some(before), _) => before.silence,
            (None, Some((up, before))) => before.silence.again(*up, went.since),
            (None, None) => Silence::new(went.since),
        };
        Before::look(context, leg, (went, silence), self.earlier())
    }

    /// Has a task look after them, in the place of the one before.
    fn enter(&mut self, task: impl Future<Output = ()> + 'static + Send, before: Option<Before>) {
        let task = tokio::spawn(essential(task)).abort_handle();
        if let Some(before) = self.task.replace(task) {
            before.abort();
        }
        self.before = before;
    }
}
