//! Progress of the sample: which line may be published next, and the outcomes. Pure.
//!
//! A line waits until the earlier lines of its task have an outcome, so that the sample always ends the same way: a line that
//! reopens a task must come after the turn that closed it. Lines keep their order; a waiting line delays all later ones.

use domain::NotificationState;

use super::sample::SampleLine;

#[derive(Debug)]
pub(super) struct Progress {
    lines: Vec<SampleLine>,
    /// Outcome of each line.
    outcomes: Vec<Option<NotificationState>>,
    published: usize,
}

impl Progress {
    pub(super) fn new(lines: Vec<SampleLine>) -> Progress {
        Progress {
            outcomes: vec![None; lines.len()],
            lines,
            published: 0,
        }
    }

    pub(super) fn line(&self, index: usize) -> &SampleLine {
        &self.lines[index]
    }

    /// The next line to publish.
    pub(super) fn due(&self) -> Option<usize> {
        let next = self.lines.get(self.published)?;
        let mut earlier = self.lines[..self.published].iter().zip(&self.outcomes);
        let waits = earlier.any(|(line, outcome)| outcome.is_none() && line.is_of_same_task(next));
        (!waits).then_some(self.published)
    }

    pub(super) fn publish(&mut self) {
        self.published += 1;
    }

    /// Whether an earlier line used its id for other content. Then the API's row of that id belongs to the earlier line, and this
    /// line is refused; its dead letter says so.
    pub(super) fn is_conflict(&self, index: usize) -> bool {
        let line = &self.lines[index];
        self.lines[..index].iter().any(|earlier| {
            let is_same_id = earlier.account == line.account && earlier.id == line.id;
            is_same_id && (earlier.payload != line.payload || !earlier.is_of_same_task(line))
        })
    }

    /// Published lines without an outcome.
    pub(super) fn open(&self) -> Vec<usize> {
        (0..self.published)
            .filter(|&index| self.outcomes[index].is_none())
            .collect()
    }

    /// A fan-out has several outcomes; the worst counts.
    pub(super) fn end(&mut self, index: usize, states: &[NotificationState]) {
        self.outcomes[index] = states.iter().copied().max_by_key(|state| badness(*state));
    }

    pub(super) fn is_over(&self) -> bool {
        self.outcomes.iter().all(Option::is_some)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.outcomes.contains(&Some(NotificationState::Failed))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// `16 of 16 have an outcome: 15 delivered, 1 refused`
    pub(super) fn summary(&self) -> String {
        let ended = self.outcomes.iter().flatten().count();
        let counts = NotificationState::ALL.iter().filter_map(|&state| {
            let count = self.outcomes.iter().filter(|outcome| **outcome == Some(state)).count();
            (count > 0).then(|| format!("{count} {state}"))
        });
        let counts = counts.collect::<Vec<_>>().join(", ");
        format!("{ended} of {} have an outcome: {counts}", self.lines.len())
    }

    /// Ids of the lines that others wait for.
    pub(super) fn waiting_for(&self) -> String {
        let open = self.open().into_iter();
        let ids = open.map(|index| self.lines[index].id.as_str());
        ids.collect::<Vec<_>>().join(", ")
    }
}

fn badness(state: NotificationState) -> u8 {
    match state {
        NotificationState::Delivered => 0,
        NotificationState::Cancelled => 1,
        NotificationState::Refused => 2,
        NotificationState::Failed => 3,
        // Not outcomes: they are never recorded as one.
        NotificationState::Queued | NotificationState::Running => 4,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn progress() -> Progress {
        // DEMO-1, DEMO-2, -, DEMO-1, DEMO-3, …
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/notifications.ndjson");
        Progress::new(super::super::sample::read(&path).unwrap())
    }

    #[test]
    fn a_line_waits_for_the_earlier_ones_of_its_task_only() {
        let mut progress = progress();
        for expected in 0..3 {
            assert_eq!(progress.due(), Some(expected));
            progress.publish();
        }
        assert_eq!(progress.due(), None, "the fourth is of the first one's task");
        progress.end(1, &[NotificationState::Delivered]);
        assert_eq!(progress.due(), None);
        assert_eq!(progress.open(), [0, 2]);
        assert_eq!(progress.waiting_for(), "demo-01, demo-03");
        progress.end(0, &[NotificationState::Refused]);
        assert_eq!(progress.due(), Some(3));
    }

    #[test]
    fn is_over_when_every_line_has_an_outcome() {
        let mut progress = progress();
        let mut last = 0;
        while let Some(index) = progress.due() {
            progress.publish();
            progress.end(index, &[NotificationState::Delivered]);
            last = index;
        }
        assert_eq!(last, 15);
        assert!(progress.is_over() && !progress.has_failed());
        progress.end(3, &[NotificationState::Delivered, NotificationState::Failed]);
        progress.end(4, &[NotificationState::Refused, NotificationState::Cancelled]);
        assert!(progress.is_over() && progress.has_failed());
        assert_eq!(
            progress.summary(),
            "16 of 16 have an outcome: 14 delivered, 1 failed, 1 refused"
        );
    }

    #[test]
    fn an_id_that_is_used_for_something_else_is_a_conflict() {
        let text = |body: &str| format!(r#"{{"account":"demo","task":"T","id":"n","agent":"coder","body":"{body}"}}"#);
        let lines = [text("a"), text("a"), text("b")].join("\n");
        let progress = Progress::new(super::super::sample::parse(&lines).unwrap());
        let conflicts: Vec<bool> = (0..3).map(|index| progress.is_conflict(index)).collect();
        assert_eq!(conflicts, [false, false, true]);
    }

    #[test]
    fn nothing_is_over_at_once() {
        let progress = Progress::new(Vec::new());
        assert!(progress.is_over() && !progress.has_failed() && progress.is_empty());
        assert_eq!(progress.due(), None);
    }
}
