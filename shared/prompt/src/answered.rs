//! What a model is told of a call that no tool has answered: our own words. An audit holds a turn's answers against them.

use contracts::tool::ARGUMENTS_BYTES_MAX;

/// The agent's result for a call whose own result did not arrive.
pub const RESULT_MISSING: &str = r#"{"error":{"code":"outcome_unknown","message":"The tool did not answer in time. It may or may not have run.","hint":"Look at what has been done, for example with task_history, before you try again."}}"#;

/// The agent's result for a call that the source turn of a replay did not make.
pub const NOT_RECORDED: &str = r#"{"error":{"code":"not_recorded","message":"This turn is run again from a record, which has no such call. Nothing was done.","hint":"Go on without this result."}}"#;

/// The agent's result for a call that is not passed on.
pub fn arguments_too_large() -> String {
    format!(
        r#"{{"error":{{"code":"arguments_too_large","message":"The arguments are longer than {ARGUMENTS_BYTES_MAX} bytes; the tool was not called.","hint":"Call it again with shorter arguments."}}}}"#
    )
}
