//! Reads what replays run again: the source turn with its texts, its recipe and its tool calls.

use std::collections::HashMap;

use contracts::tools::submit_plan;
use domain::{AccountId, BranchId, Matched, ReplayId, ReplaySpec, SessionId, TaskId, TurnContext, TurnId};
use prompt::{NOT_RECORDED, RESULT_MISSING};
use sea_orm::{FromQueryResult, TryGetableFromJson};
use serde::Deserialize;
use serde_json::Value;
use storage::{StorageError, Tx, breaker::Seen, statement::pairs};

use super::{
    SessionName,
    claim::{OVER_HTTP, ToolResult},
    journal::{Call, Journal, NO_PLACE},
};

/// A replay, for the turns of its session.
#[derive(Clone, Debug, FromQueryResult)]
pub struct ReplayStart {
    pub account_id: AccountId,
    pub session_id: SessionId,
    #[sea_orm(from_alias = "replay_id")]
    pub id: ReplayId,
    pub spec: ReplaySpec,
    pub source_turn_id: TurnId,
    /// The session of the source turn, the generation that it was rotated from, and the branch that it ran.
    pub source_session_id: SessionId,
    pub continues_id: Option<SessionId>,
    pub branch_id: Option<BranchId>,
    /// The key of its task.
    pub task_id: Option<TaskId>,
    pub number: i64,
    pub provider: String,
    pub profile_version: String,
    pub instructions: String,
    pub input: String,
    /// Packed.
    pub manifest: Vec<u8>,
    pub tools: Vec<String>,
    pub context: TurnContext,
    pub journal: Journal,
    /// The breaker of the provider that is asked.
    pub breaker: Option<Seen>,
    results: Option<Results>,
}

#[derive(Clone, Debug, Deserialize)]
struct Results(Vec<Recorded>);

impl TryGetableFromJson for Results {}

/// The result of a call that was passed on.
#[derive(Clone, Debug, Deserialize)]
struct Recorded {
    ordinal: i32,
    result: String,
    /// It ended its turn.
    ends: bool,
}

impl ReplayStart {
    pub fn name(&self) -> SessionName {
        (self.account_id.clone(), self.session_id)
    }

    /// Answers the calls of a round of a replay whose turn has this journal so far. None is passed on.
    pub fn answer(&self, journal: &Journal, calls: &mut [Call]) {
        let matched = self.matched(journal.calls().chain(calls.iter()));
        let recorded: Vec<&Call> = self.journal.calls().collect();
        let own = matched.into_iter().skip(journal.calls().count());
        for (call, (word, at)) in calls.iter_mut().zip(own) {
            call.ordinal = NO_PLACE;
            call.matched = Some(word);
            let answer = at.map_or(NOT_RECORDED, |at| self.answer_of(recorded[at]));
            call.answered.get_or_insert_with(|| answer.to_owned());
        }
    }

    /// The arguments of a call in the last round that ended the source turn, and so ends this one. As a result of the turn.
    pub fn ended_by(&self, journal: &Journal) -> Option<ToolResult> {
        let before = journal.calls().count() - journal.last()?.calls.len();
        let recorded: Vec<&Call> = self.journal.calls().collect();
        let ends = |at: usize| self.recorded(recorded[at]).is_some_and(|recorded| recorded.ends);
        let matched = self.matched(journal.calls());
        let mut last = journal.calls().zip(matched).skip(before);
        last.find_map(|(call, (_, at))| {
            at.is_some_and(ends).then(|| ToolResult {
                ordinal: OVER_HTTP,
                result: String::new(),
                ends_with: Some(call.arguments.clone()),
            })
        })
    }

    fn matched<'a>(&self, asked: impl Iterator<Item = &'a Call>) -> Vec<(Matched, Option<usize>)> {
        let asked: Vec<(&str, &str)> = asked.map(|call| (&*call.name, &*call.arguments)).collect();
        let recorded = self.journal.calls().map(|call| (&*call.name, &*call.arguments));
        matches(&asked, &recorded.collect::<Vec<(&str, &str)>>())
    }

    fn recorded(&self, call: &Call) -> Option<&Recorded> {
        let results = self.results.as_ref().map_or(&[][..], |results| &results.0);
        let is_its = |recorded: &&Recorded| call.answered.is_none() && recorded.ordinal == call.ordinal;
        results.iter().find(is_its)
    }

    /// What the source turn's model was answered.
    fn answer_of<'a>(&'a self, call: &'a Call) -> &'a str {
        let recorded = self.recorded(call).map(|recorded| recorded.result.as_str());
        call.answered.as_deref().or(recorded).unwrap_or(RESULT_MISSING)
    }
}

/// For each call of a replay, in their order, how it is answered and the place of the recorded call that answers it. A recorded call
/// answers once. Calls are names and arguments as JSON.
fn matches(asked: &[(&str, &str)], recorded: &[(&str, &str)]) -> Vec<(Matched, Option<usize>)> {
    let read = |(name, arguments): &(&str, &str)| {
        let value = serde_json::from_str(arguments).unwrap_or_else(|_| Value::String((*arguments).to_owned()));
        ((*name).to_owned(), value)
    };
    let mut left: Vec<Option<(String, Value)>> = recorded.iter().map(|call| Some(read(call))).collect();
    let mut found = Vec::with_capacity(asked.len());
    for (place, call) in asked.iter().enumerate() {
        let call = Some(read(call));
        let at = match left.get(place) {
            Some(recorded) if *recorded == call => Some(place),
            _ => left.iter().position(|recorded| *recorded == call),
        };
        if let Some(at) = at {
            left[at] = None;
        }
        found.push(match at {
            Some(at) if at == place => (Matched::Exact, Some(at)),
            Some(at) => (Matched::Moved, Some(at)),
            None => (Matched::None, None),
        });
    }
    found
}

/// Relies on primary keys, and on tool_call_turn, whose order is requested.
pub const REPLAYS_LOAD: &str = concat!(
    "
    select r.account_id, r.session_id, r.id as replay_id, r.spec, r.source_turn_id, t.session_id as source_session_id, s.continues_id,
           case s.kind when 'branch' then s.origin_id end as branch_id, t.task_id, t.number, t.provider, t.profile_version,
           i.body as instructions, t.input, t.manifest_packed as manifest, coalesce(t.tools, '{}') as tools, t.context, t.journal, ",
    storage::breaker_of!("$4", "coalesce(r.spec ->> 'provider', t.provider)"),
    " as breaker,
           (select json_agg(json_build_object('ordinal', c.ordinal, 'result', coalesce(c.result, ''),
                                              'ends', c.name = $3 and c.state = 'finished') order by c.ordinal)
            from (select * from tool_call c where c.account_id = t.account_id and c.turn_id = t.id order by c.ordinal) c
            where c.ordinal > 0 and c.finished_at is not null) as results
    from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    cross join lateral (select * from replay r where r.account_id = w.account_id and r.id = w.id offset 0) r
    cross join lateral (select * from turn t where t.account_id = r.account_id and t.id = r.source_turn_id offset 0) t
    cross join lateral (select * from session s where s.account_id = t.account_id and s.id = t.session_id offset 0) s
    cross join lateral (select * from instruction_text i where i.account_id = t.account_id and i.hash = t.profile_hash offset 0) i
    where t.manifest_packed is not null and t.context is not null"
);

/// The replays of these sessions. One is missing if its source turn is gone. `keys_json`: the keys of breakers by the names of
/// providers.
pub async fn replays_load(
    tx: &Tx,
    replays: &[(AccountId, ReplayId)],
    keys_json: &str,
) -> Result<HashMap<SessionName, ReplayStart>, StorageError> {
    if replays.is_empty() {
        return Ok(HashMap::new());
    }
    let (accounts, ids) = pairs(replays);
    let values = [accounts.into(), ids.into(), submit_plan::NAME.into(), keys_json.into()];
    let rows: Vec<ReplayStart> = tx.rows("load what replays run again", REPLAYS_LOAD, values).await?;
    Ok(rows.into_iter().map(|row| (row.name(), row)).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::store::journal::Round;

    fn call(ordinal: i32, name: &str, answered: Option<&str>) -> Call {
        Call {
            call_id: format!("c-{ordinal}"),
            ordinal,
            name: name.to_owned(),
            arguments: "{}".to_owned(),
            answered: answered.map(str::to_owned),
            matched: None,
        }
    }

    fn journal(rounds: Vec<Vec<Call>>) -> Journal {
        let round = |calls| Round {
            response_id: None,
            text: String::new(),
            reasoning: Vec::new(),
            calls,
            usage: None,
        };
        Journal {
            rounds: rounds.into_iter().map(round).collect(),
        }
    }

    /// Of a first turn with two rounds of calls.
    pub(crate) fn replay() -> ReplayStart {
        let recorded = |ordinal, result: &str, ends| Recorded {
            ordinal,
            result: result.to_owned(),
            ends,
        };
        ReplayStart {
            account_id: AccountId::parse("acme").unwrap(),
            session_id: SessionId(uuid::Uuid::nil()),
            id: ReplayId(uuid::Uuid::nil()),
            spec: ReplaySpec::default(),
            source_turn_id: TurnId(uuid::Uuid::nil()),
            source_session_id: SessionId(uuid::Uuid::nil()),
            continues_id: None,
            branch_id: None,
            task_id: None,
            number: 1,
            provider: "default".to_owned(),
            profile_version: "4".to_owned(),
            instructions: String::new(),
            input: String::new(),
            manifest: Vec::new(),
            tools: Vec::new(),
            context: serde_json::from_str(
                r#"{"asked": "continue", "used": "continue", "reason": "first", "thread": 1}"#,
            )
            .unwrap(),
            journal: journal(vec![
                vec![call(1, "a", None), call(NO_PLACE, "big", Some("too large"))],
                vec![call(2, "late", None), call(3, "submit_plan", None)],
            ]),
            breaker: None,
            results: Some(Results(vec![recorded(1, "refused", false), recorded(3, "{}", true)])),
        }
    }

    #[test]
    fn a_call_is_answered_by_the_record_once() {
        let check = |asked: &[(&str, &str)], recorded: &[(&str, &str)], expected: &[(&str, Option<usize>)]| {
            let found = matches(asked, recorded);
            let found: Vec<(&str, Option<usize>)> = found.iter().map(|(word, at)| (word.as_str(), *at)).collect();
            assert_eq!(found, expected, "{asked:?} {recorded:?}");
        };
        let recorded = [("a", r#"{"x": 1, "y": 2}"#), ("b", "{}"), ("b", "{}"), ("a", "broken")];
        check(
            &recorded,
            &recorded,
            &[
                ("exact", Some(0)),
                ("exact", Some(1)),
                ("exact", Some(2)),
                ("exact", Some(3)),
            ],
        );
        // JSON is compared, not its text.
        check(&[("a", r#"{"y":2,"x":1}"#)], &recorded, &[("exact", Some(0))]);
        // The other name, other arguments, and one call more than were recorded.
        check(
            &[("b", r#"{"x": 1, "y": 2}"#), ("a", "{}")],
            &recorded,
            &[("none", None), ("none", None)],
        );
        check(
            &[("b", "{}"), ("b", "{}"), ("b", "{}"), ("a", "broken")],
            &recorded,
            &[
                ("moved", Some(1)),
                ("moved", Some(2)),
                ("none", None),
                ("exact", Some(3)),
            ],
        );
        check(&[("a", "{}")], &[], &[("none", None)]);
        check(&[], &recorded, &[]);
    }

    #[test]
    fn calls_are_answered_as_the_source_turn_s_were() {
        let replay = replay();
        let mut first = vec![call(NO_PLACE, "a", None), call(NO_PLACE, "late", None)];
        replay.answer(&journal(Vec::new()), &mut first);
        let mut second = vec![
            call(NO_PLACE, "a", None),
            call(NO_PLACE, "big", Some("larger still")),
            call(NO_PLACE, "submit_plan", None),
        ];
        let before = journal(vec![first.clone()]);
        assert_eq!(replay.ended_by(&before), None);
        replay.answer(&before, &mut second);
        let all: Vec<(Matched, &str)> = first
            .iter()
            .chain(&second)
            .map(|call| (call.matched.unwrap(), call.answered.as_deref().unwrap()))
            .collect();
        let expected = [
            (Matched::Exact, "refused"),
            // Its result did not arrive then.
            (Matched::Moved, RESULT_MISSING),
            (Matched::None, NOT_RECORDED),
            (Matched::Moved, "larger still"),
            (Matched::Moved, "{}"),
        ];
        assert_eq!(all, expected);
        let ended = replay.ended_by(&journal(vec![first, second])).unwrap();
        assert_eq!((ended.ordinal, ended.ends_with.as_deref()), (OVER_HTTP, Some("{}")));
    }
}
