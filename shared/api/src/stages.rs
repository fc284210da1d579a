//! Review stages of a task.

use domain::{QuestionId, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{questions::Audience, text::Text};

/// Stages of a task.
const STAGES_MAX: usize = 8;

/// The stages that a task passes, one after the other, before it is done. A stage that was passed stays passed if its name and its audience stay; all are to be passed again when a task that has ended is opened again.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewStages {
    pub stages: StageList,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<NewStage>")]
#[schemars(inline, !try_from)]
pub struct StageList(#[schemars(length(max = STAGES_MAX))] pub Vec<NewStage>);

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewStage {
    pub name: Text<1, 128>,
    /// Who reviews, as in a question: `role:member` if absent. Agents that work on the task cannot.
    pub audience: Option<Audience>,
}

impl TryFrom<Vec<NewStage>> for StageList {
    type Error = String;
    fn try_from(stages: Vec<NewStage>) -> Result<Self, String> {
        if stages.len() > STAGES_MAX {
            return Err(format!("at most {STAGES_MAX}"));
        }
        let mut names: Vec<&str> = stages.iter().map(|stage| &*stage.name).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("two stages are called {}", pair[0])),
            None => Ok(StageList(stages)),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Stages {
    pub stages: Vec<Stage>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Stage {
    pub name: String,
    pub audience: Vec<String>,
    /// Null: not passed.
    pub passed_at: Option<Timestamp>,
    /// The review that passed it.
    pub question_id: Option<QuestionId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_have_limits() {
        let read = |names: &[&str]| {
            let stages: Vec<_> = names.iter().map(|name| serde_json::json!({"name": name})).collect();
            serde_json::from_value::<NewStages>(serde_json::json!({"stages": stages}))
        };
        assert!(read(&[]).is_ok());
        assert!(read(&["1", "2", "3", "4", "5", "6", "7", "8"]).is_ok());
        assert!(read(&["1", "2", "3", "4", "5", "6", "7", "8", "9"]).is_err());
        assert!(read(&["1", "2", "1"]).is_err());
        assert!(read(&[" "]).is_err());
    }
}
