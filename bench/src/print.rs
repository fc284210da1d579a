//! The only module that prints.

#[expect(clippy::print_stdout, reason = "what is measured is what the program is for")]
pub(crate) fn print(line: &str) {
    println!("{line}");
}

#[expect(
    clippy::print_stderr,
    reason = "a program of the command line says here what is wrong"
)]
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}
