//! Tool policies: which tools an agent sees, and whether a call to one runs, is refused or is asked about. A policy that says
//! nothing of the one or the other leaves it to the next wider one.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

use crate::{AgentId, Audience, SessionId, TaskId, ToolPolicyId, string_enum::string_enum};

string_enum! {
    /// Where a policy holds, from wide to narrow.
    PolicyScope {
        Account = "account",
        Agent = "agent",
        Task = "task",
        /// An agent on a task: an approval that is remembered.
        TaskAgent = "task_agent",
        Session = "session",
    }
}

string_enum! {
    /// What becomes of a call.
    PolicyVerdict {
        Allow = "allow",
        /// It waits until a person has approved it.
        Ask = "ask",
        Deny = "deny",
    }
}

/// A policy, as far as it decides.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "columns", derive(sea_orm::FromQueryResult))]
pub struct ToolPolicy {
    pub id: ToolPolicyId,
    pub scope_kind: PolicyScope,
    /// As it is compared: a task's key, an id.
    pub scope_id: String,
    /// A tool's name, `*`, or the beginning of names and `*`.
    pub tool: String,
    pub visible: Option<bool>,
    pub verdict: Option<PolicyVerdict>,
    /// Who is asked. None: the account's members. With `allow`, it is an approval that those who were asked have made last.
    pub audience: Option<Vec<String>>,
    /// It holds for a tool with this schema only.
    pub schema_hash: Option<Vec<u8>>,
}

/// A tool in the hands of an agent.
#[derive(Clone, Copy, Debug)]
pub struct ToolUse<'a> {
    pub session: SessionId,
    pub agent: AgentId,
    pub task: Option<&'a TaskId>,
    pub tool: &'a str,
    pub schema_hash: &'a [u8],
}

/// SHA-256 of a call as it is shown to whoever approves it: another call needs another approval.
pub fn arguments_hash(tool: &str, arguments: &str) -> [u8; 32] {
    Sha256::digest(format!("{tool}\n{arguments}")).into()
}

/// The id of [`PolicyScope::TaskAgent`], as it is compared.
pub fn task_agent(task: &TaskId, agent: AgentId) -> String {
    format!("{}/{agent}", task.key())
}

impl ToolPolicy {
    pub fn covers(&self, used: ToolUse<'_>) -> bool {
        let is = |id: Option<String>| id.is_some_and(|id| id == self.scope_id);
        let holds = match self.scope_kind {
            PolicyScope::Account => true,
            PolicyScope::Agent => is(Some(used.agent.to_string())),
            PolicyScope::Task => is(used.task.map(|task| task.key().to_string())),
            PolicyScope::TaskAgent => is(used.task.map(|task| task_agent(task, used.agent))),
            PolicyScope::Session => is(Some(used.session.to_string())),
        };
        let names = match self.tool.strip_suffix('*') {
            Some(beginning) => used.tool.starts_with(beginning),
            None => used.tool == self.tool,
        };
        let hash = self.schema_hash.as_deref();
        holds && names && hash.is_none_or(|hash| hash == used.schema_hash)
    }

    fn is_approval(&self) -> bool {
        self.verdict == Some(PolicyVerdict::Allow) && self.audience.is_some()
    }

    fn asked(&self) -> BTreeSet<String> {
        match &self.audience {
            Some(audience) => audience.iter().cloned().collect(),
            None => BTreeSet::from([Audience::DEFAULT.to_string()]),
        }
    }

    /// The greatest is the narrowest: first by scope, then by the tools that it names.
    fn narrowness(&self) -> (PolicyScope, bool, usize) {
        (self.scope_kind, !self.tool.ends_with('*'), self.tool.len())
    }
}

fn narrowest<'p, T>(
    policies: &'p [ToolPolicy],
    used: ToolUse<'_>,
    says: impl Fn(&ToolPolicy) -> Option<T>,
) -> Option<(&'p ToolPolicy, T)> {
    let covering = policies.iter().filter(|policy| policy.covers(used));
    let saying = covering.filter_map(|policy| says(policy).map(|said| (policy, said)));
    saying.max_by_key(|(policy, _)| policy.narrowness())
}

/// Whether the agent sees the tool: as the narrowest policy says. `otherwise`: no policy says it.
pub fn visible(policies: &[ToolPolicy], used: ToolUse<'_>, otherwise: bool) -> bool {
    narrowest(policies, used, |policy| policy.visible).map_or(otherwise, |(_, visible)| visible)
}

/// What becomes of a call to the tool, and the policy that says it: `deny` wherever it stands; else as the narrowest policy says. An
/// approval that was made to last answers the policy that asks the same people, and no other. `otherwise`: no policy says it.
pub fn verdict<'p>(
    policies: &'p [ToolPolicy],
    used: ToolUse<'_>,
    otherwise: PolicyVerdict,
) -> (PolicyVerdict, Option<&'p ToolPolicy>) {
    let deny = |policy: &ToolPolicy| policy.verdict.filter(|verdict| *verdict == PolicyVerdict::Deny);
    let rule = |policy: &ToolPolicy| policy.verdict.filter(|_| !policy.is_approval());
    let said = narrowest(policies, used, deny).or_else(|| narrowest(policies, used, rule));
    let Some((policy, verdict)) = said else {
        return (otherwise, None);
    };
    let answers = |approval: &&ToolPolicy| approval.is_approval() && approval.asked() == policy.asked();
    let mut approvals = policies.iter().filter(|policy| policy.covers(used)).filter(answers);
    match approvals.next().filter(|_| verdict == PolicyVerdict::Ask) {
        Some(approval) => (PolicyVerdict::Allow, Some(approval)),
        None => (verdict, Some(policy)),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const SESSION: SessionId = SessionId(Uuid::from_u128(7));
    const AGENT: AgentId = AgentId(Uuid::from_u128(8));

    fn policy(scope_kind: PolicyScope, scope_id: impl ToString, tool: &str) -> ToolPolicy {
        ToolPolicy {
            id: ToolPolicyId(Uuid::nil()),
            scope_kind,
            scope_id: scope_id.to_string(),
            tool: tool.to_owned(),
            visible: None,
            verdict: None,
            audience: None,
            schema_hash: None,
        }
    }

    fn used<'a>(task: Option<&'a TaskId>, tool: &'a str) -> ToolUse<'a> {
        ToolUse {
            session: SESSION,
            agent: AGENT,
            task,
            tool,
            schema_hash: b"schema",
        }
    }

    #[test]
    fn a_policy_covers_its_scope_and_its_tools() {
        use PolicyScope::{Account, Agent, Session, Task, TaskAgent};
        let task = TaskId::parse("PROJ-7").unwrap();
        let check = |kind, id: String, tool: &str, expected: bool, without_task: bool| {
            let policy = policy(kind, &id, tool);
            assert_eq!(policy.covers(used(Some(&task), "task_status")), expected, "{policy:?}");
            assert_eq!(policy.covers(used(None, "task_status")), without_task, "{policy:?}");
        };
        check(Account, "acme".to_owned(), "*", true, true);
        check(Account, "acme".to_owned(), "task_*", true, true);
        check(Account, "acme".to_owned(), "task_status", true, true);
        check(Account, "acme".to_owned(), "task_status*", true, true);
        check(Account, "acme".to_owned(), "task", false, false);
        check(Account, "acme".to_owned(), "task_message", false, false);
        check(Account, "acme".to_owned(), "status*", false, false);
        check(Agent, AGENT.to_string(), "*", true, true);
        check(Agent, SESSION.to_string(), "*", false, false);
        check(Task, "proj-7".to_owned(), "*", true, false);
        check(Task, "proj-77".to_owned(), "*", false, false);
        check(TaskAgent, format!("proj-7/{AGENT}"), "*", true, false);
        check(TaskAgent, format!("proj-7/{SESSION}"), "*", false, false);
        check(Session, SESSION.to_string(), "*", true, true);
        check(Session, AGENT.to_string(), "*", false, false);

        let of_schema = |hash: &[u8]| ToolPolicy {
            schema_hash: Some(hash.to_vec()),
            ..policy(Account, "acme", "*")
        };
        assert!(of_schema(b"schema").covers(used(None, "t")));
        assert!(!of_schema(b"another").covers(used(None, "t")));
    }

    /// The tables below: policies as scope, tool and what they say.
    fn policies<T: Copy>(
        given: &[(PolicyScope, &str, T)],
        says: impl Fn(ToolPolicy, T) -> ToolPolicy,
    ) -> Vec<ToolPolicy> {
        let id = |kind| match kind {
            PolicyScope::Account => "acme".to_owned(),
            PolicyScope::Agent => AGENT.to_string(),
            PolicyScope::Task => "proj-7".to_owned(),
            PolicyScope::TaskAgent => format!("proj-7/{AGENT}"),
            PolicyScope::Session => SESSION.to_string(),
        };
        let one = |&(kind, tool, said): &(PolicyScope, &str, T)| says(policy(kind, id(kind), tool), said);
        given.iter().map(one).collect()
    }

    /// In the order given and reversed: rows come in no order.
    fn both_ways(given: &[ToolPolicy], check: impl Fn(&[ToolPolicy])) {
        check(given);
        check(&given.iter().rev().cloned().collect::<Vec<_>>());
    }

    #[test]
    fn deny_wins_then_the_narrowest() {
        use PolicyScope::{Account, Agent, Session, Task, TaskAgent};
        use PolicyVerdict::{Allow, Ask, Deny};
        let task = TaskId::parse("PROJ-7").unwrap();
        let check = |given: &[(PolicyScope, &str, PolicyVerdict)], expected: PolicyVerdict| {
            let given = policies(given, |policy, verdict| ToolPolicy {
                verdict: Some(verdict),
                ..policy
            });
            both_ways(&given, |given| {
                let (ruled, by) = verdict(given, used(Some(&task), "task_status"), Allow);
                assert_eq!(ruled, expected, "{given:?}");
                assert_eq!(
                    by.and_then(|policy| policy.verdict),
                    (!given.is_empty()).then_some(expected)
                );
            });
        };
        check(&[], Allow);
        check(&[(Account, "*", Ask)], Ask);
        check(&[(Account, "*", Ask), (Agent, "*", Allow)], Allow);
        check(&[(Agent, "*", Allow), (Task, "*", Ask)], Ask);
        check(&[(Task, "*", Ask), (TaskAgent, "*", Allow)], Allow);
        check(&[(TaskAgent, "*", Allow), (Session, "*", Ask)], Ask);
        // Within a scope, the more exact name.
        check(&[(Account, "*", Ask), (Account, "task_*", Allow)], Allow);
        check(&[(Account, "task_*", Allow), (Account, "task_st*", Ask)], Ask);
        check(&[(Account, "task_status*", Allow), (Account, "task_status", Ask)], Ask);
        // The scope comes before the name.
        check(&[(Account, "task_status", Ask), (Agent, "*", Allow)], Allow);
        // Deny, anywhere.
        check(&[(Account, "*", Deny), (Session, "task_status", Allow)], Deny);
        check(&[(Account, "*", Allow), (Session, "*", Deny)], Deny);
        check(&[(Account, "*", Ask), (Task, "*", Deny), (Session, "*", Ask)], Deny);

        let nothing = [policy(Session, SESSION, "*")];
        assert_eq!(
            verdict(&nothing, used(None, "t"), Ask),
            (Ask, None),
            "it says nothing of calls"
        );
        let elsewhere = [ToolPolicy {
            verdict: Some(Deny),
            ..policy(Session, AGENT, "*")
        }];
        assert_eq!(
            verdict(&elsewhere, used(None, "t"), Allow),
            (Allow, None),
            "it covers no such call"
        );
    }

    #[test]
    fn a_lasting_approval_answers_those_who_were_asked() {
        use PolicyScope::{Account, Agent, TaskAgent};
        use PolicyVerdict::{Allow, Ask, Deny};
        let task = TaskId::parse("PROJ-7").unwrap();
        let (members, admins) = (&["role:member"][..], &["role:admin"][..]);
        type Said<'a> = (PolicyVerdict, &'a [&'a str]);
        let check = |given: &[(PolicyScope, &str, Said<'_>)], expected: PolicyVerdict| {
            let given = policies(given, |policy, (verdict, audience)| ToolPolicy {
                verdict: Some(verdict),
                audience: (!audience.is_empty()).then(|| audience.iter().map(ToString::to_string).collect()),
                ..policy
            });
            both_ways(&given, |given| {
                let (ruled, _) = verdict(given, used(Some(&task), "task_status"), Allow);
                assert_eq!(ruled, expected, "{given:?}");
            });
        };
        let approved = (TaskAgent, "task_status", (Allow, members));
        check(&[(Account, "*", (Ask, &[])), approved], Allow);
        check(&[(Account, "*", (Ask, members)), approved], Allow);
        check(&[(Account, "*", (Ask, admins)), approved], Ask);
        check(
            &[(Account, "*", (Ask, members)), (Agent, "*", (Ask, admins)), approved],
            Ask,
        );
        check(&[(Account, "*", (Deny, &[])), approved], Deny);
        check(&[approved], Allow);
    }

    #[test]
    fn the_narrowest_says_what_is_seen() {
        use PolicyScope::{Account, Agent, Session};
        let check = |given: &[(PolicyScope, &str, bool)], otherwise: bool, expected: bool| {
            let given = policies(given, |policy, visible| ToolPolicy {
                visible: Some(visible),
                verdict: Some(PolicyVerdict::Deny),
                ..policy
            });
            both_ways(&given, |given| {
                let seen = visible(given, used(None, "task_status"), otherwise);
                assert_eq!(seen, expected, "{given:?} {otherwise}");
            });
        };
        check(&[], true, true);
        check(&[], false, false);
        check(&[(Account, "*", false)], true, false);
        check(&[(Account, "*", false), (Account, "task_*", true)], false, true);
        check(&[(Account, "*", false), (Agent, "*", true)], true, true);
        check(&[(Agent, "task_status", true), (Session, "*", false)], true, false);
    }
}
