//! Enums that are stored and sent as one word. One macro, so that the word on the wire, in Postgres and in an error
//! message is always the same.

/// Declares an enum with its words: `as_str`, `parse`, serde and JSON Schema agree. `Name else Variant`: a stored word of a later
/// version is read as this variant.
macro_rules! string_enum {
    ($(#[$doc:meta])* $name:ident $(else $other:ident)? { $($(#[$variant_doc:meta])* $variant:ident = $word:literal $(| $alias:literal)*),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $name { $($(#[$variant_doc])* #[serde(rename = $word $(, alias = $alias)*)] $variant),+ }

        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($word $(| $alias)* => Some(Self::$variant),)+ _ => None }
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl std::str::FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                Self::parse(text).ok_or_else(|| {
                    let words: Vec<&str> = Self::ALL.iter().map(|w| w.as_str()).collect();
                    format!("not one of {}", words.join(", "))
                })
            }
        }
        $crate::columns::column!($name: text $(else $other)?);
    };
}
pub(crate) use string_enum;
