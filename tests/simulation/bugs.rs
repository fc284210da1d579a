//! Mistakes that the simulation can be told to make, one at a time: each takes a guard away that a promise rests on. A
//! test asks that each is found within some thousand seeds; a simulation that finds none of them would prove nothing.

/// One mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// Delivery records an outcome whatever the fence of its session is by now.
    FenceUnchecked,
    /// A generation is used again, and the index that would refuse it is gone.
    GenerationReused,
    /// A holder counts as dead by a clock that runs ahead of the database's.
    LeaseByLocalClock,
    /// A notification that is known already is queued again.
    DuplicateQueued,
    /// The resolver's place moves in a transaction of its own, before the batch is written.
    PlaceBeforeBatch,
    /// The resolver goes on though somebody else was first with a session.
    RaceIgnored,
    /// What goes on after a task is done stays in the closed session.
    CarriedForgotten,
    /// A closed session may still take the next item of its queue.
    ClosedAdmitted,
    /// A call whose outcome is unknown is sent again to an agent with effects of its own.
    LostSentBlindly,
    /// The outbox is swept by the highest id published so far.
    OutboxById,
    /// A tool call runs each time it arrives.
    CallRunAgain,
    /// A call counts whatever became of its session.
    ClosedCallAllowed,
    /// A call counts in the words of its message, whatever its turn asked for.
    ForgedCallAllowed,
    /// A delivery of the version before asks for all calls of an answer at once, and a call waits for the ones before it only so often.
    OrderGivenUp,
    /// A cancelled item is still counted as waiting.
    CancelledCounted,
    /// A lease of a claim whose answer was lost is nobody's to take up while its holder lives.
    OwnLeaseForgotten,
    /// What was accepted is forgotten as soon as the broker has it.
    ReceiptBeforeRead,
}

impl Bug {
    pub(crate) const ALL: [Bug; 17] = [
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
    ];
}
