//! The planted bugs of the reference, and for each a case that must find it.

use clap::ValueEnum;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Bug {
    /// A run has items of several authors.
    AuthorsMerged,
    /// A run has answers to the agent's questions.
    AnswersMerged,
    CollectNeverMerges,
    /// A steer cancels what waits.
    SteerDropsQueue,
    /// A steer waits for the end of the turn in progress.
    SteerWaits,
    /// A stop or a steer of an ended turn ends the turn in progress.
    StopHitsSuccessor,
    /// What waits behind a stopped turn starts by itself.
    StopRestarts,
    /// A pause is not read before a turn starts.
    PauseNotRead,
    /// An injected item is missing in the call after a crash.
    NoteLostAtCrash,
    /// An injected item gets a turn of its own, too.
    NoteTwice,
    /// An item of a turn in progress can be withdrawn.
    WithdrawAfterClaim,
    /// Edits are not checked against revisions.
    RevisionIgnored,
}

impl Bug {
    pub fn found_by(self) -> &'static str {
        match self {
            Bug::AuthorsMerged => "a_person_s_item_never_joins_a_service_s_run",
            Bug::AnswersMerged => "an_answer_is_never_merged_in_either_order",
            Bug::CollectNeverMerges => "collect_joins_what_has_not_started",
            Bug::SteerDropsQueue => "a_steer_goes_first_and_loses_nothing",
            Bug::SteerWaits => "a_steer_goes_first_and_loses_nothing",
            Bug::StopHitsSuccessor => "a_steer_at_an_ended_turn_hits_no_other",
            Bug::StopRestarts => "a_stop_holds_what_waits",
            Bug::PauseNotRead => "a_paused_session_takes_nobody_s_item",
            Bug::NoteLostAtCrash => "an_inject_survives_a_crash",
            Bug::NoteTwice => "an_inject_comes_with_the_next_tool_results",
            Bug::WithdrawAfterClaim => "withdrawing_what_has_started_is_refused",
            Bug::RevisionIgnored => "an_edit_by_an_old_revision_changes_nothing",
        }
    }
}
