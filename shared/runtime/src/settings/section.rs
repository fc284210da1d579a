//! How a section is declared: each setting once, with its type and its default.

/// A struct of settings, each with the value that it has when no source sets it. The syntax is that of Rust's RFC 3681.
///
/// ```
/// runtime::section! {
///     /// `[replica]`
///     pub struct ReplicaSettings {
///         pub lease_ms: runtime::settings::Millis = runtime::settings::Millis::new(3_000),
///     }
/// }
/// assert_eq!(ReplicaSettings::default().lease_ms.get(), 3_000);
/// ```
#[macro_export]
macro_rules! section {
    (
        $(#[$of_section:meta])*
        pub struct $section:ident {
            $($(#[$of_setting:meta])* $visible:vis $setting:ident: $kind:ty = $default:expr,)+
        }
    ) => {
        $(#[$of_section])*
        #[derive(Clone, serde::Deserialize)]
        #[serde(default)]
        pub struct $section {
            $($(#[$of_setting])* $visible $setting: $kind,)+
        }

        impl Default for $section {
            fn default() -> Self {
                Self { $($setting: $default,)+ }
            }
        }
    };
}
