//! Splits a byte stream into server-sent events, within a memory limit. Written here because the result must not depend
//! on the chunk boundaries, and because an endless line must not exhaust the memory.
//!
//! Lines end at LF, CR or CRLF only: gateways send raw U+2028 inside their JSON. Event ids and `retry` are skipped,
//! since a model's answer is never resumed.

/// One event: its data lines joined by LF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) name: Option<String>,
    pub(super) data: String,
}

/// An event is larger than the limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

#[derive(Debug)]
pub(super) struct Splitter {
    event_bytes_max: usize,
    /// The unfinished line.
    line: Vec<u8>,
    name: Option<String>,
    /// `None` until the event's first data line; `Some("")` is an event with empty data.
    data: Option<String>,
    /// The last line ended with CR: a following LF belongs to it.
    after_cr: bool,
    lines: u64,
}

impl Splitter {
    pub(super) fn new(event_bytes_max: usize) -> Self {
        Self {
            event_bytes_max,
            line: Vec::new(),
            name: None,
            data: None,
            after_cr: false,
            lines: 0,
        }
    }

    /// Whole lines so far, comments and blank ones included: the sign that the other side is alive. Bytes are no sign:
    /// one per second could arrive for ever.
    pub(super) fn lines(&self) -> u64 {
        self.lines
    }

    /// Takes the next bytes and appends the events that they complete.
    pub(super) fn push(&mut self, chunk: &[u8], events: &mut Vec<Event>) -> Result<(), TooLarge> {
        let mut rest = chunk;
        while let Some(&first) = rest.first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let part = &rest[..end.unwrap_or(rest.len())];
            if self.line.len() + part.len() + self.data.as_ref().map_or(0, String::len) > self.event_bytes_max {
                return Err(TooLarge);
            }
            self.line.extend_from_slice(part);
            let Some(end) = end else { break };
            self.after_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            self.line_end(events);
        }
        Ok(())
    }

    /// Handles the regular end of the stream. The specification drops an event without its closing blank line. Some
    /// servers omit that line after their last event, and the reader of the data checks whether it is complete.
    pub(super) fn finish(mut self) -> Vec<Event> {
        let mut events = Vec::new();
        if !self.line.is_empty() {
            self.line_end(&mut events);
        }
        self.dispatch(&mut events);
        events
    }

    fn line_end(&mut self, events: &mut Vec<Event>) {
        let line = std::mem::take(&mut self.line);
        let line = if self.lines == 0 {
            line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line)
        } else {
            &line
        };
        self.lines += 1;
        if line.is_empty() {
            return self.dispatch(events);
        }
        let text = String::from_utf8_lossy(line);
        let (field, value) = text.split_once(':').unwrap_or((&text, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            "event" => self.name = Some(value.to_owned()),
            _ => {} // comments (an empty field name), ids, `retry`, and whatever comes next
        }
    }

    fn dispatch(&mut self, events: &mut Vec<Event>) {
        let name = self.name.take().filter(|name| !name.is_empty());
        if let Some(data) = self.data.take() {
            events.push(Event { name, data });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 1_000;

    /// Feeds `bytes` cut at `cuts` (any order, out of range is fine).
    fn split(bytes: &[u8], cuts: &[usize], limit: usize) -> Result<(Vec<Event>, u64), TooLarge> {
        let mut cuts: Vec<usize> = cuts
            .iter()
            .map(|cut| cut % (bytes.len() + 1))
            .chain([bytes.len()])
            .collect();
        cuts.sort_unstable();
        let mut splitter = Splitter::new(limit);
        let (mut events, mut from) = (Vec::new(), 0);
        for to in cuts {
            splitter.push(&bytes[from..to], &mut events)?;
            from = to;
        }
        let lines = splitter.lines();
        events.extend(splitter.finish());
        Ok((events, lines))
    }

    fn check(bytes: &str, expected: &[(Option<&str>, &str)]) {
        let (events, _) = split(bytes.as_bytes(), &[], LIMIT).unwrap();
        let events: Vec<_> = events
            .iter()
            .map(|event| (event.name.as_deref(), event.data.as_str()))
            .collect();
        assert_eq!(events, expected, "{bytes:?}");
    }

    #[test]
    fn splits_events() {
        check("event: a\ndata: 1\n\ndata: 2\n\n", &[(Some("a"), "1"), (None, "2")]);
        check(
            "event: a\r\ndata: 1\r\n\r\ndata: 2\r\n\r\n",
            &[(Some("a"), "1"), (None, "2")],
        );
        check("event: a\rdata: 1\r\rdata: 2\r\r", &[(Some("a"), "1"), (None, "2")]);
        check("data: one\ndata: two\ndata:three\n\n", &[(None, "one\ntwo\nthree")]);
        check(": ping\n\n:\n\nid: 7\nretry: 10\ndata:  x \n\n", &[(None, " x ")]);
        check(
            "data\n\ndata:\n\nevent: lonely\n\ndata: x\n\n",
            &[(None, ""), (None, ""), (None, "x")],
        );
        check("\u{feff}data: x\n\n", &[(None, "x")]);
        check("data: \u{feff}x\n\n", &[(None, "\u{feff}x")]);
        check(
            "data: a\u{2028}b\u{2029}c\u{85}d\n\n",
            &[(None, "a\u{2028}b\u{2029}c\u{85}d")],
        );
        check("data: no blank line at the end", &[(None, "no blank line at the end")]);
        check(
            "data: no blank line at the end\n",
            &[(None, "no blank line at the end")],
        );
        check("", &[]);
    }

    #[test]
    fn replaces_bytes_that_are_not_utf8() {
        let (events, _) = split(b"data: a\xff\xfeb\n\n", &[], LIMIT).unwrap();
        assert_eq!(events[0].data, "a\u{fffd}\u{fffd}b");
    }

    #[test]
    fn stops_at_the_limit_of_one_event() {
        assert_eq!(split(&[b'x'; 11], &[], 10), Err(TooLarge), "a line that never ends");
        assert_eq!(
            split(b"data: 1234\ndata: 1234\ndata: 1234\n", &[], 18),
            Err(TooLarge),
            "many lines"
        );
        let many = "data: 1234\n\n".repeat(100);
        assert_eq!(
            split(many.as_bytes(), &[], 18).unwrap().0.len(),
            100,
            "the limit is per event"
        );
    }

    fn stream_like() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just("data: ".as_bytes().to_vec()),
            Just(b"event: response.completed".to_vec()),
            Just(b"\n".to_vec()),
            Just(b"\r".to_vec()),
            Just(b"\r\n".to_vec()),
            Just(b"\n\n".to_vec()),
            Just(": ping".as_bytes().to_vec()),
            Just("ü\u{2028}🚉".as_bytes().to_vec()),
            Just(b"\xef\xbb\xbf".to_vec()),
            Just(br#"{"type":"x","a":[1,2]}"#.to_vec()),
            proptest::collection::vec(any::<u8>(), 0..12),
        ];
        proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn does_not_care_how_the_bytes_were_cut(
            bytes in stream_like(),
            cuts in proptest::collection::vec(any::<usize>(), 0..20),
            limit in 1..200_usize,
        ) {
            let every_byte: Vec<usize> = (0..bytes.len()).collect();
            let whole = split(&bytes, &[], limit);
            prop_assert_eq!(&split(&bytes, &cuts, limit), &whole);
            prop_assert_eq!(&split(&bytes, &every_byte, limit), &whole);
        }
    }
}
