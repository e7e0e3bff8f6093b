//! What the software that Z-Image was published for calls the modules of its transformer: some of
//! them are one matrix there.

use super::rows::Rows;

/// Queries, keys and values, which are one matrix.
const JOINED: [&str; 3] = ["to_q", "to_k", "to_v"];

/// The published name of the module that diffusers calls `module`, of so many outputs, and its rows
/// there.
pub(crate) fn published(module: &str, outputs: usize) -> (String, Rows) {
    let whole = |name: String| (name, Rows::all(outputs));
    for layer in ["x_embedder", "final_layer"] {
        // By the size of a token, of which there is one.
        if let Some(rest) = module.strip_prefix(&format!("all_{layer}.2-1")) {
            return whole(format!("{layer}{rest}"));
        }
    }
    let Some((block, layer)) = module.split_once(".attention.") else {
        return whole(module.to_owned());
    };
    match layer {
        "to_out.0" => whole(format!("{block}.attention.out")),
        "norm_q" => whole(format!("{block}.attention.q_norm")),
        "norm_k" => whole(format!("{block}.attention.k_norm")),
        layer => match JOINED.iter().position(|one| *one == layer) {
            Some(index) => {
                (format!("{block}.attention.qkv"), Rows::part(index, JOINED.len(), outputs))
            }
            None => whole(module.to_owned()),
        },
    }
}
