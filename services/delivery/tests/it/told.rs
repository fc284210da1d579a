//! After the turns of a test: no thread of its database was told anything twice, by the rule of `prompt::told`.

use domain::{SessionId, TurnId};
use prompt::{
    Manifest,
    told::{ToldTurn, twice},
};
use sqlx::{PgPool, Row, postgres::PgRow};

const TURNS: &str = "
    select t.account_id, t.session_id, t.id, t.state = 'finished' as is_answered, t.manifest_packed, t.input,
           array(select jsonb_array_elements_text(n -> 'notification_ids') from jsonb_array_elements(t.notes) n) as noted,
           array(select m.id from message m where m.account_id = t.account_id and m.turn_id = t.id) as wrote
    from turn t where t.manifest_packed is not null order by t.account_id, t.session_id, t.number";

/// Its account, and the turn, if its manifest can be read.
fn read(row: &PgRow) -> (String, Option<ToldTurn>) {
    let turn = |manifest| ToldTurn {
        session: SessionId(row.get("session_id")),
        id: TurnId(row.get("id")),
        is_answered: row.get("is_answered"),
        manifest,
        input: row.get("input"),
        noted: row.get("noted"),
        wrote: row.get("wrote"),
    };
    (
        row.get("account_id"),
        Manifest::unpacked(row.get("manifest_packed")).map(turn),
    )
}

pub(crate) async fn nothing_twice(owner: &PgPool) {
    let rows = sqlx::query(TURNS).fetch_all(owner).await.unwrap();
    let read: Vec<(String, Option<ToldTurn>)> = rows.iter().map(read).collect();
    for of in read.chunk_by(|(one, _), (other, _)| one == other) {
        let turns: Vec<ToldTurn> = of.iter().filter_map(|(_, turn)| turn.clone()).collect();
        let found = twice(&turns);
        assert!(found.is_empty(), "told twice in {}: {found:#?}", of[0].0);
    }
}
