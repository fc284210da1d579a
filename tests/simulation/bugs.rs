//! Mistakes that the simulation can be told to make, one at a time: each removes a guard of an invariant. A test requires that each
//! is found within some thousand seeds; otherwise the simulation would prove nothing.

/// One mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// Delivery records an outcome without checking its session's fence.
    FenceUnchecked,
    /// A generation is reused, and the index that would refuse it is gone.
    GenerationReused,
    /// A lease expires by a clock that is ahead of the database's.
    LeaseByLocalClock,
    /// A known notification is queued again.
    DuplicateQueued,
    /// The resolver's offset moves in its own transaction, before the batch is written.
    PlaceBeforeBatch,
    /// The resolver continues although another one opened the session first.
    RaceIgnored,
    /// Items that carry over after a closed task stay in the closed session.
    CarriedForgotten,
    /// A closed session may still take the next item of its queue.
    ClosedAdmitted,
    /// A call with an unknown outcome is repeated for an agent with effects of its own.
    LostSentBlindly,
    /// The outbox is swept by the highest id published so far.
    OutboxById,
    /// A tool call runs at every delivery.
    CallRunAgain,
    /// A call counts whatever its session's state.
    ClosedCallAllowed,
    /// A call counts with its message's arguments instead of its turn's.
    ForgedCallAllowed,
    /// A delivery of the previous version requests all calls of an answer at once, and a call waits for earlier ones only a limited
    /// number of times.
    OrderGivenUp,
    /// A cancelled item is still counted as waiting.
    CancelledCounted,
    /// A lease from a claim with a lost answer is never taken over while its holder lives.
    OwnLeaseForgotten,
    /// The outbox row of an accepted notification is deleted as soon as the broker has it.
    ReceiptBeforeRead,
    /// A row of several messages is deleted when the broker has acknowledged one of them.
    RowOverAtFirst,
    /// The record of a turn's outcome says its beginning only if this process has begun it.
    StartedNotRepeated,
    /// A transaction of several calls that fails keeps the effect of its first call.
    BatchHalfCommitted,
    /// A session starts its next turn with the record of its last one, whoever waits for its place.
    PlaceKeptUnasked,
    /// The resolver enters a batch where its addresses led before, without a look at the rows.
    RouteBelieved,
    /// A steer cancels what waits.
    SteerDropsQueue,
    /// A request to stop hits the turn in progress, whatever turn it names.
    StopHitsSuccessor,
    /// A turn takes items of several authors as one run.
    RunMixesAuthors,
    /// A claim does not read the gate of a parked session.
    GateUnread,
    /// A request to stop stays when its turn has ended, and counts for the next turn.
    StopKept,
    /// The note of a stopped turn ends with the turn that was to tell it, answered or not.
    StopToldOnce,
    /// Every turn that meets an open breaker tries.
    AllProbe,
    /// The note of a call is not stored before the call is sent.
    NoteNotStored,
    /// An answer is written without a look at the question's state under the lock.
    AnsweredTwice,
    /// Sweepers fire an account's timers at once, and do not look whether they still wait.
    TimerFiredTwice,
    /// The end of a task leaves its timers.
    TimersOutliveTask,
    /// The end of a task leaves its questions.
    QuestionsOutliveTask,
    /// An item is withdrawn whatever its state.
    WithdrawStarted,
    /// A claim does not read the holds.
    PauseUnread,
    /// A call that was approved runs at every hint of its approval.
    ApprovedTwice,
    /// A call runs when its question has ended, whatever was decided.
    VerdictUnread,
    /// An approval counts for all calls of its turn, whatever their arguments.
    ApprovalForOthers,
    /// An edit exchanges the places that its editor has seen.
    PlacesFromLook,
    /// A reset is not carried out if its turn has finished all the same.
    ResetForgotten,
    /// A reset that cancels what waits cancels also what came after it.
    ResetCancelsLater,
    /// A rotation leaves the queue in the closed generation.
    RotatedLeavesQueue,
    /// Branches are made without a timer for their time.
    SpawnForgetsDeadline,
    /// The end of a branch does not look whether it has ended before.
    FoldedTwice,
    /// A branch that is cancelled counts for no join.
    CancelForgetsJoin,
    /// The end of a session leaves its branches.
    CloseLeavesBranches,
    /// A replay's calls are passed on.
    ReplayPassesOn,
    /// The end of a task cancels the items of its replays.
    TaskEndsReplay,
    /// The removal of a person leaves the session of their orchestrator.
    PersonLeavesSession,
    /// The resolver finds the open session of an orchestrator without a look at whose it is.
    OwnerUnread,
    /// The resolver puts what a guest asks of an orchestrator into its owner's own session.
    GuestInOwnSession,
    /// Mail that an agent takes during its turn still waits.
    MailPulledTwice,
    /// A task that is done again frees again what has waited for it.
    FreedTwice,
    /// A blocker that is done leaves what has waited for it.
    UnblockLost,
    /// A task may wait for itself, through others.
    RingUnseen,
    /// A move does not look whether its task waits for others.
    BlockerUnread,
    /// An agent moves tasks that are not its own.
    OthersTaskMoved,
    /// The end of a child's task is no mail.
    ChildUntold,
}

impl Bug {
    /// Of the way of a notification.
    pub(crate) const OF_THE_WAY: [Bug; 22] = [
        Bug::FenceUnchecked,
        Bug::GenerationReused,
        Bug::LeaseByLocalClock,
        Bug::DuplicateQueued,
        Bug::PlaceBeforeBatch,
        Bug::RaceIgnored,
        Bug::CarriedForgotten,
        Bug::ClosedAdmitted,
        Bug::LostSentBlindly,
        Bug::OutboxById,
        Bug::CallRunAgain,
        Bug::ClosedCallAllowed,
        Bug::ForgedCallAllowed,
        Bug::OrderGivenUp,
        Bug::CancelledCounted,
        Bug::OwnLeaseForgotten,
        Bug::ReceiptBeforeRead,
        Bug::RowOverAtFirst,
        Bug::StartedNotRepeated,
        Bug::BatchHalfCommitted,
        Bug::PlaceKeptUnasked,
        Bug::RouteBelieved,
    ];

    /// Of what people and agents do to that way: brakes, questions, timers, edits, approvals.
    pub(crate) const OF_CONTROL: [Bug; 18] = [
        Bug::SteerDropsQueue,
        Bug::StopHitsSuccessor,
        Bug::RunMixesAuthors,
        Bug::GateUnread,
        Bug::StopKept,
        Bug::StopToldOnce,
        Bug::AllProbe,
        Bug::NoteNotStored,
        Bug::AnsweredTwice,
        Bug::TimerFiredTwice,
        Bug::TimersOutliveTask,
        Bug::QuestionsOutliveTask,
        Bug::WithdrawStarted,
        Bug::PauseUnread,
        Bug::ApprovedTwice,
        Bug::VerdictUnread,
        Bug::ApprovalForOthers,
        Bug::PlacesFromLook,
    ];

    /// Of how sessions begin, divide and end, and whose they are.
    pub(crate) const OF_SESSIONS: [Bug; 12] = [
        Bug::ResetForgotten,
        Bug::ResetCancelsLater,
        Bug::RotatedLeavesQueue,
        Bug::SpawnForgetsDeadline,
        Bug::FoldedTwice,
        Bug::CancelForgetsJoin,
        Bug::CloseLeavesBranches,
        Bug::ReplayPassesOn,
        Bug::TaskEndsReplay,
        Bug::PersonLeavesSession,
        Bug::OwnerUnread,
        Bug::GuestInOwnSession,
    ];

    /// Of mail, boards and children.
    pub(crate) const OF_PEOPLE: [Bug; 7] = [
        Bug::MailPulledTwice,
        Bug::FreedTwice,
        Bug::UnblockLost,
        Bug::RingUnseen,
        Bug::BlockerUnread,
        Bug::OthersTaskMoved,
        Bug::ChildUntold,
    ];
}
