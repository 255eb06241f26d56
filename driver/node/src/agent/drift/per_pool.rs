//! Work that runs in a task for each pool, so that a pool that hangs does not block the others.

use std::{collections::HashMap, future::Future};

use tokio::task::{AbortHandle, JoinSet};

/// The tasks of one kind of work, by UID of the pool. Dropping it ends them.
#[derive(Debug, Default)]
pub(super) struct PerPool {
    tasks: JoinSet<()>,
    running: HashMap<String, AbortHandle>,
}

impl PerPool {
    /// Starts work in a pool, unless its earlier work still runs.
    pub(super) fn start(
        &mut self,
        pool_uid: &str,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        while self.tasks.try_join_next().is_some() {}
        self.running.retain(|_, task| !task.is_finished());
        if !self.running.contains_key(pool_uid) {
            let task = self.tasks.spawn(work);
            self.running.insert(pool_uid.to_owned(), task);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::{sync::oneshot, task::yield_now};

    use super::*;

    #[tokio::test]
    async fn r16_work_that_hangs_in_a_pool_keeps_no_other_pool_from_its_own() {
        let mut work = PerPool::default();
        work.start("hangs", pending());
        let (done, is_done) = oneshot::channel();
        work.start("works", async move { done.send(()).unwrap() });
        is_done.await.unwrap();
        let (begun, has_begun) = oneshot::channel();
        work.start("hangs", async move { begun.send(()).unwrap() });
        has_begun.await.unwrap_err();
        let works = |work: &PerPool| {
            let task = work.running.get("works");
            task.is_some_and(|task| !task.is_finished())
        };
        while works(&work) {
            yield_now().await;
        }
        let (done, is_done) = oneshot::channel();
        work.start("works", async move { done.send(()).unwrap() });
        is_done.await.unwrap();
    }
}
