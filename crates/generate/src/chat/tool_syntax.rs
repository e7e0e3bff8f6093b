//! Which marks a model puts around its calls of functions, told from its chat template.

/// How calls are written behind a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolForm {
    /// `{"name": …, "arguments": …}`, or a list of such.
    Json,
    /// JSON, `<function=` or `NAME<arg_key>…</arg_key><arg_value>…</arg_value>…</tool_call>`.
    Tagged,
    /// `<function=NAME><parameter=KEY>VALUE</parameter>…</function>`.
    Function,
    /// `<invoke name="NAME"><parameter name="KEY">VALUE</parameter>…</invoke>`.
    Invoke,
    /// A list as JSON, or `NAME[CALL_ID]ID[ARGS]{…}`.
    Mistral,
    /// Marks of DeepSeek around the name and the arguments.
    DeepSeek,
    /// Marks of Kimi K2 around the id, in which the name is, and the arguments.
    Kimi,
    /// A list of `{NAME: {…}}` as JSON: Apertus.
    Named,
    /// The end of calls: nothing of its own.
    End,
}

/// Marks, and what is behind them. Of several that begin at the same place the first is taken.
const MARKS: &[(&str, ToolForm)] = &[
    ("<tool_call>", ToolForm::Tagged),
    ("</tool_call>", ToolForm::End),
    ("<function=", ToolForm::Function),
    ("<minimax:tool_call>", ToolForm::Invoke),
    ("</minimax:tool_call>", ToolForm::End),
    ("<invoke name=", ToolForm::Invoke),
    ("[TOOL_CALLS]", ToolForm::Mistral),
    (GRANITE.0, ToolForm::Json),
    ("<|tools_prefix|>", ToolForm::Named),
    ("<|tools_suffix|>", ToolForm::End),
    ("<|START_ACTION|>", ToolForm::Json),
    ("<|END_ACTION|>", ToolForm::End),
    ("<TOOLCALL>", ToolForm::Json),
    ("</TOOLCALL>", ToolForm::End),
    ("<tool_calls>", ToolForm::Json),
    ("</tool_calls>", ToolForm::End),
    ("<|python_tag|>", ToolForm::Json),
    ("<｜tool▁calls▁begin｜>", ToolForm::DeepSeek),
    (DEEPSEEK.begin, ToolForm::DeepSeek),
    (DEEPSEEK.end, ToolForm::End),
    ("<｜tool▁calls▁end｜>", ToolForm::End),
    ("<|tool_calls_section_begin|>", ToolForm::Kimi),
    (KIMI.begin, ToolForm::Kimi),
    (KIMI.end, ToolForm::End),
    ("<|tool_calls_section_end|>", ToolForm::End),
];

/// The mark of Granite and Phi 4, and what ends a list of the latter: templates leave that to the
/// model.
const GRANITE: (&str, (&str, ToolForm)) = ("<|tool_call|>", ("<|/tool_call|>", ToolForm::End));

/// Before the id of a call of Mistral's models.
pub(super) const CALL_ID: &str = "[CALL_ID]";

/// Before the arguments of a call of Mistral's models.
pub(super) const ARGS: &str = "[ARGS]";

/// The marks of one call.
pub(super) struct CallMarks {
    pub begin: &'static str,
    /// Between the name and the arguments.
    pub middle: &'static str,
    pub end: &'static str,
}

/// Those of DeepSeek.
pub(super) const DEEPSEEK: CallMarks = CallMarks {
    begin: "<｜tool▁call▁begin｜>",
    middle: "<｜tool▁sep｜>",
    end: "<｜tool▁call▁end｜>",
};

/// Those of Kimi K2.
pub(super) const KIMI: CallMarks = CallMarks {
    begin: "<|tool_call_begin|>",
    middle: "<|tool_call_argument_begin|>",
    end: "<|tool_call_end|>",
};

/// The marks of a model's calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolSyntax {
    pub marks: Vec<(&'static str, ToolForm)>,
    /// Whether an answer that is a JSON object may be a call, without any mark: Llama 3 and 4.
    pub is_bare: bool,
}

impl ToolSyntax {
    /// Those that a chat template writes or tells the model to write. A model of a template without
    /// any makes no calls.
    pub fn of_template(source: &str) -> Self {
        let is_bare = source.contains("\"parameters\": ") && source.contains("header");
        let mut marks: Vec<_> =
            MARKS.iter().filter(|(mark, _)| source.contains(mark)).copied().collect();
        if marks.iter().all(|(_, form)| *form == ToolForm::End) {
            marks.clear();
        }
        if marks.iter().any(|(mark, _)| *mark == GRANITE.0) {
            marks.push(GRANITE.1);
        }
        Self { marks, is_bare }
    }

    /// Whether there is any.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty() && !self.is_bare
    }

    /// Tokens that have to be part of the text although they are special.
    pub fn tokens(&self) -> impl Iterator<Item = String> {
        let within = [CALL_ID, ARGS, DEEPSEEK.middle, KIMI.middle];
        self.marks.iter().map(|(mark, _)| *mark).chain(within).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_say_which_marks_there_are() {
        let first = |source: &str| ToolSyntax::of_template(source).marks.first().copied();
        assert_eq!(first("plain </tool_call>"), None);
        assert_eq!(first("'\\n<tool_call>\\n{'"), Some(("<tool_call>", ToolForm::Tagged)));
        assert_eq!(first("[TOOL_CALLS]["), Some(("[TOOL_CALLS]", ToolForm::Mistral)));
        assert!(!ToolSyntax::of_template("\"parameters\": ").is_bare);
        assert!(ToolSyntax::of_template("<|start_header_id|> \"parameters\": ").is_bare);
    }
}
