//! Terminal output in a thread of its own. A terminal stopped with Ctrl-S, or a pipe without a reader, must neither block nor end
//! the services.

use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    time::Duration,
};

use serde::Serialize;

use super::row::Row;
use crate::print::print;

/// Lines that wait for the terminal; more are dropped.
const LINES_WAITING_MAX: usize = 4_096;
/// Time limit for the last lines.
const FINISH_LIMIT: Duration = Duration::from_secs(2);

pub(super) struct Show {
    lines: SyncSender<String>,
    /// Closed when the thread has written everything.
    written: Receiver<()>,
    json: bool,
    has_head: bool,
}

impl Show {
    pub(super) fn start(json: bool) -> anyhow::Result<Show> {
        let (lines, rx) = sync_channel(LINES_WAITING_MAX);
        let (writing, written) = sync_channel(1);
        let thread = std::thread::Builder::new().name("terminal".to_owned());
        thread.spawn(move || {
            let _writing: SyncSender<()> = writing;
            write(&rx);
        })?;
        Ok(Show {
            lines,
            written,
            json,
            has_head: false,
        })
    }

    /// A line of prose; omitted with `--json`.
    pub(super) fn say(&self, line: &str) {
        if !self.json {
            self.send(line.to_owned());
        }
    }

    /// An object; printed only with `--json`.
    pub(super) fn tell(&self, value: &impl Serialize) {
        if self.json {
            self.send(serde_json::to_string(value).expect("what is told has string keys"));
        }
    }

    pub(super) fn row(&mut self, row: &Row) {
        self.tell(row);
        if !self.json && !self.has_head {
            self.has_head = true;
            self.send(Row::head());
        }
        self.say(&row.text());
    }

    fn send(&self, line: String) {
        // The queue is full or closed: the line is dropped. The log has what matters.
        let _ = self.lines.try_send(line);
    }

    /// Waits until everything is written, or the time limit.
    pub(super) fn finish(self) {
        drop(self.lines);
        // Nothing is sent on the channel: the receive ends with the thread or with the limit.
        let _ = self.written.recv_timeout(FINISH_LIMIT);
    }
}

fn write(lines: &Receiver<String>) {
    while let Ok(line) = lines.recv() {
        if print(&(line + "\n")).is_err() {
            return;
        }
    }
}
