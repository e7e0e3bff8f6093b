//! Text in columns, for terminals of any width and for pipes.

use super::text::{width as columns, wrapped};
use console::{Alignment, pad_str};

/// The narrowest that a column of text becomes.
const NARROWEST: usize = 24;

/// Rows of cells.
#[derive(Default)]
pub struct Table(pub Vec<Vec<String>>);

impl Table {
    pub fn row<const N: usize>(&mut self, cells: [impl Into<String>; N]) {
        self.0.push(cells.map(Into::into).into());
    }

    /// A line of its own, with an empty one before it.
    pub fn heading(&mut self, text: &str) {
        if !self.0.is_empty() {
            self.0.push(Vec::new());
        }
        self.row([text]);
    }

    /// A line beneath a heading, with its source in brackets.
    pub fn entry(&mut self, name: &str, value: &str, source: &str) {
        let source = (!source.is_empty()).then(|| format!("({source})"));
        let cells = [format!("  {name}"), value.to_string()];
        self.0.push(cells.into_iter().chain(source).collect());
    }

    /// Pads the cells of some columns on their left, so that they end below each other.
    pub fn align_right(&mut self, columns_to_pad: &[usize]) {
        for &column in columns_to_pad {
            let cells = || self.0.iter().filter_map(|row| row.get(column));
            let width = cells().map(|cell| columns(cell)).max().unwrap_or(0);
            for cell in self.0.iter_mut().filter_map(|row| row.get_mut(column)) {
                *cell = pad_str(cell, width, Alignment::Right, None).into_owned();
            }
        }
    }

    /// Lines of at most `width` columns: cells of a column begin below each other, and the last
    /// cell of a row is wrapped beneath itself.
    pub fn text(&self, width: usize) -> String {
        let count = self.0.iter().map(Vec::len).max().unwrap_or(0);
        // The last cell of a row pushes nothing aside.
        let before_last = |column: usize| self.0.iter().filter(move |row| column + 1 < row.len());
        let widest = |column: usize| before_last(column).map(|row| columns(&row[column])).max();
        let widths: Vec<usize> = (0..count).map(|column| widest(column).unwrap_or(0)).collect();
        let lines = self.0.iter().flat_map(|row| lines(row, &widths, width));
        lines.map(|line| line.trim_end().to_string() + "\n").collect()
    }
}

fn lines(row: &[String], widths: &[usize], width: usize) -> Vec<String> {
    let Some((last, cells)) = row.split_last() else {
        return vec![String::new()];
    };
    let mut start = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        start += &pad_str(cell, width + 2, Alignment::Left, None);
    }
    let used = columns(&start);
    if used + columns(last) <= width {
        return vec![start + last];
    }
    let mut lines = Vec::new();
    // Where nothing useful fits beside the other cells, the last goes below them.
    let longest = last.split(' ').map(columns).max().unwrap_or(0);
    let beside = width >= used + NARROWEST.max(longest);
    let indent = " ".repeat(if beside { used } else { 4.min(width / 4) });
    if !beside {
        lines.push(std::mem::replace(&mut start, indent.clone()));
    }
    let room = width.saturating_sub(indent.len()).max(1);
    for part in wrapped(last.split(' '), room, room) {
        lines.push(std::mem::replace(&mut start, indent.clone()) + &part);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(width: usize) -> String {
        let mut table = Table::default();
        table.row(["a", "1.5 GB", "from one file of some length"]);
        table.row(["longer", "2 B", "x"]);
        table.row(["a heading that is longer than any cell"]);
        table.text(width)
    }

    #[test]
    fn columns_begin_below_each_other() {
        let wide = "a       1.5 GB  from one file of some length\n\
                    longer  2 B     x\n\
                    a heading that is longer than any cell\n";
        assert_eq!(table(usize::MAX), wide);
        assert_eq!(table(44), wide);
    }

    #[test]
    fn the_last_cell_is_wrapped_beneath_itself() {
        assert_eq!(
            table(40),
            "a       1.5 GB  from one file of some\n                length\n\
             longer  2 B     x\n\
             a heading that is longer than any cell\n"
        );
    }

    #[test]
    fn narrow_terminals_have_it_below() {
        let narrow = table(20);
        assert!(narrow.starts_with("a       1.5 GB\n    from one file of\n    some length\n"));
        for width in 0..60 {
            for line in table(width).lines().filter(|_| width >= 16) {
                assert!(columns(line) <= width, "{width}: {line:?}");
            }
        }
    }
}
