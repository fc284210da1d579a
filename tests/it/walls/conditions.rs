//! Finds the conditions of SQL on an account: `x.account_id = y` in any form, and an account's own row by its id.

/// Their positions in the text, in order.
pub(crate) fn conditions(sql: &str) -> Vec<(usize, usize)> {
    sql.match_indices('=')
        .filter(|(at, _)| is_comparison(sql, *at))
        .filter_map(|(at, _)| {
            let (start, end) = (left_of(sql, at), right_of(sql, at + 1));
            let (left, right) = (sql[start..at].trim(), sql[at + 1..end].trim());
            [left, right]
                .iter()
                .any(|side| is_account(sql, side, start))
                .then_some((start, end))
        })
        .collect()
}

/// The tables whose columns a condition compares, as far as the statement's text names them.
pub(crate) fn tables_of(sql: &str, (start, end): (usize, usize)) -> Vec<&str> {
    let sides = sql[start..end]
        .split(|c: char| !is_name(c))
        .filter_map(|side| side.rsplit_once('.'));
    sides
        .filter_map(|(name, _)| table_of(sql, name.trim_matches('"'), start))
        .chain(
            (!sql[start..end].contains('.'))
                .then(|| table_of(sql, "", start))
                .flatten(),
        )
        .collect()
}

/// The statement without one of its conditions.
pub(crate) fn without(sql: &str, (start, end): (usize, usize)) -> String {
    format!("{}true{}", &sql[..start], &sql[end..])
}

fn is_comparison(sql: &str, at: usize) -> bool {
    let (before, after) = (&sql[..at], &sql[at + 1..]);
    !before.ends_with(['<', '>', '!', ':', '=']) && !after.starts_with(['=', '>'])
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.$\":[]".contains(c)
}

fn left_of(sql: &str, at: usize) -> usize {
    let left = sql[..at].trim_end();
    left.rfind(|c: char| !is_name(c)).map_or(0, |place| place + 1)
}

fn right_of(sql: &str, from: usize) -> usize {
    let right = sql[from..].trim_start();
    let from = sql.len() - right.len();
    let length = match right.get(..3).map(str::to_ascii_lowercase).as_deref() {
        Some("any") if right[3..].trim_start().starts_with('(') => right.find(')').expect("any( is closed") + 1,
        Some(_) | None => right.find(|c: char| !is_name(c)).unwrap_or(right.len()),
    };
    from + length
}

/// The table of an alias at a position: the last earlier declaration of the alias, else the next one. An empty alias: the last
/// named table.
fn table_of<'s>(sql: &'s str, name: &str, used: usize) -> Option<&'s str> {
    let words: Vec<&str> = sql.split_whitespace().collect();
    let bare = |place: usize| {
        words
            .get(place)
            .map(|word| word.trim_matches(|c| !is_name(c) || c == '"'))
    };
    let mut found = None;
    for (place, word) in words.iter().enumerate() {
        if !["from", "join", "update"].contains(&word.to_ascii_lowercase().as_str()) {
            continue;
        }
        let Some(table) = bare(place + 1) else {
            continue;
        };
        let alias = match bare(place + 2).filter(|_| !words[place + 1].ends_with(')')) {
            Some("as") => bare(place + 3).unwrap_or(table),
            None | Some("" | "where" | "set" | "on" | "SET" | "WHERE") => table,
            Some(alias) => alias,
        };
        let is_before = (word.as_ptr() as usize - sql.as_ptr() as usize) < used;
        if (alias == name || name.is_empty()) && (is_before || found.is_none()) {
            found = Some(table);
        }
    }
    found
}

fn is_account(sql: &str, side: &str, used: usize) -> bool {
    let (name, column) = side.rsplit_once('.').unwrap_or(("", side));
    match column.trim_matches('"') {
        "account_id" => true,
        "id" => table_of(sql, name.trim_matches('"'), used) == Some("account"),
        _ => false,
    }
}

#[test]
fn every_form_of_the_condition_is_found() {
    for (sql, expected) in [
        (
            "select 1 from task where account_id = $1 and id = $2",
            &["account_id = $1"][..],
        ),
        (
            "join task t on t.account_id = n.account_id and t.id = n.id",
            &["t.account_id = n.account_id"],
        ),
        (
            r#"where "task"."account_id" = $1 and "task"."id" = $2"#,
            &[r#""task"."account_id" = $1"#],
        ),
        (
            "where account_id = any($1::text[]) and x <> 1",
            &["account_id = any($1::text[])"],
        ),
        (
            "where n.account_id = any (array[r.account_id]) and n.id = r.id",
            &["n.account_id = any (array[r.account_id])"],
        ),
        ("join account a on a.id = n.account_id", &["a.id = n.account_id"]),
        (
            "from w cross join lateral (select * from account a where a.id = w.id) a join agent g on g.id = a.x",
            &["a.id = w.id"],
        ),
        ("select 1 from account where id = $1", &["id = $1"]),
        ("update account set name = $2 where id = $1", &["id = $1"]),
        (
            r#"UPDATE "account" SET "name" = $1 WHERE "account"."id" = $2"#,
            &[r#""account"."id" = $2"#],
        ),
        ("select 1 from task where id = $1 and x >= 2", &[]),
        (
            "select 1 from account a where a.id = w.id union all select 2 from agent a where a.id = s.agent_id",
            &["a.id = w.id"],
        ),
        (
            "select (select a.x from account a where a.id = s.y) from session s",
            &["a.id = s.y"],
        ),
    ] {
        let found: Vec<&str> = conditions(sql).iter().map(|&(start, end)| &sql[start..end]).collect();
        assert_eq!(found, expected, "{sql}");
    }
}

#[test]
fn one_condition_goes_and_the_rest_stays() {
    let sql = "select 1 from task where account_id = $1 and id = $2";
    assert_eq!(
        without(sql, conditions(sql)[0]),
        "select 1 from task where true and id = $2"
    );
}
