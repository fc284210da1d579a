//! Every query on questions. `storage::lifecycle::question` changes them.

use api::questions::Question;
use domain::{
    AccountId, AgentId, Audience, QuestionId, QuestionState,
    question::{Answerer, AskedOf},
};
use storage::{StorageError, Tx};

use crate::paging::{Column, Listing, Order};

macro_rules! columns {
    ($where:literal) => {
        concat!(
            "select q.account_id, q.id, q.kind, q.state, q.task_id,
                (select k.display_id from task k where k.account_id = q.account_id and k.id = q.task_id) as task,
                q.session_id, q.agent_id,
                (select g.slug from agent g where g.account_id = q.account_id and g.id = q.agent_id) as agent,
                q.turn_id, q.title, q.body, q.options, q.multiple, q.free_text, q.audience, q.tool, q.arguments,
                encode(q.arguments_hash, 'hex') as arguments_hash, q.stage, q.plan_revision, q.created_at, q.lapse_at,
                q.verdict, q.answer, q.ended_by_kind, q.ended_by_id, q.ended_by_name, q.ended_by_via, q.ended_at, q.reason,
                q.notification_id,
                case when q.state = 'open' then (
                    select count(*) from (
                        select from session s where s.account_id = q.account_id and s.gate_ref = q.id
                        order by s.gate_ref, s.account_id, s.id limit 1000) s) else 0 end as held_up
             from question q where q.account_id = $1",
            $where
        )
    };
}

/// Ids grow in the order of creation. Relies on the primary keys and on session_gated.
pub const LIST: Listing = Listing {
    rows: columns!(""),
    order: &[("id", Column::Uuid)],
    begins: Order::NewestFirst,
    wanted: Some(
        "($2::text is null or state = $2) and ($3::text is null or kind = $3) and ($4::text is null or task_id = $4)
         and ($5::text[] is null or audience && $5)",
    ),
    bytes: "octet_length(title) + octet_length(body) + coalesce(octet_length(arguments), 0) + coalesce(octet_length(answer::text), 0) + octet_length(options::text)",
    names: ("", ""),
};

pub const FIND: &str = columns!(" and q.id = $2");

pub async fn find(tx: &Tx, account: &AccountId, question: QuestionId) -> Result<Option<Question>, StorageError> {
    tx.one("read question", FIND, [account.into(), question.into()]).await
}

/// As the caller sees it.
pub fn shown(question: Question, caller: Answerer<'_>) -> Question {
    let audience: Vec<Audience> = question.audience.iter().filter_map(|text| text.parse().ok()).collect();
    let asked = AskedOf {
        audience: &audience,
        asker: question.agent_id.map(AgentId),
        executors: &[],
    };
    let is_open = question.state == QuestionState::Open.as_str();
    let may_answer = is_open && asked.may_answer(caller).is_ok();
    Question { may_answer, ..question }
}
