//! A template's program, with every instruction that makes values replaced by a function that pays for them.
//!
//! The library bounds the steps of a rendering and not what each makes, so that `{% set ns.a = ns.a ~ ns.a %}` in a loop
//! ends the process. Its instructions can be looked at and changed, however; this rests on its `unstable_machinery`, which
//! is why the workspace names one minor version.

use std::collections::BTreeMap;

use minijinja::machinery::{
    CodeGenerator, Instruction, Instructions, Token, Vm, WhitespaceConfig, make_string_output, parse,
    tokenize,
};
use minijinja::value::{Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error};

use super::budget::{self, Budget, too_much};
use super::made;

/// Times that a text or list may be repeated by numbers that stand in the template.
const MAX_REPEATS: u64 = 1000;
/// Bytes that all the repeated constants of a template may come to.
const MAX_REPEATED_BYTES: u64 = 16 << 20;
/// Bytes of a constant, beside those of its text.
const CONSTANT_BYTES: u64 = 24;

/// Signs of an expression, and branches of a template, that may hang on one another: parsing and dropping them recurses.
const MAX_CHAIN: usize = 1000;

const WHITESPACE: WhitespaceConfig =
    WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };

/// A template that can be rendered within a budget.
pub(super) struct Program<'a> {
    main: Instructions<'a>,
    blocks: BTreeMap<&'a str, Instructions<'a>>,
}

impl<'a> Program<'a> {
    /// Compiles a template.
    ///
    /// # Errors
    ///
    /// Those of the syntax; a template that has its constants repeated too often, or expressions that no stack bears.
    pub(super) fn compile(name: &'a str, source: &'a str) -> Result<Self, Error> {
        check_tokens(source)?;
        let tree = parse(source, name, Default::default(), WHITESPACE)?;
        let mut generator = CodeGenerator::new(name, source);
        generator.compile_stmt(&tree);
        let (main, blocks) = generator.finish();
        let blocks = blocks.into_iter().map(|(name, block)| (name, guarded(&block))).collect();
        Ok(Self { main: guarded(&main), blocks })
    }

    /// Renders it. The environment has the functions of [`made::add_to`].
    pub(super) fn render(
        &self,
        environment: &'a Environment<'a>,
        mut variables: Vec<(String, Value)>,
        budget: Budget,
    ) -> Result<String, Error> {
        variables.push((budget::VARIABLE.to_owned(), Value::from_object(budget)));
        let mut text = String::new();
        let mut output = make_string_output(&mut text);
        let root = Value::from_iter(variables);
        Vm::new(environment).eval(&self.main, root, &self.blocks, &mut output, AutoEscape::None)?;
        Ok(text)
    }
}

/// Looks for what cannot be bounded later: constants are computed when a template is compiled, and chains of signs are
/// trees as deep as they are long before that.
fn check_tokens(source: &str) -> Result<(), Error> {
    let (mut repeats, mut chain, mut num_branches, mut sum) = (Repeats::default(), 0, 0, 0u64);
    for token in tokenize(source, false, Default::default(), WHITESPACE) {
        match token?.0 {
            Token::VariableStart | Token::BlockStart => (repeats, chain) = (Repeats::default(), 0),
            Token::VariableEnd | Token::BlockEnd => sum = sum.saturating_add(repeats.made()?),
            token => {
                repeats.read(&token);
                chain += usize::from(may_deepen(&token));
                num_branches += usize::from(matches!(token, Token::Ident("elif")));
            }
        }
        if chain > MAX_CHAIN || num_branches > MAX_CHAIN {
            let message =
                format!("an expression has more than {MAX_CHAIN} signs, or the template as many branches");
            return Err(too_much(&message));
        }
    }
    if sum > MAX_REPEATED_BYTES {
        return Err(too_much("the template repeats more constants than a prompt can need"));
    }
    Ok(())
}

/// Whether what stands behind a sign may hang on what stands before it. Long lists of constants do not.
fn may_deepen(token: &Token<'_>) -> bool {
    !matches!(
        token,
        Token::TemplateData(_)
            | Token::Comma
            | Token::Colon
            | Token::Str(_)
            | Token::String(_)
            | Token::Int(_)
            | Token::Int128(_)
            | Token::Float(_)
    )
}

/// What the constants of an expression may be repeated to.
struct Repeats {
    times: u64,
    num_bytes: u64,
    has_times: bool,
    has_values: bool,
}

impl Default for Repeats {
    fn default() -> Self {
        Self { times: 1, num_bytes: 0, has_times: false, has_values: false }
    }
}

impl Repeats {
    fn read(&mut self, token: &Token<'_>) {
        let len = match token {
            Token::Str(text) => text.len(),
            Token::String(text) => text.len(),
            _ => 0,
        };
        self.num_bytes = self.num_bytes.saturating_add(len as u64 + CONSTANT_BYTES);
        match token {
            Token::Mul => self.has_times = true,
            Token::Str(_) | Token::String(_) | Token::BracketOpen => self.has_values = true,
            Token::Int(number) => self.times = self.times.saturating_mul((*number).max(1)),
            Token::Int128(_) => self.times = u64::MAX,
            _ => {}
        }
    }

    /// Bytes at most.
    fn made(&self) -> Result<u64, Error> {
        match self.has_times && self.has_values {
            false => Ok(0),
            true if self.times > MAX_REPEATS => {
                Err(too_much("the template repeats a text or a list more often than a prompt can need"))
            }
            true => Ok(self.times.saturating_mul(self.num_bytes)),
        }
    }
}

/// The same program with other instructions for those that make values.
fn guarded<'a>(program: &Instructions<'a>) -> Instructions<'a> {
    let mut replaced: Vec<Vec<Instruction<'a>>> = Vec::with_capacity(program.len());
    for place in 0..program.len() as u32 {
        let instruction = program.get(place).expect("the place is within the program");
        replaced.push(guard(instruction.clone()));
    }
    // Where each instruction begins now, and the end.
    let mut starts = vec![0];
    starts.extend(replaced.iter().scan(0, |next, instructions| {
        *next += instructions.len() as u32;
        Some(*next)
    }));
    let mut guarded = Instructions::new(program.name(), program.source());
    for (place, instructions) in replaced.into_iter().enumerate() {
        let span = program.get_span(place as u32);
        for instruction in instructions {
            let instruction = redirected(instruction, &starts);
            match (span, program.get_line(place as u32)) {
                (Some(span), _) => guarded.add_with_span(instruction, span),
                (None, Some(line)) => guarded.add_with_line(instruction, line as u16),
                (None, None) => guarded.add(instruction),
            };
        }
    }
    guarded
}

/// What stands for one instruction. In front of those that may take long and make nothing stands a look at the clock.
fn guard(instruction: Instruction<'_>) -> Vec<Instruction<'_>> {
    use Instruction::{
        Add, ApplyFilter, BuildList, BuildMap, CallFunction, CallMethod, CallObject, CompareAndPreserve,
        DiscardTop, Div, Emit, EmitRaw, Eq, FastRecurse, GetItem, Gt, Gte, In, IntDiv, Iterate, LoadConst,
        Lt, Lte, Mul, Ne, PerformTest, PushLoop, Rem, SetAttr, Slice, StringConcat, UnpackList, UnpackLists,
    };
    let call = |name: &'static str, num_args: u16| CallFunction(name, Some(num_args));
    let timed = |instruction| vec![call(made::TICK, 0), DiscardTop, instruction];
    match instruction {
        EmitRaw(text) => vec![LoadConst(Value::from(text)), Emit],
        StringConcat => vec![call(made::CONCAT, 2)],
        Add => vec![call(made::ADD, 2)],
        Mul => vec![call(made::MUL, 2)],
        Rem => vec![call(made::REM, 2)],
        Div => vec![call(made::DIV, 2)],
        IntDiv => vec![call(made::INT_DIV, 2)],
        // What the compiler makes of a constant over zero.
        LoadConst(value) if is_no_number(&value) => {
            vec![LoadConst(Value::from(1)), LoadConst(Value::from(0)), call(made::DIV, 2)]
        }
        Slice => [timed(Slice), vec![call(made::PAID, 1)]].concat(),
        SetAttr(name) => vec![LoadConst(Value::from(name)), call(made::STORE, 3), DiscardTop],
        BuildList(Some(len)) if len <= usize::from(u16::MAX) => vec![call(made::LIST, len as u16)],
        BuildMap(len) if 2 * len <= usize::from(u16::MAX) => vec![call(made::MAP, 2 * len as u16)],
        ApplyFilter(name, num_args, place) => match made::filter(name) {
            Some(function) => vec![CallFunction(function, num_args)],
            None => timed(ApplyFilter(name, num_args, place)),
        },
        CallFunction(..)
        | CallMethod(..)
        | CallObject(_)
        | FastRecurse
        | PerformTest(..)
        | PushLoop(_)
        | Iterate(_)
        | GetItem
        | UnpackList(_)
        | UnpackLists(_)
        | In
        | CompareAndPreserve(_)
        | Eq
        | Ne
        | Gt
        | Gte
        | Lt
        | Lte => timed(instruction),
        other => vec![other],
    }
}

fn is_no_number(value: &Value) -> bool {
    value.kind() == ValueKind::Number && f64::try_from(value.clone()).is_ok_and(|number| !number.is_finite())
}

/// The instruction, with the place that it leads to where it is now.
fn redirected<'a>(instruction: Instruction<'a>, starts: &[u32]) -> Instruction<'a> {
    use Instruction::{BuildMacro, Iterate, Jump, JumpIfFalse, JumpIfFalseOrPop, JumpIfTrueOrPop};
    let to = |place: u32| starts.get(place as usize).copied().unwrap_or(place);
    match instruction {
        Iterate(place) => Iterate(to(place)),
        Jump(place) => Jump(to(place)),
        JumpIfFalse(place) => JumpIfFalse(to(place)),
        JumpIfFalseOrPop(place) => JumpIfFalseOrPop(to(place)),
        JumpIfTrueOrPop(place) => JumpIfTrueOrPop(to(place)),
        BuildMacro(name, place, flags) => BuildMacro(name, to(place), flags),
        other => other,
    }
}
