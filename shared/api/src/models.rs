//! External models that agents of the account may ask.

use domain::{ModelInput, ModelKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Models {
    pub items: Vec<Model>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Model {
    pub name: String,
    #[schemars(with = "ModelKind")]
    pub kind: String,
    /// What it takes beside the request.
    #[schemars(with = "Vec<ModelInput>")]
    pub accepts: Vec<String>,
    /// The sizes of images that may be asked for; empty: any.
    pub sizes: Vec<String>,
    /// It is the one of its kind that is asked where a call names none.
    pub is_default: bool,
}
