//! Tables for people: aligned columns when all rows are known, or fixed widths row by row.

use crate::text::one_line;

/// Gap between columns.
const GAP: &str = "  ";

/// A table whose rows are all known: each column is as wide as its widest cell.
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&'static str]) -> Table {
        Table {
            head: head.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Each cell becomes one line. A wrong number of cells is a bug of the caller.
    pub(crate) fn row<const N: usize>(&mut self, cells: [&str; N]) {
        debug_assert_eq!(N, self.head.len());
        self.rows
            .push(cells.iter().map(|cell| shown(cell, CELL_CHARS_MAX)).collect());
    }

    /// `none` is the text of an empty table.
    pub(crate) fn render(&self, none: &str) -> String {
        if self.rows.is_empty() {
            return format!("{none}\n");
        }
        let widths: Vec<usize> = (0..self.head.len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| row[column].chars().count());
                cells.chain([self.head[column].chars().count()]).max().unwrap_or(0)
            })
            .collect();
        let head: Vec<String> = self.head.iter().map(|&name| name.to_owned()).collect();
        let lines = std::iter::once(&head).chain(&self.rows);
        lines.map(|cells| line(cells, &widths) + "\n").collect()
    }
}

const CELL_CHARS_MAX: usize = 100;

/// Columns of fixed widths, for rows that are printed one by one. The last column is not cut.
pub(crate) struct Columns {
    columns: &'static [(&'static str, usize)],
}

impl Columns {
    pub(crate) const fn new(columns: &'static [(&'static str, usize)]) -> Columns {
        Columns { columns }
    }

    pub(crate) fn head(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        line(&names, &self.widths())
    }

    /// Cells are cut to their column; an empty cell is `-`.
    pub(crate) fn row<const N: usize>(&self, cells: [&str; N]) -> String {
        debug_assert_eq!(N, self.columns.len());
        let cells: Vec<String> = cells
            .iter()
            .zip(self.columns)
            .map(|(cell, (_, width))| shown(cell, *width))
            .collect();
        line(&cells, &self.widths())
    }

    fn widths(&self) -> Vec<usize> {
        self.columns.iter().map(|(_, width)| *width).collect()
    }
}

fn shown(cell: &str, chars_max: usize) -> String {
    match one_line(cell, chars_max) {
        empty if empty.is_empty() => "-".to_owned(),
        text => text,
    }
}

/// Removes blanks after the last cell.
fn line(cells: &[String], widths: &[usize]) -> String {
    let padded: Vec<String> = cells
        .iter()
        .zip(widths)
        .map(|(cell, &width)| format!("{cell:<width$}"))
        .collect();
    padded.join(GAP).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["ID", "STATE"]);
        table.row(["ä-1", "delivered"]);
        table.row(["longer-id", ""]);
        assert_eq!(
            table.render("none"),
            "ID         STATE\nä-1        delivered\nlonger-id  -\n"
        );
    }

    #[test]
    fn an_empty_table_says_so() {
        assert_eq!(Table::new(&["ID"]).render("no sessions"), "no sessions\n");
    }

    #[test]
    fn rows_that_come_one_by_one_stay_aligned() {
        static COLUMNS: Columns = Columns::new(&[("ID", 6), ("STATE", 9), ("REPLY", 10)]);
        assert_eq!(COLUMNS.head(), "ID      STATE      REPLY");
        assert_eq!(COLUMNS.row(["demo-01", "queued", ""]), "demo-…  queued     -");
        assert_eq!(
            COLUMNS.row(["a", "delivered", "two\nlines here"]),
            "a       delivered  two lines…"
        );
    }
}
