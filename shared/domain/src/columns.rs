//! Ids, words and numbers of this crate as columns: statements take them as values, and rows have them as fields. A
//! stored value that is not of the type is an error that names the type.
//!
//! In this crate because of the orphan rule (ADR 46), and behind the feature `columns`, which `storage` switches on.

/// How a type is stored: the stored type, the stored value, and its parser.
macro_rules! column {
    ($name:ident: $stored:ident, $stores:expr, $reads:expr) => {
        #[cfg(feature = "columns")]
        const _: () = {
            use sea_orm::{
                ColIdx, DbErr, QueryResult, TryGetError, TryGetable, TryGetableArray, Value,
                sea_query::{ArrayType, ColumnType, Nullable, ValueType, ValueTypeErr, postgres_array::NotU8},
            };

            fn stored(value: $name) -> $stored {
                let stores: fn($name) -> $stored = $stores;
                stores(value)
            }

            fn read(stored: $stored) -> Result<$name, TryGetError> {
                let reads: fn($stored) -> Result<$name, String> = $reads;
                let what = |why| format!("{} is stored as {why}", stringify!($name));
                reads(stored).map_err(|why| TryGetError::DbErr(DbErr::Type(what(why))))
            }

            impl From<$name> for Value {
                fn from(value: $name) -> Value {
                    stored(value).into()
                }
            }
            impl From<&$name> for Value {
                fn from(value: &$name) -> Value {
                    stored(value.to_owned()).into()
                }
            }
            impl TryGetable for $name {
                fn try_get_by<I: ColIdx>(row: &QueryResult, column: I) -> Result<Self, TryGetError> {
                    read($stored::try_get_by(row, column)?)
                }
            }
            impl TryGetableArray for $name {
                fn try_get_by<I: ColIdx>(row: &QueryResult, column: I) -> Result<Vec<Self>, TryGetError> {
                    let all = <Vec<$stored> as TryGetable>::try_get_by(row, column)?;
                    all.into_iter().map(read).collect()
                }
            }
            impl ValueType for $name {
                fn try_from(value: Value) -> Result<Self, ValueTypeErr> {
                    read(<$stored as ValueType>::try_from(value)?).map_err(|_| ValueTypeErr)
                }
                fn type_name() -> String {
                    stringify!($name).to_owned()
                }
                fn array_type() -> ArrayType {
                    $stored::array_type()
                }
                fn column_type() -> ColumnType {
                    $stored::column_type()
                }
            }
            impl Nullable for $name {
                fn null() -> Value {
                    $stored::null()
                }
            }
            impl NotU8 for $name {}
        };
    };
    // Stored as its printed text, and checked when it is read.
    ($name:ident: text) => {
        $crate::columns::column!($name: String, |value| value.to_string(), |text| text.parse().map_err(|_| text));
    };
    // The same; a stored text that is none of its values is read as this one.
    ($name:ident: text else $other:ident) => {
        $crate::columns::column!($name: String, |value| value.to_string(), |text| Ok(text.parse().unwrap_or($name::$other)));
    };
    // A number or a UUID in a tuple struct, of which every stored value is valid.
    ($name:ident: plain $stored:ident) => {
        $crate::columns::column!($name: $stored, |value| value.0, |value| Ok($name(value)));
    };
}
pub(crate) use column;
