//! What decides whether a question may be asked or answered.

use contracts::tools::{self, ToolEffect};
use domain::{AccountId, AgentId, NotificationId, QuestionId, SessionId, TaskId, TurnId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx, lifecycle::question::asked_id};

/// Turns of a session that are read.
const TURNS_MAX: i64 = 200;

#[derive(FromQueryResult)]
struct Counted {
    count: i64,
}

/// Items from people that were accepted after the turn's start, and wait. Relies on notification_queue and on the turn's primary key.
pub const UNREAD: &str = "
    select count(*) as count from (
        select n.sender_kind, n.created_at from notification n
        where n.account_id = $1 and n.session_id = $2 and n.state = 'queued'
        order by n.account_id, n.session_id, n.position offset 0) n
    where n.sender_kind = 'user' and n.created_at > (select t.started_at from turn t where t.account_id = $1 and t.id = $3)";

pub(crate) async fn is_unread(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
    turn: TurnId,
) -> Result<bool, StorageError> {
    let values = [account.into(), session.into(), turn.into()];
    let counted: Option<Counted> = tx.one("look for unread messages", UNREAD, values).await?;
    Ok(counted.is_some_and(|counted| counted.count > 0))
}

/// Turns of an agent on a task, as far as they decide whether it works on the task.
#[derive(FromQueryResult)]
struct Worked {
    /// It is assigned, or had a turn that nothing excuses.
    count: i64,
    /// Of turns that a question of the task has woken, and that changed nothing: the item and the question that it names.
    items: Vec<String>,
    questions: Vec<String>,
}

/// Whether an agent works on a task: it is assigned, or had a turn on it, among the newest of its sessions. A turn that only looks at
/// what it is asked is no work: one that a question to the agent has woken, or Signalbox's item about a review without a verdict, and
/// in which no tool changed anything. Relies on session_generation, turn_number, tool_call_turn and primary keys.
pub const EXECUTES: &str = "
    with own as (
        select n.id, n.kind, n.sender_kind, n.sender_id, q.id as question,
               exists (select from (
                   select * from tool_call c where c.account_id = t.account_id and c.turn_id = t.id order by c.ordinal) c
                   where c.state = 'finished' and c.name = any ($5)) as changed
        from ((select s.account_id, s.id from session s
               where s.account_id = $1 and s.kind = 'task' and s.task_id = $2 and s.agent_id = $3 and s.user_id is null
               order by s.user_id desc, s.generation desc limit $4)
              union all
              (select s.account_id, s.id from session s
               where s.account_id = $1 and s.kind = 'system' and s.task_id is null and s.agent_id = $3 and s.user_id is null
               order by s.task_id desc, s.user_id desc, s.generation desc limit $4)) s
        cross join lateral (
            select t.account_id, t.id, t.task_id, t.cause from turn t where t.account_id = s.account_id and t.session_id = s.id
            order by t.number desc limit $4) t
        cross join lateral (
            select n.account_id, n.id, n.kind, n.sender_kind, n.sender_id,
                   case when n.kind in ('question', 'review') and n.metadata ->> 'question_id' ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                        then (n.metadata ->> 'question_id')::uuid end as question
            from notification n where n.account_id = s.account_id and n.id = t.cause offset 0) n
        left join lateral (
            select q.id from question q
            where q.account_id = n.account_id and q.id = n.question and q.task_id = $2 and 'agent:' || $3::uuid::text = any (q.audience) offset 0) q on true
        where t.task_id = $2)
    select (select count(*) from task_assignee ta where ta.account_id = $1 and ta.task_id = $2 and ta.agent_id = $3)
         + (select count(*) from own o
            where o.changed
               or o.question is null and not (o.kind = 'recovery' and o.sender_kind = 'service' and o.sender_id = 'signalbox')) as count,
           array(select o.id from own o where o.question is not null and not o.changed order by o.id) as items,
           array(select o.question::text from own o where o.question is not null and not o.changed order by o.id) as questions";

pub(crate) async fn executes(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    agent: AgentId,
) -> Result<bool, StorageError> {
    let changing = tools::all()
        .iter()
        .filter(|tool| matches!(tool.effect, ToolEffect::Write | ToolEffect::External) && !tool.before_plan);
    let changing: Vec<String> = changing.map(|tool| tool.name.to_owned()).collect();
    let values = [
        account.into(),
        task.key().into(),
        agent.into(),
        TURNS_MAX.into(),
        changing.into(),
    ];
    let worked: Option<Worked> = tx.one("look for who works on a task", EXECUTES, values).await?;
    // A publisher may call its notification a question; only the question's own item has this id.
    let is_forged = |(item, question): (&String, &String)| {
        let own = QuestionId::parse(question)
            .ok()
            .map(|question| asked_id(question, agent));
        own.is_none_or(|own| NotificationId::parse(item).ok() != Some(own))
    };
    Ok(worked.is_some_and(|worked| worked.count > 0 || worked.items.iter().zip(&worked.questions).any(is_forged)))
}
