//! An adapter's matrices for the parameter that has the matrices of all experts of a layer.

use outsize_models::ExpertStack;

use crate::LoraTarget;

/// The shapes of both matrices for all experts, in the order of their names. An expert has `rank`
/// rows beside each other of the first, and every so many columns of the second as there are
/// experts.
pub(crate) fn shapes(target: &LoraTarget, stack: &ExpertStack) -> [[usize; 2]; 2] {
    let (rank, inputs) = (stack.experts * target.rank, target.shape[1]);
    match stack.mistaken {
        false => [[rank, inputs], [stack.height, rank]],
        true => [[rank, stack.height], [inputs, rank]],
    }
}

/// Which of both `[rank, in]` of one is in, and which `[out, rank]`.
pub(crate) fn sources(stack: Option<&ExpertStack>) -> [usize; 2] {
    match stack {
        Some(stack) if stack.mistaken => [1, 0],
        _ => [0, 1],
    }
}

/// Those of one, `[rank, in]` and `[out, rank]`, from the bytes of both for all, in elements of so
/// many bytes.
pub(crate) fn of_expert(
    target: &LoraTarget,
    stack: &ExpertStack,
    all: [(&[u8], usize); 2],
) -> [Vec<u8>; 2] {
    let (rank, [out, inputs]) = (target.rank, target.shape);
    let [first_shape, second_shape] = shapes(target, stack);
    let element = |which: usize, row: usize, column: usize| {
        let (bytes, size) = all[which];
        let at = (row * [first_shape, second_shape][which][1] + column) * size;
        &bytes[at..at + size]
    };
    let of_first = |at: usize, column: usize| element(0, stack.expert * rank + at, column);
    let of_second = |row: usize, at: usize| element(1, row, at * stack.experts + stack.expert);
    let mut down = Vec::new();
    let mut up = Vec::new();
    for at in 0..rank {
        for input in 0..inputs {
            down.extend_from_slice(match stack.mistaken {
                false => of_first(at, input),
                true => of_second(input, at),
            });
        }
    }
    for row in (stack.first..).step_by(stack.step).take(out) {
        for at in 0..rank {
            up.extend_from_slice(match stack.mistaken {
                false => of_second(row, at),
                true => of_first(at, row),
            });
        }
    }
    [down, up]
}
