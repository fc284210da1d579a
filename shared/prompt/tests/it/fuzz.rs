//! Fuzz tests of the readers of manifests and of rendered texts: what other versions, and whoever can write the database, may have stored.

use domain::{InstructionLayout, TurnId, TurnState};
use prompt::{
    Manifest, Marks, PROFILE_VERSION, PastLimits, PastTurn, entry_input_cut, filled_in, is_thread_heading,
    manifest::{Because, Hash, Layer, Part, PartKind, Source},
    note_parts, past, tells_of_stopped,
};
use testkit::fuzz::Fuzz;
use uuid::Uuid;

fn fuzz(target: &'static str) -> Fuzz {
    Fuzz::new(target, env!("CARGO_MANIFEST_DIR"))
}

const TEXT: &str = "Notification: \"n\"\nBody:\n[begin x]\nTests fail.\n[end x]\n";

fn manifest() -> Manifest {
    let mut manifest = Manifest::new(InstructionLayout::Inline);
    let part = |source| Part::of(Layer::Input, PartKind::Notification, source, TEXT);
    manifest.parts = vec![
        part(Source::named("notification/n")),
        part(Source::Message(Uuid::nil())),
        Part {
            layer: Layer::Context,
            because: Because::Base,
            ..part(Source::TurnReply(Uuid::nil()))
        },
    ];
    manifest
}

/// A manifest as it is stored: read, it is written the same, and it says of any text what it covers.
#[test]
fn manifest_packed() {
    let version_1 = "010102010501146e6f74696669636174696f6e2f63692d3437313103b1f51a511f1da0cd348b8f8598db32e61cb963e5fc69e2b41485bf9959\
                      0ed75af0a2040108000000000000000000000000000000000700e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b85500";
    fuzz("manifest_packed")
        .seeds([
            manifest().packed(),
            hex::decode(version_1).unwrap(),
            vec![2],
            Vec::new(),
        ])
        .flood(256 * 1024)
        .must_meet(&["version 1", "version 2", "refused"])
        .run(|input| {
            let Some(read) = Manifest::unpacked(input) else {
                return "refused";
            };
            for layer in [Layer::Instructions, Layer::Context, Layer::Input] {
                let cover = read.cover(layer, TEXT);
                let covered: usize = cover.slices.iter().map(|(slice, _)| slice.text.len()).sum();
                assert_eq!(covered + cover.uncovered.len(), TEXT.len());
                let is_whole =
                    cover.missing == 0 && cover.uncovered.is_empty() && cover.slices.iter().all(|(_, is_its)| *is_its);
                let offset = (read.version, read.layout, layer) == (1, InstructionLayout::Inline, Layer::Input);
                assert!(offset || is_whole == read.slices(layer, TEXT).is_ok());
            }
            match read.version {
                1 => "version 1",
                _ => {
                    assert_eq!(Manifest::unpacked(&read.packed()).as_ref(), Some(&read));
                    "version 2"
                }
            }
        });
}

/// A manifest as it is shown, and as the first versions stored it.
#[test]
fn manifest_shown() {
    let seeds = [serde_json::to_vec(&manifest()).unwrap(), b"{}".to_vec()];
    fuzz("manifest_shown")
        .words(&[
            "layout",
            "inline",
            "parts",
            "layer",
            "context",
            "sha256",
            "cut_bytes",
            "left_out",
            "turn/",
            "/input",
            "message/",
        ])
        .seeds(seeds)
        .flood(256 * 1024)
        .must_meet(&["read", "refused"])
        .run(|input| {
            let Ok(read) = serde_json::from_slice::<Manifest>(input) else {
                return "refused";
            };
            let shown = serde_json::to_value(&read).expect("it serialises");
            assert_eq!(serde_json::from_value::<Manifest>(shown).ok(), Some(read));
            "read"
        });
}

/// A text that may have been rendered: whatever stands in it, it is read back without a panic, and its parts lie within it.
#[test]
fn rendered_text() {
    let stopped = "Note from Signalbox: your previous turn in this conversation was stopped by \"Ann\" at 2026-01-02T03:04:05Z. It may be \
                   partly done. Check before you repeat it.\n\n";
    let heading = "\nNew in this task's thread since your last turn: 1 of 2, oldest first:\n";
    fuzz("rendered_text")
        .words(&[
            "[begin ",
            "[end ",
            "]\n",
            ", 7 more bytes left out]",
            "\"",
            "\\",
            "…",
            " at ",
        ])
        .seeds([TEXT, stopped, heading, "# How you work here\n", ""])
        .flood(256 * 1024)
        .must_meet(&["stopped", "heading", "quoted", "other"])
        .run(|input| {
            let Ok(text) = std::str::from_utf8(input) else {
                return "other";
            };
            let turn = past_turn(text);
            let entries = past(std::slice::from_ref(&turn), 1, &LIMITS, Because::Past, &[]);
            let entry = &entries.parts[0];
            let again = entry_input_cut(&turn, entry.cut_bytes).expect("that much was cut");
            assert_eq!(Hash::of(again.as_str()), entry.sha256);
            let parts = note_parts(text, &["a".to_owned(), "b".to_owned()]);
            assert!(parts.iter().map(|part| part.bytes).sum::<usize>() <= text.len());
            assert!(filled_in(&format!("profile/{PROFILE_VERSION}"), text).is_none());
            let is_quoted = matches!(Marks::recorded(text), Marks::Recorded(marks) if !marks.is_empty());
            match (tells_of_stopped(text, None), is_thread_heading(text), is_quoted) {
                (true, _, _) => "stopped",
                (_, true, _) => "heading",
                (_, _, true) => "quoted",
                (_, _, _) => "other",
            }
        });
}

const LIMITS: PastLimits = PastLimits {
    entries_max: 1,
    bytes_max: usize::MAX,
    body_bytes_max: 5,
    reply_bytes_max: 5,
};

fn past_turn(text: &str) -> PastTurn {
    let mut manifest = Manifest::new(InstructionLayout::Layered);
    let source = Source::named("notification/n");
    manifest.parts = vec![Part::of(Layer::Input, PartKind::Notification, source, text)];
    PastTurn {
        id: TurnId(Uuid::nil()),
        state: TurnState::Finished,
        input: text.to_owned(),
        manifest: Some(manifest),
        notes: Vec::new(),
        called: Vec::new(),
        reply: Some(text.to_owned()),
    }
}
