//! Questions: what a person, an agent or a rule is asked and answers once. Approvals of plans, of tool calls and of finished work
//! are questions too.

use crate::string_enum::string_enum;

string_enum! {
    QuestionKind {
        /// An agent asks.
        Question = "question",
        /// An agent's plan awaits approval.
        Plan = "plan",
        /// A task that its agent calls done is reviewed.
        Review = "review",
        /// A tool call awaits approval.
        Tool = "tool",
    }
}

string_enum! {
    QuestionState {
        Open = "open",
        Answered = "answered",
        /// By the asker, or by who may.
        Withdrawn = "withdrawn",
        /// Its time was over.
        Lapsed = "lapsed",
        /// Its task or its session has ended.
        Cancelled = "cancelled",
    }
}

string_enum! {
    /// What was decided. A question of kind `question` is answered by options and text instead.
    Verdict {
        Approved = "approved",
        /// Not like this: the text says what to change.
        Changes = "changes",
        Denied = "denied",
    }
}
