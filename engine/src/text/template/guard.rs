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
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error};

use super::budget::{self, Budget, too_much};
use super::made;

/// Times that a text or list may be repeated by numbers that stand in the template.
const MAX_REPEATS: u64 = 1000;

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
    /// Those of the syntax; a template that has its constants repeated too often.
    pub(super) fn compile(name: &'a str, source: &'a str) -> Result<Self, Error> {
        check_repeats(source)?;
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

/// Constants are computed when a template is compiled, so what would repeat them is looked for before.
fn check_repeats(source: &str) -> Result<(), Error> {
    let (mut repeats, mut has_times, mut has_values) = (1u64, false, false);
    for token in tokenize(source, false, Default::default(), WHITESPACE) {
        match token?.0 {
            Token::VariableStart | Token::BlockStart => (repeats, has_times, has_values) = (1, false, false),
            Token::Mul => has_times = true,
            Token::Str(_) | Token::String(_) | Token::BracketOpen => has_values = true,
            Token::Int(number) => repeats = repeats.saturating_mul(number.max(1)),
            Token::Int128(_) => repeats = u64::MAX,
            Token::VariableEnd | Token::BlockEnd if has_times && has_values && repeats > MAX_REPEATS => {
                return Err(too_much(
                    "the template repeats a text or a list more often than a prompt can need",
                ));
            }
            _ => {}
        }
    }
    Ok(())
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

/// What stands for one instruction.
fn guard(instruction: Instruction<'_>) -> Vec<Instruction<'_>> {
    use Instruction::{
        Add, ApplyFilter, BuildList, BuildMap, CallFunction, DiscardTop, Emit, EmitRaw, LoadConst, Mul, Rem,
        SetAttr, Slice, StringConcat,
    };
    let call = |name: &'static str, num_args: u16| CallFunction(name, Some(num_args));
    match instruction {
        EmitRaw(text) => vec![LoadConst(Value::from(text)), Emit],
        StringConcat => vec![call(made::CONCAT, 2)],
        Add => vec![call(made::ADD, 2)],
        Mul => vec![call(made::MUL, 2)],
        Rem => vec![call(made::REM, 2)],
        Slice => vec![Slice, call(made::PAID, 1)],
        SetAttr(name) => vec![LoadConst(Value::from(name)), call(made::STORE, 3), DiscardTop],
        BuildList(Some(len)) if len <= usize::from(u16::MAX) => vec![call(made::LIST, len as u16)],
        BuildMap(len) if 2 * len <= usize::from(u16::MAX) => vec![call(made::MAP, 2 * len as u16)],
        ApplyFilter(name, num_args, place) => match made::filter(name) {
            Some(function) => vec![CallFunction(function, num_args)],
            None => vec![ApplyFilter(name, num_args, place)],
        },
        other => vec![other],
    }
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
