//! `docs/queue-modes.md`: what the queue modes, edits and brakes mean, generated from the cases, so that every rule there is tested.

use std::fmt::Write;

use crate::case::Chapter;

const HEAD: &str = "\
# Queue modes, edits and brakes by example

Generated from `conformance/cases/` by `queue-conformance --doc docs/queue-modes.md`. Each section is a case that
[queue-conformance](../conformance/README.md) runs against a service, with its steps.

`ann`, who is meant where no author is named, and `bob` are persons; `ci` is a service. Items are a, b, c …, and b/2 is the second
text of b. A `call` is a request of the service to the model: `call b c` means that the model gets exactly these new items, in this
order, in one call; `call nothing`, that it gets tool results only. After it, the model answers (`reply`), asks for a tool (`tool`),
fails (`fail`), or begins an answer that does not go on (`hang`). `closed` means that the service closes the call; `quiet 200`, that no
call comes for 200 ms. `hold` and `resume pause` begin and end a pause; `resume stopped` goes on after a stop. `queue` lists what waits.
";

pub fn document(chapters: &[Chapter]) -> String {
    let mut text = HEAD.to_owned();
    for Chapter { title, about, cases } in chapters {
        let _ = writeln!(text, "\n## {title}\n{}", about.trim());
        for case in cases {
            let steps: Vec<&str> = case.steps.iter().map(|step| step.text.as_str()).collect();
            let _ = writeln!(text, "\n### `{}`\n{}\n", case.name, case.about.trim());
            let _ = writeln!(text, "> {}", steps.join(" → "));
        }
    }
    text
}
