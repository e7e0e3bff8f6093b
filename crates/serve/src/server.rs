//! The server: a thread for connections, and the caller's for the model.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use axum::Router;
use outsize_generate::{ChatOptions, ChatSession, EmbeddingPipeline};

use crate::access::Access;
use crate::embeddings;
use crate::queue::{LOOK, WAITING};
use crate::routes::{Shared, routes};
use crate::worker::{Served, work};

/// How long connections have to end by themselves when the server does.
const GRACE: Duration = Duration::from_secs(2);

/// How a model is served.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The name that clients ask for.
    pub model: String,
    /// The key that they must send, if any.
    pub api_key: Option<String>,
    /// How texts are generated, where requests do not say.
    pub defaults: ChatOptions,
    /// Whether answers may be constrained: there has to be
    /// [memory](outsize_generate::Tokenizer::constraint_memory) for that.
    pub constrains: bool,
}

/// How a model of embeddings is served.
#[derive(Debug, Clone)]
pub struct EmbeddingServerOptions {
    /// The name that clients ask for.
    pub model: String,
    /// The key that they must send, if any.
    pub api_key: Option<String>,
}

/// Why a server could not begin, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The system refused.
    #[error("cannot serve: {0}")]
    System(#[from] io::Error),
}

/// Answers requests at `listener` until `stop` is set, which ends the answer on its way. The model
/// runs on this thread. `observe` is told of each request that the model was asked for.
///
/// # Errors
/// The system refuses a thread or the socket.
pub fn serve(
    listener: TcpListener,
    session: &mut ChatSession,
    options: ServerOptions,
    stop: &Arc<AtomicBool>,
    observe: impl FnMut(Served<'_>),
) -> Result<(), ServeError> {
    let ServerOptions { model, api_key, defaults, constrains } = options;
    let vocab_size = session.pipeline().vocab_size();
    let (jobs, waiting) = sync_channel(WAITING);
    let access = Arc::new(Access { model, api_key });
    let shared =
        Shared { access, defaults, constrains, vocab_size, jobs, count: AtomicU64::new(0) };
    let run = move || work(session, &waiting, stop, observe);
    answer(listener, routes(Arc::new(shared)), stop, run)
}

/// Makes vectors of the texts of requests at `listener` until `stop` is set, as [`serve`] answers
/// them. `observe` is told how many texts and tokens were run together, or why a request was
/// refused.
///
/// # Errors
/// The system refuses a thread or the socket.
pub fn serve_embeddings(
    listener: TcpListener,
    pipe: &mut EmbeddingPipeline,
    options: EmbeddingServerOptions,
    stop: &Arc<AtomicBool>,
    observe: impl FnMut(Result<[usize; 2], &str>),
) -> Result<(), ServeError> {
    let EmbeddingServerOptions { model, api_key } = options;
    let (jobs, waiting) = sync_channel(WAITING);
    let access = Arc::new(Access { model, api_key });
    let router = embeddings::routes(&access, jobs);
    answer(listener, router, stop, || embeddings::work(pipe, waiting, stop, observe))
}

/// Answers at `listener` while `work` runs the model on this thread. What waits in it then is
/// dropped: its clients are told that the server ends.
fn answer(
    listener: TcpListener,
    router: Router,
    stop: &Arc<AtomicBool>,
    work: impl FnOnce(),
) -> Result<(), ServeError> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ends = stop.clone();
    let connections = std::thread::Builder::new().name("connections".into()).spawn(move || {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let ended = async |ends: Arc<AtomicBool>| {
                while !ends.load(Ordering::Relaxed) {
                    tokio::time::sleep(LOOK).await;
                }
            };
            let serving = axum::serve(listener, router);
            let serving = serving.with_graceful_shutdown(ended(ends.clone()));
            tokio::select! {
                served = serving.into_future() => served,
                // A client that stays connected does not keep the server.
                () = async { ended(ends).await; tokio::time::sleep(GRACE).await } => Ok(()),
            }
        })
    })?;
    work();
    match connections.join() {
        Ok(served) => Ok(served?),
        Err(_) => Err(io::Error::other("the thread of connections ended with a panic").into()),
    }
}
