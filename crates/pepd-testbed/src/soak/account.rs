//! What the two ends of a connection did, and whether that can be.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, bail, ensure};

use super::plan::{CLOSED, Finish, Plan, SILENT};
use crate::traffic::End;

/// What one end did.
#[derive(Debug, Default)]
pub struct Account {
    /// Bytes that its kernel accepted.
    pub sent: AtomicU64,
    /// Bytes that it read, all of them right.
    pub received: AtomicU64,
    /// A write failed: the kernel reports a RST once, and whoever reads then may see a plain end.
    pub told: AtomicBool,
    ended: Mutex<Option<End>>,
    wrong: Mutex<Option<String>>,
}

impl Account {
    /// Notes how what it read has ended.
    pub fn end(&self, end: End) {
        *lock(&self.ended) = Some(end);
    }

    /// Notes what must not be.
    pub fn accuse(&self, what: String) {
        lock(&self.wrong).get_or_insert(what);
    }
}

/// One connection with its accounts.
#[derive(Debug)]
pub struct Conversation {
    /// What was to be done.
    pub plan: Plan,
    /// What the client did.
    pub client: Account,
    /// What the server did, each time that it saw the connection: a daemon that asks it on behalf
    /// of a client whose SYN is held, and then is killed or paused, lets it see it again.
    servers: Mutex<Vec<Arc<Account>>>,
    /// How often the daemon had been killed or started when it began: odd while it is killed.
    pub first_epoch: AtomicU64,
    /// And when either end was over.
    pub last_epoch: AtomicU64,
}

impl Conversation {
    /// Returns the one that is about to begin.
    pub fn new(plan: Plan) -> Self {
        Self {
            plan,
            client: Account::default(),
            servers: Mutex::default(),
            first_epoch: AtomicU64::new(0),
            last_epoch: AtomicU64::new(0),
        }
    }

    /// Returns the account of a server's end that begins.
    pub fn begin_to_serve(&self) -> Arc<Account> {
        let account = Arc::new(Account::default());
        lock(&self.servers).push(Arc::clone(&account));
        account
    }

    /// Returns the account of the server's end that has seen the client: the one that has received
    /// something, or the last.
    pub fn server(&self) -> Arc<Account> {
        let servers = lock(&self.servers);
        let has_received = |account: &&Arc<Account>| account.received.load(Relaxed) > 0;
        let server = servers.iter().rfind(has_received).or(servers.last());
        server.cloned().unwrap_or_default()
    }

    /// Returns whether the daemon was killed meanwhile, which breaks connections.
    pub fn saw_a_kill(&self) -> bool {
        let first = self.first_epoch.load(Relaxed);
        first % 2 == 1 || first != self.last_epoch.load(Relaxed)
    }

    /// Returns whether the client was reset, and the server has seen nothing of it under the client's port.
    pub fn was_reset_unseen(&self) -> bool {
        let reset = End::Error(ErrorKind::ConnectionReset);
        lock(&self.servers).is_empty() && *lock(&self.client.ended) == Some(reset)
    }

    /// Judges it, once both ends are over.
    ///
    /// # Errors
    /// What cannot be.
    pub fn judge(&self) -> Result<()> {
        let servers = lock(&self.servers).clone();
        for account in servers.iter().map(|it| &**it).chain([&self.client]) {
            if let Some(wrong) = &*lock(&account.wrong) {
                bail!("{wrong}");
            }
        }
        let received = |it: &&Arc<Account>| it.received.load(Relaxed) > 0;
        let heard = servers.iter().filter(received).count();
        ensure!(
            heard <= 1 || self.saw_a_kill(),
            "the server heard of it {heard} times"
        );
        match self.plan.to.port() {
            CLOSED => return self.judge_closed(),
            SILENT => {
                let ended = *lock(&self.client.ended);
                ensure!(
                    matches!(ended, Some(End::Error(_))),
                    "silence gave {ended:?}"
                );
                return Ok(());
            }
            _ => {}
        }
        let server = self.server();
        self.judge_bytes(&server)?;
        let orderly = |finish| finish == Finish::Orderly;
        if orderly(self.plan.client.finish)
            && orderly(self.plan.server.finish)
            && !self.saw_a_kill()
        {
            self.judge_orderly(&server)?;
        }
        Ok(())
    }

    fn judge_closed(&self) -> Result<()> {
        let ended = *lock(&self.client.ended);
        let refused = [ErrorKind::ConnectionRefused, ErrorKind::ConnectionReset];
        let told = matches!(ended, Some(End::Error(kind)) if refused.contains(&kind))
            || self.client.told.load(Relaxed)
            || self.saw_a_kill();
        ensure!(told, "a closed port gave {ended:?}");
        Ok(())
    }

    fn judge_bytes(&self, server: &Account) -> Result<()> {
        for (name, mine, peer, theirs) in [
            ("client", &self.client, server, &self.plan.server),
            ("server", server, &self.client, &self.plan.client),
        ] {
            let (received, sent) = (mine.received.load(Relaxed), peer.sent.load(Relaxed));
            ensure!(received <= sent, "{name}: {received} bytes came of {sent}");
            let ended = *lock(&mine.ended);
            if ended == Some(End::Fin) && !mine.told.load(Relaxed) {
                ensure!(
                    received == sent,
                    "{name}: a clean end after {received} of {sent} bytes"
                );
                let silent = [Finish::Reset, Finish::Vanish].contains(&theirs.finish);
                ensure!(!silent, "{name}: {:?} arrived as FIN", theirs.finish);
            }
        }
        Ok(())
    }

    fn judge_orderly(&self, server: &Account) -> Result<()> {
        for (name, did, plan) in [
            ("client", &self.client, &self.plan.client),
            ("server", server, &self.plan.server),
        ] {
            let ended = *lock(&did.ended);
            ensure!(
                ended == Some(End::Fin),
                "{name}: both ends orderly, and yet {ended:?}"
            );
            let sent = did.sent.load(Relaxed);
            ensure!(
                sent == plan.length,
                "{name}: both ends orderly, and yet {sent} bytes sent"
            );
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
