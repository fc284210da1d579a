//! The rows that tools read and write, for all calls of a transaction at once: a handler asks and waits, and when every
//! handler waits, each kind of question is one statement. So a handler is written for one call, and costs a statement
//! only its share.

use std::{
    future::poll_fn,
    sync::{Mutex, MutexGuard, PoisonError},
    task::Poll,
};

use domain::{AccountId, Actor, MessageId, TaskId, TurnId};
use futures::{
    FutureExt,
    channel::oneshot,
    future::{BoxFuture, join_all},
};
use storage::{
    StorageError, Tx,
    lifecycle::{NewMessage, messages_post},
};
use time::OffsetDateTime;

use crate::store::{
    self, ActivityRow, AgentRow, BaseAsked, BaseRows, MessageRow, NamedAgents, Newest, TaskName, TaskRow,
};

/// Questions of one kind that wait for their answers.
struct Kind<Q, A>(Mutex<Vec<(Q, oneshot::Sender<A>)>>);

impl<Q, A> Default for Kind<Q, A> {
    fn default() -> Self {
        Kind(Mutex::default())
    }
}

impl<Q, A> Kind<Q, A> {
    async fn ask(&self, question: Q) -> A {
        let (answer, answered) = oneshot::channel();
        self.list().push((question, answer));
        answered
            .await
            .expect("after an error of a statement, no handler is polled")
    }

    fn list(&self) -> MutexGuard<'_, Vec<(Q, oneshot::Sender<A>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> usize {
        self.list().len()
    }

    async fn answer(&self, find: impl AsyncFnOnce(&[Q]) -> Result<Vec<A>, StorageError>) -> Result<(), StorageError> {
        let waiting = std::mem::take(&mut *self.list());
        if waiting.is_empty() {
            return Ok(());
        }
        let (questions, waiting): (Vec<Q>, Vec<oneshot::Sender<A>>) = waiting.into_iter().unzip();
        for (waits, answer) in waiting.into_iter().zip(find(&questions).await?) {
            // A handler that no longer waits has ended.
            let _ = waits.send(answer);
        }
        Ok(())
    }
}

/// A message to post.
#[derive(Clone, Debug)]
pub(super) struct Post {
    pub account: AccountId,
    pub task: TaskId,
    pub id: MessageId,
    pub author: Actor,
    pub body: String,
    pub turn: Option<TurnId>,
    pub at: OffsetDateTime,
}

pub(crate) struct Questions<'t> {
    /// For a tool that runs alone.
    pub tx: &'t Tx,
    tasks: Kind<TaskName, Option<TaskRow>>,
    assignees: Kind<TaskName, Vec<AgentRow>>,
    messages: Kind<Newest, Vec<MessageRow>>,
    activities: Kind<Newest, Vec<ActivityRow>>,
    bases: Kind<BaseAsked, Option<BaseRows>>,
    agents: Kind<NamedAgents, Vec<AgentRow>>,
    posts: Kind<Post, ()>,
}

impl<'t> Questions<'t> {
    pub(crate) fn new(tx: &'t Tx) -> Questions<'t> {
        Questions {
            tx,
            tasks: Kind::default(),
            assignees: Kind::default(),
            messages: Kind::default(),
            activities: Kind::default(),
            bases: Kind::default(),
            agents: Kind::default(),
            posts: Kind::default(),
        }
    }

    pub(super) async fn task(&self, task: TaskName) -> Option<TaskRow> {
        self.tasks.ask(task).await
    }

    pub(super) async fn assignees(&self, task: TaskName) -> Vec<AgentRow> {
        self.assignees.ask(task).await
    }

    pub(super) async fn messages(&self, asked: Newest) -> Vec<MessageRow> {
        self.messages.ask(asked).await
    }

    pub(super) async fn activities(&self, asked: Newest) -> Vec<ActivityRow> {
        self.activities.ask(asked).await
    }

    pub(super) async fn base(&self, asked: BaseAsked) -> Option<BaseRows> {
        self.bases.ask(asked).await
    }

    pub(super) async fn agents(&self, asked: NamedAgents) -> Vec<AgentRow> {
        self.agents.ask(asked).await
    }

    /// Posts the message, unless one of its id exists.
    pub(super) async fn post(&self, post: Post) {
        self.posts.ask(post).await;
    }

    /// Runs handlers to their ends, and asks their questions whenever none of them can go on without an answer.
    pub(crate) async fn run_all<T>(&self, handlers: Vec<BoxFuture<'_, T>>) -> Result<Vec<T>, StorageError> {
        let mut all = join_all(handlers);
        loop {
            let ended = poll_fn(|context| match all.poll_unpin(context) {
                Poll::Ready(ended) => Poll::Ready(Some(ended)),
                Poll::Pending if self.waiting() > 0 => Poll::Ready(None),
                // A tool that runs alone waits for a statement of its own.
                Poll::Pending => Poll::Pending,
            });
            match ended.await {
                Some(ended) => return Ok(ended),
                None => self.ask().await?,
            }
        }
    }

    fn waiting(&self) -> usize {
        self.tasks.waiting()
            + self.assignees.waiting()
            + self.messages.waiting()
            + self.activities.waiting()
            + self.bases.waiting()
            + self.agents.waiting()
            + self.posts.waiting()
    }

    async fn ask(&self) -> Result<(), StorageError> {
        let tx = self.tx;
        self.tasks
            .answer(async |asked| store::tasks_find(tx, asked).await)
            .await?;
        self.assignees
            .answer(async |asked| store::assignees(tx, asked).await)
            .await?;
        self.messages
            .answer(async |asked| {
                store::messages_newest(
                    tx,
                    asked,
                    super::task_history::CHARACTERS_MAX,
                    super::task_history::BYTES_MAX,
                )
                .await
            })
            .await?;
        self.activities
            .answer(async |asked| store::activities_newest(tx, asked).await)
            .await?;
        self.bases
            .answer(async |asked| {
                store::bases_read(
                    tx,
                    asked,
                    super::task_history::CHARACTERS_MAX,
                    super::task_history::BYTES_MAX,
                )
                .await
            })
            .await?;
        self.agents
            .answer(async |asked| store::agents_find(tx, asked).await)
            .await?;
        self.posts.answer(async |asked| posted(tx, asked).await).await
    }
}

async fn posted(tx: &Tx, posts: &[Post]) -> Result<Vec<()>, StorageError> {
    let new: Vec<NewMessage<'_>> = posts
        .iter()
        .map(|post| NewMessage {
            account: &post.account,
            task: &post.task,
            id: post.id,
            author: &post.author,
            body: &post.body,
            turn: post.turn,
            woke: &[],
            at: post.at,
        })
        .collect();
    messages_post(tx, &new).await?;
    Ok(vec![(); posts.len()])
}
