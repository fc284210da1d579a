//! External models: what the operator has named for agents to ask, beside the providers that run the agents.

use crate::string_enum::string_enum;

string_enum! {
    /// What is spoken with a model, and what it is for.
    ModelKind {
        /// It answers in text: the OpenResponses protocol.
        OpenResponses = "openresponses",
        /// It makes images: OpenAI's protocol for that.
        Images = "images",
    }
}

string_enum! {
    /// What a model takes beside the request.
    ModelInput {
        Text = "text",
        Image = "image",
        /// PDF, and files of text.
        File = "file",
    }
}

/// The kinds of models that an account may use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ModelKinds {
    pub openresponses: bool,
    pub images: bool,
}

impl ModelKinds {
    pub fn has(self, kind: ModelKind) -> bool {
        match kind {
            ModelKind::OpenResponses => self.openresponses,
            ModelKind::Images => self.images,
        }
    }
}

impl FromIterator<ModelKind> for ModelKinds {
    fn from_iter<I: IntoIterator<Item = ModelKind>>(kinds: I) -> ModelKinds {
        let mut all = ModelKinds::default();
        for kind in kinds {
            match kind {
                ModelKind::OpenResponses => all.openresponses = true,
                ModelKind::Images => all.images = true,
            }
        }
        all
    }
}
