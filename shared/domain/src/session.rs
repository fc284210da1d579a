//! A session's kinds, phases and endings.
//!
//! ```text
//!            enqueue                claim                 calls made             results in
//!  (new) ──────────► idle ────────────────────► running ───────────────► waiting ───────────► running
//!                     ▲                          │  │                        (no lease held)
//!                     └── turn ended ────────────┘  └── failed, try again ──► backoff ── due ─► running
//! ```

use crate::word::words;

words! {
    SessionKind { Task = "task", System = "system", Orchestrator = "orchestrator" }
}

words! {
    /// What may happen to a session next. A lease is held in `running` only.
    SessionPhase {
        /// No turn in progress; claimable when its queue is not empty.
        Idle = "idle",
        /// A replica holds the lease.
        Running = "running",
        /// The turn waits for tool results; nobody holds the lease.
        Waiting = "waiting",
        /// The turn waits for its next attempt.
        Backoff = "backoff",
    }
}

words! {
    CloseReason {
        TaskDone = "task_done", TaskCancelled = "task_cancelled", TaskArchived = "task_archived",
        AgentRemoved = "agent_removed", Reset = "reset", Rotated = "rotated",
    }
}
