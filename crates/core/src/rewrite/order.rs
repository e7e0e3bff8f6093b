//! Values of rows that change places.

/// Weights `[rows, columns]` as one `[columns, rows · weights]`, with their rows in turns.
pub(super) fn in_turns(weights: &[Vec<u8>], rows: usize, size: usize) -> Vec<u8> {
    let all: usize = weights.iter().map(Vec::len).sum();
    let columns = weights[0].len() / (rows * size).max(1);
    let mut to = Vec::with_capacity(all);
    for column in 0..columns {
        for row in 0..rows {
            let at = (row * columns + column) * size;
            weights.iter().for_each(|weight| to.extend_from_slice(&weight[at..at + size]));
        }
    }
    to
}

/// Of each row the columns of heads 0, `groups`, 2 · `groups` …, and then those of heads 1,
/// `groups` + 1 …
pub(super) fn grouped(bytes: &[u8], rows: usize, heads: usize, groups: usize) -> Vec<u8> {
    let head = bytes.len() / (rows * heads).max(1);
    let order = (0..groups).flat_map(|group| (group..heads).step_by(groups));
    let all = (0..rows).flat_map(|row| order.clone().map(move |from| row * heads + from));
    all.flat_map(|from| &bytes[from * head..][..head]).copied().collect()
}

/// Rows 0, 2, 4 … of each head, and then rows 1, 3, 5 …
pub(super) fn halves(bytes: &[u8], rows: usize, head: usize) -> Vec<u8> {
    let row = bytes.len() / rows.max(1);
    let order = (0..rows).map(|to| {
        let (head_start, within) = (to / head * head, to % head);
        head_start + 2 * (within % (head / 2)) + within / (head / 2)
    });
    order.flat_map(|from| &bytes[from * row..][..row]).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_in_turns_go_to_their_groups() {
        let rows = [1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16];
        assert_eq!(grouped(&rows, 2, 6, 2), [1, 3, 5, 2, 4, 6, 11, 13, 15, 12, 14, 16]);
        assert_eq!(grouped(&rows, 1, 6, 3), [1, 2, 11, 12, 3, 4, 13, 14, 5, 6, 15, 16]);
    }

    #[test]
    fn rows_in_turns_are_columns() {
        let weights = [vec![1, 2, 3, 4, 5, 6], vec![11, 12, 13, 14, 15, 16]];
        assert_eq!(in_turns(&weights, 2, 1), [1, 11, 4, 14, 2, 12, 5, 15, 3, 13, 6, 16]);
        assert_eq!(in_turns(&weights, 3, 2), [1, 2, 11, 12, 3, 4, 13, 14, 5, 6, 15, 16]);
    }

    #[test]
    fn neighbours_go_to_halves() {
        let rows: Vec<u8> = (0..16).collect();
        let wanted = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15];
        assert_eq!(halves(&rows, 8, 4), wanted);
    }
}
