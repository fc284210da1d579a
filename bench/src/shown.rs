//! Results so far, and their comparison with goals: medians, and ratios of medians of the same run.

use crate::{
    figures::Figures,
    report::{Goal, Row, Wanted},
    rows::{BACKLOG, LIVE},
    subject::Subject,
};

pub(crate) type Figure = fn(&Figures) -> f64;

/// The judged row is the last.
pub(crate) struct Shown {
    /// Notifications of a run, unless the row sets its own number.
    pub(crate) notifications: u32,
    pub(crate) rows: Vec<Row>,
}

impl Shown {
    /// As many notifications as the rate of row live allows in so many seconds, up to the number of a run. On a slow machine, the
    /// table would take hours otherwise.
    pub(crate) fn sized(&self, seconds: f64) -> u32 {
        let rate = self.median(LIVE, Subject::Signalbox, |figures| figures.per_s);
        if rate.is_nan() {
            return self.notifications;
        }
        let thousands = whole(rate * seconds / 1_000.0) * 1_000;
        thousands.max(2_000).min(self.notifications)
    }

    /// A share of row live's rate; of its goal if it was not measured.
    pub(crate) fn rate(&self, share: f64, at_least: u32) -> u32 {
        let shown = self.median(LIVE, Subject::Signalbox, |figures| figures.per_s);
        let rate = if shown.is_nan() { 10_000.0 } else { shown };
        whole(rate * share).max(at_least)
    }

    pub(crate) fn median(&self, row: &str, subject: Subject, figure: Figure) -> f64 {
        let runs = self.rows.iter().filter(|of| of.name == row).flat_map(|row| &row.runs);
        let values = runs
            .filter(|run| run.subject == subject.name())
            .map(|run| figure(&run.figures));
        median(values)
    }

    pub(crate) fn value(&self, what: &'static str, figure: Figure, wanted: Wanted) -> Goal {
        let own = self.own(figure);
        Goal {
            what,
            figure: own,
            against: None,
            value: own,
            wanted,
        }
    }

    /// Compares within the same row.
    pub(crate) fn ratio(&self, what: &'static str, to: Subject, figure: Figure, wanted: Wanted) -> Goal {
        let row = self.rows.last().map_or("", |row| row.name);
        self.share(what, self.median(row, to, figure), figure, wanted)
    }

    pub(crate) fn of_live(&self, what: &'static str, to: Subject, figure: Figure, wanted: Wanted) -> Goal {
        self.share(what, self.median(LIVE, to, figure), figure, wanted)
    }

    pub(crate) fn of_backlog(&self, what: &'static str, figure: Figure, wanted: Wanted) -> Goal {
        self.share(what, self.median(BACKLOG, Subject::Signalbox, figure), figure, wanted)
    }

    pub(crate) fn share(&self, what: &'static str, of: f64, figure: Figure, wanted: Wanted) -> Goal {
        let own = self.own(figure);
        Goal {
            what,
            figure: own,
            against: Some(of),
            // Who has done nothing is no measure.
            value: if of > 0.0 { own / of } else { f64::NAN },
            wanted,
        }
    }

    fn own(&self, figure: Figure) -> f64 {
        let row = self.rows.last().map_or("", |row| row.name);
        self.median(row, Subject::Signalbox, figure)
    }
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.filter(|value| !value.is_nan()).collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        // For a latency the lower of two values would be the better one.
        even if even % 2 == 0 => f64::midpoint(values[even / 2 - 1], values[even / 2]),
        odd => values[odd / 2],
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "some thousands; more than there are numbers is as many as there are"
)]
fn whole(value: f64) -> u32 {
    value as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Run;

    fn shown(per_s: &[f64]) -> Shown {
        let runs = per_s.iter().map(|per_s| Run {
            subject: Subject::Signalbox.name(),
            figures: Figures {
                per_s: *per_s,
                ..Figures::default()
            },
        });
        Shown {
            notifications: 20_000,
            rows: vec![Row {
                name: LIVE,
                about: "",
                goals: Vec::new(),
                runs: runs.collect(),
                failed: None,
            }],
        }
    }

    #[test]
    fn the_median_is_in_the_middle_of_what_was_measured() {
        assert_eq!(median([3.0, 1.0, f64::NAN, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
        assert!(median([f64::NAN].into_iter()).is_nan());
    }

    #[test]
    fn a_slow_system_is_given_less_to_do() {
        assert_eq!(shown(&[1_000.0, 1_200.0, 900.0]).sized(5.0), 5_000);
        assert_eq!(shown(&[13_000.0]).sized(5.0), 20_000);
        assert_eq!(shown(&[]).sized(5.0), 20_000);
        assert_eq!(shown(&[3.0]).sized(5.0), 2_000);
        assert_eq!(shown(&[1_000.0]).rate(0.5, 200), 500);
        assert_eq!(shown(&[100.0]).rate(0.5, 200), 200);
    }
}
