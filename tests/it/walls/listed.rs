//! Exceptions: statements and conditions that the trials treat differently, each with its reason. An entry that no
//! statement has fails the test.

use std::collections::BTreeSet;

use super::{not_shown::NOT_SHOWN, trials::FOR_NONE};

/// Statements of transactions that declare no account and see rows of several, by a part of their text, with the reason. Their
/// result without the condition depends on the rows that are due.
const OF_NO_ACCOUNT: &[(&str, &str)] = &[
    (
        "delete from outbox o using",
        "the relay deletes what it has published, by ids that it was given; its policy holds it to its service's rows",
    ),
    (
        "update outbox o set stored_at",
        "the relay notes what it has published, in the same way",
    ),
    (
        "update outbox o set claimed_at",
        "the relay takes what is due, of all accounts: that is its work",
    ),
    (
        "update outbox o set look_at",
        "the relay looks after what is not read, of all accounts: that is its work",
    ),
    (
        "select a.account_id, sum(w.bytes)::bigint as bytes",
        "a service sums up what waits of its own rows, of the accounts that it asks about",
    ),
];

/// Conditions whose removal changes nothing, by a part of the statement and the condition, with the reason. Rows that the walk meets by
/// chance, on a slow machine, may show that one matters.
const HELD_BY_OTHERS: &[(&str, &str, &str)] = &[
    (
        "as continues_kept",
        "c.account_id = page.account_id",
        "the id of a generation says its account; the two have it as old",
    ),
    (
        "as continues_kept",
        "o.account_id = page.account_id",
        "the id of a session says its account; none of the two has turns of another task, or from another answer, in it",
    ),
    (
        "as of_session, (select count(*) from branch",
        "s.account_id = $1",
        "the id of a session says its account; the resting account has no live branches",
    ),
    (
        "cross join lateral (select 1 from instruction_text i",
        "i.account_id = g.account_id",
        "a text's key is its hash: another account's text under that key is the same one",
    ),
    (
        "from (select headers, stored_at from outbox where account_id = $1",
        "account_id = $1",
        "the message's id says its account",
    ),
    (
        "delete from persona p where",
        "p.account_id = $1",
        "a trial has the versions still that the same transaction has removed, and so no persona without one",
    ),
    (
        "delete from persona p where",
        "v.account_id = p.account_id",
        "a trial has the versions still that the same transaction has removed, and so no persona without one",
    ),
    (
        "select 1 from api_key where account_id = $1 and user_id = $2 and revoked_at is null offset",
        "account_id = $1",
        "it tells whether a person has as many keys as they may; neither the account's nor the twin's has",
    ),
    (
        "select id from session where account_id = $1 and key = $2",
        "account_id = $1",
        "a session's key says its account",
    ),
    (
        "select o.id from session o where o.account_id = $1",
        "o.account_id = $1",
        "ids are looked up; what is taken by them is held by the account's condition where they are locked",
    ),
    (
        "select o.id from session o where o.account_id = $1",
        "n.account_id = any (array[o.account_id])",
        "ids are looked up; what is taken by them is held by the account's condition where they are locked",
    ),
    (
        "n.id in (select $2 || ':' || agent.id::text from agent",
        "agent.account_id = $1",
        "ids are looked up within; `n.account_id` holds what is taken by them",
    ),
    (
        "with before as materialized",
        "t.account_id = any (array[w.account_id])",
        "neither what is due nor its twin has one before it that was emptied",
    ),
    (
        "with before as materialized",
        "o.account_id = t.account_id",
        "neither what is due nor its twin has one before it that was emptied",
    ),
    (
        "with before as materialized",
        "s.account_id = any (array[b.account_id])",
        "neither what is due nor its twin has one before it that was emptied",
    ),
    (
        "delete from session d using gone g",
        "o.account_id = t.account_id",
        "what it takes was emptied by its own transaction, and nobody else sees that yet",
    ),
    (
        "select a.id from (select n.id, n.slug from agent n where n.account_id = $1 order by n.id desc limit 20000) a",
        "n.account_id = $1",
        "ids are looked up within; the rows of the list are the account's",
    ),
    (
        "insert into accepted_notification",
        "n.account_id = $1",
        "it tells whether the publisher may follow its notification up; the twin has one by the same id, or none, too",
    ),
    (
        "and t.id = o.active_turn_id and t.task_id = $2",
        "t.account_id = any (array[o.account_id])",
        "a turn is looked up by its session; `o.account_id` holds what is found by it",
    ),
    (
        "and s.active_turn_id = t.id and s.stop_turn_id is distinct from t.id",
        "s.account_id = t.account_id",
        "a session is looked up by its turn; `t.account_id` holds what is found by it",
    ),
    (
        "insert into accepted_notification",
        "agent.account_id = $1",
        "ids are looked up within; `n.account_id` holds what is found by them",
    ),
    (
        "offset 0) as is_undecided",
        "q.account_id = any (array[c.account_id])",
        "it tells whether the question of a call is open, by the call's id, which says its session and turn",
    ),
    (
        "select w.account_id, w.id as session_id, p.id as plan, f.position",
        "a.account_id = n.account_id",
        "it tells whether a question is there, by an id or a task that the notification's account has, too",
    ),
    (
        "select w.account_id, w.id as session_id, p.id as plan, f.position",
        "o.account_id = n.account_id",
        "it tells whether a question is there, by an id or a task that the notification's account has, too",
    ),
    (
        "as task, k.display_id, k.status, k.blocked_owner",
        "w.account_id = g.account_id",
        "ids of agents, sessions and turns are of one account: the twin has the same ones, and what is found by them is the same",
    ),
    (
        "as task, k.display_id, k.status, k.blocked_owner",
        "s.account_id = k.account_id",
        "ids of agents, sessions and turns are of one account: the twin has the same ones, and what is found by them is the same",
    ),
    (
        "as task, k.display_id, k.status, k.blocked_owner",
        "s.account_id = a.account_id",
        "ids of agents, sessions and turns are of one account: the twin has the same ones, and what is found by them is the same",
    ),
    (
        "as task, k.display_id, k.status, k.blocked_owner",
        "a.account_id = k.account_id",
        "ids of agents, sessions and turns are of one account: the twin has the same ones, and what is found by them is the same",
    ),
    (
        "insert into recovery as r",
        "s.account_id = a.account_id",
        "a hash of ids of agents, sessions and turns are of one account: the twin has the same ones, and what is found by them is the same",
    ),
    (
        "insert into recovery as r",
        "a.account_id = k.account_id",
        "a hash of ids of agents, sessions and turns are of one account: the twin has the same ones, and what is found by them is the same",
    ),
    (
        "insert into recovery as r",
        "t.account_id = e.account_id",
        "a hash of ids of agents, sessions and turns are of one account: the twin has the same ones, and what is found by them is the same",
    ),
    (
        "insert into recovery as r",
        "n.account_id = k.account_id",
        "it tells of what type or in which state a notification is, and the twin's by the same id is alike",
    ),
    (
        "insert into recovery as r",
        "n.account_id = r.account_id",
        "it tells of what type or in which state a notification is, and the twin's by the same id is alike",
    ),
    (
        "from (select o.account_id, o.id, k.display_id, k.status, sha256",
        "s.account_id = a.account_id",
        "a hash of ids of agents, sessions and turns are of one account: the twin has the same ones, and what is found by them is the same",
    ),
    (
        "from (select o.account_id, o.id, k.display_id, k.status, sha256",
        "a.account_id = k.account_id",
        "a hash of ids of agents, sessions and turns are of one account: the twin has the same ones, and what is found by them is the same",
    ),
    (
        "from (select o.account_id, o.id, k.display_id, k.status, sha256",
        "t.account_id = e.account_id",
        "a hash of ids of agents, sessions and turns are of one account: the twin has the same ones, and what is found by them is the same",
    ),
    (
        "from (select o.account_id, o.id, k.display_id, k.status, sha256",
        "k.account_id = o.account_id",
        "a hash of ids of agents, sessions and turns are of one account: the twin has the same ones, and what is found by them is the same",
    ),
    (
        "select true from task k cross join lateral",
        "s.account_id = k.account_id",
        "it tells whether a turn of an assignee has begun since the review was opened: neither the walk nor its twin has such a turn",
    ),
    (
        "select true from task k cross join lateral",
        "s.account_id = a.account_id",
        "it tells whether a turn of an assignee has begun since the review was opened: neither the walk nor its twin has such a turn",
    ),
    (
        "select true from task k cross join lateral",
        "a.account_id = k.account_id",
        "it tells whether a turn of an assignee has begun since the review was opened: neither the walk nor its twin has such a turn",
    ),
    (
        "select true from task k cross join lateral",
        "t.account_id = e.account_id",
        "it tells whether a turn of an assignee has begun since the review was opened: neither the walk nor its twin has such a turn",
    ),
    (
        "select true from task k cross join lateral",
        "k.account_id = $1",
        "it tells whether a turn of an assignee has begun since the review was opened: neither the walk nor its twin has such a turn",
    ),
    (
        "with own as ( select n.id, n.kind",
        "c.account_id = t.account_id",
        "it tells whether a tool has changed something in a turn, and the twin's calls by the same turn are alike",
    ),
    (
        "select f.id as task, s.phase, s.active_turn_id as active_turn",
        "s.account_id = g.account_id",
        "no task of the walk is worked on in its agent's one session for all tasks",
    ),
    (
        "select f.id as task, s.phase, s.active_turn_id as active_turn",
        "t.account_id = s.account_id",
        "no task of the walk is worked on in its agent's one session for all tasks",
    ),
    (
        "select f.id as task, s.phase, s.active_turn_id as active_turn",
        "n.account_id = s.account_id",
        "no task of the walk is worked on in its agent's one session for all tasks",
    ),
    (
        "select f.id as task, s.phase, s.active_turn_id as active_turn",
        "g.account_id = f.account_id",
        "no task of the walk is worked on in its agent's one session for all tasks",
    ),
    (
        "select (select count(*) from task_assignee ta",
        "ta.account_id = $1",
        "ids of agents, sessions and turns are of one account: the twin has the same ones, and what is found by them is the same",
    ),
    (
        "select (select count(*) from task_assignee ta",
        "s.account_id = $1",
        "ids of agents, sessions and turns are of one account: the twin has the same ones, and what is found by them is the same",
    ),
    (
        "delete from tool_policy p using (",
        "s.account_id = any (array[w.account_id])",
        "it tells whether what the rule is for is there, by ids of one account",
    ),
    (
        "delete from tool_policy p using (",
        "g.account_id = any (array[w.account_id])",
        "it tells whether what the rule is for is there, by ids of one account",
    ),
    (
        "delete from tool_policy p using (",
        "k.account_id = any (array[w.account_id])",
        "it tells whether what the rule is for is there, by ids of one account",
    ),
    (
        "select true from ( (select from question q where",
        "q.account_id = $1",
        "it tells whether a task has one, and the twin of the walk's task has none either",
    ),
    (
        "select true from ( (select from question q where",
        "w.account_id = $1",
        "it tells whether a task has one, and the twin of the walk's task has none either",
    ),
    (
        "select b.account_id, b.session_id, b.id as branch_id",
        "u.account_id = o.account_id",
        "a message is one's own or another's by the session of its turn: ids of one account, and the twin's are alike",
    ),
    (
        "select b.account_id, b.session_id, b.id as branch_id",
        "o.account_id = m.account_id",
        "a message is one's own or another's by the session of its turn: ids of one account, and the twin's are alike",
    ),
    (
        "select n.account_id, n.session_id, n.id, n.kind",
        "o.account_id = m.account_id",
        "a message is one's own or another's by the session of its turn: ids of one account, and the twin's are alike",
    ),
    (
        "select w.account_id, w.id as session_id, p.id as plan, f.position",
        "b.account_id = n.account_id",
        "it tells whether a question is there, by an id or a task that the notification's account has, too",
    ),
    (
        "select n.id from (select $1::text as account_id, f.id from unnest",
        "n.account_id = f.account_id",
        "it tells which ids are there, and the twin has the same ones",
    ),
    (
        "s.queued > 0 as queued, (select count(*) from",
        "b.account_id = s.account_id",
        "neither the session nor its twin has one",
    ),
    (
        "s.queued > 0 as queued, (select count(*) from",
        "q.account_id = s.account_id",
        "neither the session nor its twin has one",
    ),
    (
        "s.queued > 0 as queued, (select count(*) from",
        "t.account_id = s.account_id",
        "neither the session nor its twin has one",
    ),
    (
        "with held as ( update hold h set scope_id = $3",
        "h.account_id = $1",
        "neither the session nor its twin has one",
    ),
    (
        "with held as ( update hold h set scope_id = $3",
        "p.account_id = $1",
        "neither the session nor its twin has one",
    ),
    (
        "select o.id from session s cross join lateral ( select o.id from session o",
        "o.account_id = s.account_id",
        "ids are looked up; what is ended by them is held by the account's condition where they are locked",
    ),
    (
        "with lanes as materialized",
        "p.account_id = t.account_id",
        "it tells a fact of a row that is found by an id of one account, and the twin's row is alike",
    ),
    (
        "with lanes as materialized",
        "f.account_id = b.account_id",
        "it tells a fact of a row that is found by an id of one account, and the twin's row is alike",
    ),
    (
        "and s.kind = 'replay' and s.origin_id is not null and s.closed_at is null",
        "s.account_id = $1",
        "neither of the two has a replay in progress",
    ),
    (
        "select a.artifact_bytes, k.display_id as task",
        "o.account_id = a.id",
        "it tells a fact of a row that is found by an id of one account, and the twin's row is alike",
    ),
    (
        "select x.what, x.id, x.number",
        "a.account_id = $1",
        "no task of the two was updated",
    ),
    (
        "delete from artifact_content c",
        "c.account_id = $1",
        "the artifact is removed in the same transaction: another connection sees it as one that still has the content",
    ),
    (
        "delete from artifact_content c",
        "a.account_id = c.account_id",
        "the artifact is removed in the same transaction: another connection sees it as one that still has the content",
    ),
    (
        "as continues_kept",
        "k.account_id = $1",
        "a page begins before the task's beginning, and the twin's task is as old",
    ),
    (
        "select k.title, k.description, k.status, k.updated_at",
        "l.account_id = t.account_id",
        "it tells a fact of a row that is found by an id of one account, and the twin's row is alike",
    ),
    (
        "update tool_call set state = 'running', runner = $3, due_at",
        "account_id = $1",
        "the call was recorded in the same transaction, which another connection does not see",
    ),
    (
        "select w.place, case when w.kind = 'answer'",
        "b.account_id = w.account_id",
        "it tells a fact of a row that is found by an id of one account, and the twin's row is alike",
    ),
    (
        "select w.account_id, w.id as session_id, t.profile_hash",
        "t.account_id = w.account_id",
        "it tells a fact of a row that is found by an id of one account, and the twin's row is alike",
    ),
    (
        "select x.what, x.id, x.number",
        "b.account_id = n.account_id",
        "it tells a fact of a row that is found by an id of one account, and the twin's row is alike",
    ),
    (
        "select c.id, c.turn_id, c.ordinal, 0::bigint as behind",
        "t.account_id = $1",
        "no turn whose calls the walk lists has any that no tool was asked for",
    ),
    (
        "coalesce(notes, '[]') as notes, (select p.manifest_packed from turn p",
        "p.account_id = t.account_id",
        "it tells a fact of a row that is found by an id of one account, and the twin's row is alike",
    ),
    (
        "select c.what, c.turn_id, c.session_id, c.call_id",
        "t.account_id = $1",
        "no replay of the walk has calls",
    ),
    (
        "select c.what, c.turn_id, c.session_id, c.call_id",
        "c.account_id = $1",
        "no replay of the walk has calls",
    ),
    (
        "coalesce(notes, '[]') as notes, (select p.manifest_packed from turn p",
        "p.account_id = turn.account_id",
        "it tells a fact of a row that is found by an id of one account, and the twin's row is alike",
    ),
    (
        "select c.what, c.turn_id, c.session_id, c.call_id",
        "f.account_id = $1",
        "it tells the tasks of a call's files, by ids of one account, and the twin's files are of the same tasks",
    ),
    (
        "insert into outbound_delivery (account_id, id, kind, destination_id, type, state, next_at) select $1, $2, 'email', $3, 'sign_in'",
        "d.account_id = $1",
        "sign-in links wait in the operator's place, which has no twin",
    ),
];

/// The entries for a condition.
fn entries_of(sql: &str, condition: &str) -> impl Iterator<Item = [&'static str; 2]> {
    let held = HELD_BY_OTHERS.iter().map(|(part, condition, _)| [*part, *condition]);
    held.chain(not_shown())
        .filter(move |[part, listed]| condition == *listed && sql.contains(part))
}

pub(crate) fn is_held_by_others(sql: &str, condition: &str) -> bool {
    entries_of(sql, condition).next().is_some()
}

fn not_shown() -> impl Iterator<Item = [&'static str; 2]> {
    let each = |(part, conditions): &(&'static str, &'static [&'static str])| {
        let part = *part;
        conditions.iter().map(move |condition| [part, *condition])
    };
    NOT_SHOWN.iter().flat_map(each)
}

/// Number of queries of the mapper in each file. A new query must be executed by the walk.
pub(crate) const MAPPED: &[(&str, usize)] = &[
    ("services/orchestrator/src/dead_letters/store.rs", 1),
    ("services/orchestrator/src/tasks/store.rs", 2),
    ("services/orchestrator/src/turns/store.rs", 1),
    ("shared/storage/src/accepted.rs", 1),
];

/// The entries that were used.
#[derive(Default)]
pub(crate) struct Listed(BTreeSet<[&'static str; 2]>);

impl Listed {
    pub(crate) fn of_no_account(&mut self, role: &str, sql: &str) -> bool {
        let mut listed = OF_NO_ACCOUNT.iter();
        let found = listed.find(|(part, _)| role.ends_with(FOR_NONE) && sql.contains(part));
        found.is_some_and(|(part, _)| self.used([*part, ""]))
    }

    pub(crate) fn held_by_others(&mut self, sql: &str, condition: &str) -> bool {
        let entries: Vec<_> = entries_of(sql, condition).collect();
        self.0.extend(&entries);
        !entries.is_empty()
    }

    fn used(&mut self, entry: [&'static str; 2]) -> bool {
        self.0.insert(entry);
        true
    }

    pub(crate) fn rest(&self) -> Vec<String> {
        let none = OF_NO_ACCOUNT.iter().map(|(part, _)| [*part, ""]);
        let others = HELD_BY_OTHERS.iter().map(|(part, condition, _)| [*part, *condition]);
        none.chain(others)
            .chain(not_shown())
            .filter(|entry| !self.0.contains(entry))
            .map(|[part, condition]| format!("listed, and no statement has it: {part} {condition}"))
            .collect()
    }
}
