//! `schemas/database.sql`: the schema of a new database, which is every migration in order.

pub(super) fn text() -> String {
    let mut text = String::from(
        "-- The database's schema: every migration in order, as a new database runs them.\n\
         -- Generated from shared/storage/src/migrations by `signalbox schemas`.\n",
    );
    for (name, sql) in storage::migrations::steps() {
        let rule = "-".repeat(80usize.saturating_sub(name.len() + 7));
        text += &format!("\n-- == {name} {rule}\n\n{}\n", sql.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn holds_every_step_in_order() {
        let text = super::text();
        let mut rest = text.as_str();
        for (name, sql) in storage::migrations::steps() {
            let at = rest.find(sql.trim_end()).unwrap_or_else(|| panic!("{name} is missing"));
            rest = &rest[at..];
        }
        assert!(text.contains("create table account"));
    }
}
