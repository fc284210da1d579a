//! Timers: what happens once, at a time.

use crate::string_enum::string_enum;

string_enum! {
    TimerKind else Later {
        /// An agent looks again.
        CheckLater = "check_later",
        /// The time of a question is over.
        QuestionLapse = "question_lapse",
        /// The time of the branches of a call is over.
        BranchDeadline = "branch_deadline",
        /// A kind of a later version: only that version fires it.
        Later = "later",
    }
}

string_enum! {
    TimerState {
        Waiting = "waiting",
        Fired = "fired",
        /// It will not fire.
        Cleared = "cleared",
    }
}
