//! The order of a matrix's rows, where the checkpoint has another one than transformers.

use burn::tensor::Tensor;

/// Rows as transformers has them, in two halves of each head, as a checkpoint has them that has
/// those beside each other that are rotated together: if it says how many rows a head has.
pub(crate) fn interleaved(matrix: Tensor<2>, head: Option<usize>) -> Tensor<2> {
    turned(matrix, head, |head| [2, head / 2])
}

/// The way back.
pub(crate) fn in_halves(matrix: Tensor<2>, head: Option<usize>) -> Tensor<2> {
    turned(matrix, head, |head| [head / 2, 2])
}

/// Each head's rows as such a matrix of rows, turned.
fn turned(matrix: Tensor<2>, head: Option<usize>, shape: fn(usize) -> [usize; 2]) -> Tensor<2> {
    let [rows, columns] = matrix.dims();
    // Others are no heads, and the model's own weights are refused.
    let Some(head) = head.filter(|head| *head > 0 && head % 2 == 0 && rows % head == 0) else {
        return matrix;
    };
    let [above, below] = shape(head);
    let heads = matrix.reshape([rows / head, above, below, columns]);
    heads.swap_dims(1, 2).reshape([rows, columns])
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    #[test]
    fn halves_of_each_head_lie_beside_each_other() {
        let rows: Vec<f32> = [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15].map(|n| n as f32).into();
        let matrix =
            Tensor::<2>::from_data(TensorData::new(rows.clone(), [12, 1]), &Device::flex());
        let found = interleaved(matrix.clone(), Some(6));
        let wanted = [0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15].map(|n| n as f32);
        assert_eq!(found.to_data().try_to_vec::<f32>().unwrap(), wanted);
        let back = in_halves(found, Some(6)).into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(back, rows);
        assert_eq!(interleaved(matrix, None).into_data().try_to_vec::<f32>().unwrap(), rows);
    }
}
