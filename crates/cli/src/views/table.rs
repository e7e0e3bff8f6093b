//! Text in columns, for terminals of any width and for pipes.

use console::measure_text_width;
use std::io::IsTerminal;

/// The narrowest that a column of text becomes.
const NARROWEST: usize = 24;

/// Columns of standard output: those of the terminal, or as many as there is text.
pub fn width() -> usize {
    match std::io::stdout().is_terminal() {
        true => usize::from(console::Term::stdout().size().1),
        false => usize::MAX,
    }
}

/// Rows of cells as lines of at most `width` columns: cells of a column begin below each other, and
/// the last cell of a row is wrapped beneath itself.
pub fn lines(rows: &[Vec<String>], width: usize) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                // The last cell of a row pushes nothing aside.
                .filter(|row| column + 1 < row.len())
                .map(|row| measure_text_width(&row[column]))
                .max()
                .unwrap_or(0)
        })
        .collect();
    rows.iter().flat_map(|row| line(row, &widths, width)).collect()
}

/// Pads the cells of some columns on their left, so that they end below each other.
pub fn align_right(rows: &mut [Vec<String>], columns: &[usize]) {
    for &column in columns {
        let cells = || rows.iter().filter_map(|row| row.get(column));
        let width = cells().map(|cell| measure_text_width(cell)).max();
        for cell in rows.iter_mut().filter_map(|row| row.get_mut(column)) {
            let gap = width.unwrap_or(0) - measure_text_width(cell);
            cell.insert_str(0, &" ".repeat(gap));
        }
    }
}

fn line(row: &[String], widths: &[usize], width: usize) -> Vec<String> {
    let Some((last, cells)) = row.split_last() else {
        return vec![String::new()];
    };
    let mut start = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        let gap = width.saturating_sub(measure_text_width(cell)) + 2;
        start += cell;
        start.extend(std::iter::repeat_n(' ', gap));
    }
    let used = measure_text_width(&start);
    if used + measure_text_width(last) <= width {
        return vec![(start + last).trim_end().to_string()];
    }
    // Where nothing useful fits beside the other cells, the last goes below them.
    let beside = width >= used + NARROWEST;
    let indent = if beside { used } else { 4.min(width / 4) };
    let mut lines = Vec::new();
    if !beside {
        lines.push(std::mem::take(&mut start).trim_end().to_string());
        start.extend(std::iter::repeat_n(' ', indent));
    }
    for part in wrapped(last, width.saturating_sub(indent).max(1)) {
        let begin = match start.is_empty() {
            true => " ".repeat(indent),
            false => std::mem::take(&mut start),
        };
        lines.push(begin + &part);
    }
    lines
}

/// Words in lines of at most `width` columns; a longer word has a line of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if measure_text_width(line) + 1 + measure_text_width(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(width: usize) -> String {
        let row = |cells: &[&str]| cells.iter().map(|cell| cell.to_string()).collect();
        let rows = [
            row(&["a", "1.5 GB", "from one file of some length"]),
            row(&["longer", "2 B", "x"]),
            row(&["a heading that is longer than any cell"]),
            row(&[]),
        ];
        lines(&rows, width).join("\n")
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
                assert!(measure_text_width(line) <= width, "{width}: {line:?}");
            }
        }
    }
}
