//! Collects the output items of one answer from events that may be incomplete, repeated or out of order.

use std::collections::BTreeMap;

use serde_json::Value;

use super::call::{FunctionCall, Reasoning};
use super::response::{SHORT_CHARS_MAX, Unreadable, short};
use super::settings::CallLimits;

/// Bytes counted per item and part besides its text, so that a million empty ones still reach the limit.
const ITEM_BYTES: usize = 256;
const PART_BYTES: usize = 64;

#[derive(Debug)]
pub(super) struct Items {
    limits: CallLimits,
    list: Vec<OutputItem>,
    held_bytes: usize,
}

/// The item of an event: by place, by id, or the latest when the event names neither.
#[derive(Debug, Clone, Copy)]
pub(super) struct Which<'a> {
    pub(super) place: Option<u64>,
    pub(super) id: Option<&'a str>,
}

/// A message, a function call or another item; unknown fields are absent.
#[derive(Debug, Default)]
pub(super) struct OutputItem {
    place: Option<u64>,
    id: Option<String>,
    kind: Option<String>,
    status: Option<String>,
    phase: Option<String>,
    call_id: Option<String>,
    name: Option<String>,
    /// The whole item as JSON, if it is encrypted reasoning.
    reasoning: Option<String>,
    pub(super) arguments: String,
    pub(super) parts: BTreeMap<u64, String>,
}

impl Items {
    pub(super) fn new(limits: CallLimits) -> Self {
        Self {
            limits,
            list: Vec::new(),
            held_bytes: 0,
        }
    }

    /// Changes an item; adds it if it is unknown.
    pub(super) fn edit(&mut self, which: Which<'_>, change: impl FnOnce(&mut OutputItem)) -> Result<(), Unreadable> {
        let at = self.find(which).unwrap_or_else(|| {
            self.list.push(OutputItem::default());
            self.held_bytes += ITEM_BYTES;
            self.list.len() - 1
        });
        let item = &mut self.list[at];
        let before = item.bytes();
        item.place = item.place.or(which.place);
        item.id = item.id.take().or_else(|| which.id.map(short));
        change(item);
        self.held_bytes = self.held_bytes + item.bytes() - before;
        if self.held_bytes > self.limits.answer_bytes_max {
            // The answer is worth more than its reasoning.
            for item in &mut self.list {
                self.held_bytes -= item.reasoning.take().map_or(0, |reasoning| reasoning.len());
            }
        }
        if self.held_bytes > self.limits.answer_bytes_max {
            return Err(Unreadable::TooLarge("answer_bytes_max"));
        }
        Ok(())
    }

    fn find(&self, which: Which<'_>) -> Option<usize> {
        let by_place = |item: &OutputItem| which.place.is_some() && item.place == which.place;
        // Some providers use one id for several items: different places tell them apart.
        let by_id = |item: &OutputItem| {
            which.id.is_some() && item.id.as_deref() == which.id && (item.place.is_none() || which.place.is_none())
        };
        let latest = || {
            self.list
                .len()
                .checked_sub(1)
                .filter(|_| which.place.is_none() && which.id.is_none())
        };
        self.list
            .iter()
            .position(by_place)
            .or_else(|| self.list.iter().position(by_id))
            .or_else(latest)
    }

    fn in_order(&self) -> Vec<&OutputItem> {
        let mut items: Vec<&OutputItem> = self.list.iter().collect();
        items.sort_by_key(|item| item.place); // stable: items without a place keep their order
        items
    }

    /// The reply. Messages in the commentary phase are left out once there is a final answer.
    pub(super) fn text(&self) -> String {
        let messages: Vec<(&OutputItem, String)> = self
            .in_order()
            .into_iter()
            .filter(|item| item.kind.as_deref().is_none_or(|kind| kind == "message"))
            .map(|item| (item, item.parts.values().map(String::as_str).collect()))
            .filter(|(_, text): &(_, String)| !text.is_empty())
            .collect();
        let is_final = |item: &OutputItem| item.phase.as_deref() == Some("final_answer");
        let has_final = messages.iter().any(|(item, _)| is_final(item));
        let texts: Vec<String> = messages
            .into_iter()
            .filter(|(item, _)| !has_final || is_final(item))
            .map(|(_, text)| text)
            .collect();
        texts.join("\n\n")
    }

    /// The reasoning to send back, with its place among the calls.
    pub(super) fn reasoning(&self) -> Vec<Reasoning> {
        let mut calls_before = 0;
        let mut found = Vec::new();
        for item in self.in_order() {
            calls_before += usize::from(item.is_call());
            found.extend(item.reasoning.clone().map(|item| Reasoning { calls_before, item }));
        }
        found
    }

    /// The function calls. Of an incomplete answer, only the complete calls.
    pub(super) fn calls(&self, cut_short: bool) -> Result<Vec<FunctionCall>, Unreadable> {
        let mut calls: Vec<FunctionCall> = Vec::new();
        for item in self.in_order().into_iter().filter(|item| item.is_call()) {
            if cut_short && !item.is_whole_call() {
                continue;
            }
            let call = item.call()?;
            if call.arguments.len() > self.limits.arguments_bytes_max {
                return Err(Unreadable::TooLarge("arguments_bytes_max"));
            }
            match calls.iter().find(|known| known.call_id == call.call_id) {
                None => calls.push(call),
                Some(known) if *known == call => {} // said twice
                Some(_) => return Err(Unreadable::Malformed("two different calls have one id")),
            }
        }
        if calls.len() > self.limits.tool_calls_max {
            return Err(Unreadable::TooLarge("tool_calls_max"));
        }
        Ok(calls)
    }
}

impl OutputItem {
    /// Merges an announced or finished item. Text and arguments from deltas stay if the item has none.
    pub(super) fn merge(&mut self, wire: &Value) {
        let said = |key: &str| wire[key].as_str().map(short);
        self.kind = said("type").or(self.kind.take());
        self.status = said("status").or(self.status.take());
        self.phase = said("phase").or(self.phase.take());
        self.call_id = wire["call_id"].as_str().map(str::to_owned).or(self.call_id.take());
        self.name = wire["name"].as_str().map(str::to_owned).or(self.name.take());
        let is_sealed = wire["type"] == "reasoning"
            && wire["encrypted_content"]
                .as_str()
                .is_some_and(|sealed| !sealed.is_empty());
        self.reasoning = is_sealed.then(|| wire.to_string()).or(self.reasoning.take());
        match &wire["arguments"] {
            Value::String(text) if text.is_empty() => {}
            Value::String(text) => self.arguments.clone_from(text),
            object @ Value::Object(_) => self.arguments = object.to_string(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {}
        }
        let parts: BTreeMap<u64, String> = match &wire["content"] {
            Value::String(text) => [(0, text.clone())].into(),
            Value::Array(parts) => (0..)
                .zip(parts.iter().filter_map(part_text).map(str::to_owned))
                .collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => BTreeMap::new(),
        };
        if parts.values().any(|text| !text.is_empty()) {
            self.parts = parts;
        }
    }

    fn is_call(&self) -> bool {
        match self.kind.as_deref() {
            Some(kind) => kind == "function_call",
            None => !self.arguments.is_empty(), // only its arguments were announced
        }
    }

    fn is_whole_call(&self) -> bool {
        self.status.as_deref().is_none_or(|status| status == "completed")
            && serde_json::from_str::<serde::de::IgnoredAny>(&self.arguments).is_ok()
    }

    fn call(&self) -> Result<FunctionCall, Unreadable> {
        let call_id = self.call_id.clone().or(self.id.clone()).filter(|id| !id.is_empty());
        let name = self.name.clone().filter(|name| !name.is_empty());
        let (Some(call_id), Some(name)) = (call_id, name) else {
            return Err(Unreadable::Malformed("a function call has no name or no id"));
        };
        if call_id.len().max(name.len()) > SHORT_CHARS_MAX {
            return Err(Unreadable::Malformed("a function call's name or id is too long"));
        }
        let arguments = if self.arguments.is_empty() {
            "{}".to_owned()
        } else {
            self.arguments.clone()
        };
        Ok(FunctionCall {
            call_id,
            name,
            arguments,
        })
    }

    fn bytes(&self) -> usize {
        let names = [&self.call_id, &self.name, &self.reasoning]
            .into_iter()
            .flatten()
            .map(String::len)
            .sum::<usize>();
        names + self.arguments.len() + self.parts.values().map(|text| PART_BYTES + text.len()).sum::<usize>()
    }
}

/// The visible text of a content part; a refusal counts as text.
pub(super) fn part_text(part: &Value) -> Option<&str> {
    part["text"].as_str().or(part["refusal"].as_str())
}
