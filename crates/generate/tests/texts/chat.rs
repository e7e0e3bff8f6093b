//! A conversation: each answer is that of a new run over all of it, and only what is new of it is
//! run.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::conversations::{
    DYNAMIC, LLAMA, STATES, WINDOW, WINDOWS, checkpoint, options, pipeline, session, template,
};
use outsize_generate::{ChatMessage, ChatOptions, Finish, Request, Tokenizer, generate};
use outsize_models::{CacheOptions, WhenFull};

const SAID: [&str; 5] = ["Hello", "What is it?", "Why?", "Tell me more of it, please", "Bye"];

#[test]
fn answers_are_those_of_a_new_run_and_take_fewer_tokens() {
    let slide = CacheOptions { when_full: WhenFull::Slide, ..CacheOptions::new(40) };
    let snapshot = CacheOptions { snapshot: true, ..CacheOptions::new(400) };
    // An answer of random words and bytes is other tokens when it is read again, and neither window
    // nor state goes back without a snapshot.
    let cases = [
        (LLAMA, CacheOptions::new(400), true),
        (LLAMA, snapshot, true),
        // Drafts that are wrong are run, too.
        (LLAMA, CacheOptions { draft_tokens: 4, ..snapshot }, false),
        (WINDOWS, CacheOptions { draft_tokens: 4, ..snapshot }, false),
        (DYNAMIC, CacheOptions::new(400), false),
        (WINDOW, CacheOptions::new(400), false),
        (WINDOW, snapshot, false),
        (WINDOWS, CacheOptions::new(400), false),
        (WINDOWS, snapshot, true),
        (STATES, CacheOptions::new(400), false),
        (STATES, snapshot, true),
        (LLAMA, slide, false),
    ];
    for (config, cache, saves) in cases {
        let (_dir, folder) = checkpoint(config);
        let mut chat = session(&folder, cache, None);
        let tokenizer = Tokenizer::open(&folder).unwrap();
        let mut fresh = pipeline(&folder, CacheOptions { draft_tokens: 0, ..cache }, None);
        let (run, run_fresh) = (chat.pipeline().watch_tokens(), fresh.watch_tokens());
        for said in SAID {
            let mut shown = String::new();
            let answer = chat.answer(said, &options(), |part| {
                shown.push_str(part);
                ControlFlow::Continue(())
            });
            let answer = answer.unwrap();
            assert_eq!(shown, answer.outcome.text);

            // The same conversation at once.
            let messages = chat.messages();
            let prompt = template().render(&messages[..messages.len() - 1], true).unwrap();
            let ids = tokenizer.encode(&prompt, false).unwrap();
            assert_eq!(answer.prompt_tokens, ids.len());
            let ChatOptions { eos, sampling, .. } = options();
            let request = Request { ids, max_new_tokens: 9, eos, sampling };
            fresh.clear();
            let expected = generate(&mut fresh, &request, |_| ControlFlow::Continue(())).unwrap();
            let found = &answer.outcome.outcome;
            assert_eq!((&found.tokens, found.finish), (&expected.tokens, expected.finish));
            assert_eq!(messages.last().unwrap().content, answer.outcome.text);
        }
        assert_eq!(chat.messages().len(), 2 * SAID.len());
        // Sliding, a text saves where it has not slid yet.
        if saves || cache.when_full == WhenFull::Refuse && cache.draft_tokens == 0 {
            assert_eq!(run() * 3 < run_fresh() * 2, saves, "{} of {}", run(), run_fresh());
        }
    }
}

#[test]
fn another_conversation_keeps_what_it_begins_with() {
    let (_dir, folder) = checkpoint(LLAMA);
    let mut chat = session(&folder, CacheOptions::new(400), None);
    let system = vec![ChatMessage::new("system", "You are a model of few words, and of no names.")];
    let go_on = |_: &str| ControlFlow::Continue(());
    chat.set_messages(system.clone()).unwrap();
    let first = chat.answer("Hello", &options(), go_on).unwrap();
    assert_eq!(first.reused_tokens, 0);
    chat.set_messages(system).unwrap();
    let again = chat.answer("Hello", &options(), go_on).unwrap();
    assert_eq!(again.outcome.text, first.outcome.text);
    // All but the last token, whose logits are wanted.
    assert_eq!(again.reused_tokens, again.prompt_tokens - 1);
    chat.set_messages(Vec::new()).unwrap();
    let other = chat.answer("Hello", &options(), go_on).unwrap();
    assert!(other.reused_tokens < 10);
}

#[test]
fn a_full_context_and_an_interrupt_leave_the_conversation() {
    let (_dir, folder) = checkpoint(LLAMA);
    let stop = Arc::new(AtomicBool::new(false));
    let mut chat = session(&folder, CacheOptions::new(60), Some(stop.clone()));
    let mut calm = session(&folder, CacheOptions::new(60), None);
    let go_on = |_: &str| ControlFlow::Continue(());

    // Before the answer has begun: nothing was said.
    stop.store(true, Ordering::Relaxed);
    let answer = chat.answer("Hello", &options(), go_on).unwrap();
    assert_eq!((answer.outcome.outcome.finish, chat.messages().len()), (Finish::Stopped, 0));
    stop.store(false, Ordering::Relaxed);

    // In the middle of it, by a pass that ends and by the caller: what there is counts.
    let mut parts = 0;
    let halted = chat.answer("Hello", &options(), |_| {
        parts += 1;
        stop.store(parts == 4, Ordering::Relaxed);
        ControlFlow::Continue(())
    });
    stop.store(false, Ordering::Relaxed);
    let halted = halted.unwrap();
    assert_eq!(halted.outcome.outcome.finish, Finish::Stopped);
    let whole = calm.answer("Hello", &options(), go_on).unwrap();
    assert!(whole.outcome.text.starts_with(&halted.outcome.text));
    assert!(!halted.outcome.text.is_empty() && whole.outcome.text != halted.outcome.text);
    assert_eq!(chat.messages().len(), 2);

    // What is said next is answered as in a session that was never interrupted.
    calm.set_messages(chat.messages().to_vec()).unwrap();
    let [next, calm_next] =
        [&mut chat, &mut calm].map(|chat| chat.answer("Why?", &options(), go_on).unwrap());
    assert_eq!(next.outcome.text, calm_next.outcome.text);

    // Longer than the context: an error that says what to do, and the conversation as it was.
    let messages = chat.messages().to_vec();
    let long = "word ".repeat(60);
    let error = chat.answer(long, &options(), go_on).unwrap_err().to_string();
    assert!(error.contains("begin the conversation anew"), "{error}");
    assert_eq!(chat.messages(), messages);
    chat.set_messages(Vec::new()).unwrap();
    chat.answer("Hello", &options(), go_on).unwrap();

    // An answer that fills it.
    chat.set_messages(Vec::new()).unwrap();
    let free = ChatOptions { max_new_tokens: None, eos: Vec::new(), ..options() };
    let full = chat.answer("Hello", &free, go_on).unwrap();
    assert_eq!(full.outcome.outcome.finish, Finish::Context);
    assert_eq!(full.prompt_tokens + full.outcome.outcome.tokens.len(), 60);
}
