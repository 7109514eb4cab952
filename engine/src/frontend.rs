//! What is done with a request before the engine sees it: checks, template, tokens, hashes. Runs on the caller's
//! thread, or on any other than the engine's.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use quire_executor::RowSampling;
use quire_kvcache::{BlockHashes, CacheSalt, Capacity, PrefixHasher};
use quire_scheduler::{NewSequence, TenantId, Time};

use crate::beam::{BeamSearchParams, CheckedBeams};
use crate::chat::ReasoningPlace;
use crate::checked::{CheckedParams, ParamLimits};
use crate::clock::Clock;
use crate::params::ParamError;
use crate::prompt::Prompt;
use crate::renderer::{PromptRenderer, RenderedPrompt};
use crate::request::{Request, RequestId};
use crate::seeds::Seeds;
use crate::structured::{GrammarCompiler, GrammarTicket, Thought};
use crate::text::Detokenizer;
use crate::text_length::TextLimit;
use crate::{Error, PromptError, Result};

/// Checks requests and turns them into what the scheduler and the device understand.
pub(crate) struct Frontend {
    pub(crate) grammars: GrammarCompiler,
    pub(crate) renderer: PromptRenderer,
    pub(crate) limits: ParamLimits,
    pub(crate) max_model_len: usize,
    pub(crate) capacity: Capacity,
    pub(crate) hasher: PrefixHasher,
    pub(crate) seeds: Seeds,
    pub(crate) clock: Clock,
}

/// A request that can run.
pub(crate) struct Prepared {
    pub(crate) id: RequestId,
    pub(crate) prompt: Option<String>,
    pub(crate) params: CheckedParams,
    pub(crate) sampling: RowSampling,
    pub(crate) sequence: NewSequence,
    pub(crate) beams: Option<CheckedBeams>,
    /// Nothing is to be generated.
    pub(crate) prompt_alone: bool,
    pub(crate) detokenizer: Box<dyn Detokenizer>,
    /// The form of its output, which may be on its way still.
    pub(crate) grammar: Option<GrammarTicket>,
}

impl Prepared {
    /// Sequences that it runs as, the prompt computed.
    pub(crate) fn num_seqs(&self) -> usize {
        self.beams.as_ref().map_or(self.params.n() as usize, |beams| beams.width)
    }

    /// Waits for the form of its output.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub(crate) fn with_grammar(self) -> Result<Self> {
        self.grammar.as_ref().map(GrammarTicket::wait).transpose()?;
        Ok(self)
    }
}

/// A request's place among others: equal times are told apart by the order in which requests are handed on.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    time: Time,
    /// For a request that names none; none where it is drawn once the request is found right.
    seed: Option<u64>,
}

impl Frontend {
    /// Checks a request and prepares it.
    ///
    /// # Errors
    ///
    /// All that is wrong with it. A panic in a template or a tokenizer is an error of this request alone.
    pub(crate) fn prepare(&self, request: Request) -> Result<Prepared> {
        self.prepare_as(Arrival { time: self.clock.now(), seed: None }, request)
    }

    /// Requests that come together, in their order: prepared by whichever thread, they are served in this order and have
    /// the same seeds each time.
    pub(crate) fn arrivals(&self, num_requests: usize) -> Vec<Arrival> {
        let time = self.clock.now();
        (0..num_requests).map(|_| Arrival { time, seed: Some(self.seeds.draw()) }).collect()
    }

    /// [`prepare`](Self::prepare) for one of several.
    pub(crate) fn prepare_as(&self, arrival: Arrival, request: Request) -> Result<Prepared> {
        tracing::debug!(target: "quire::engine", request_id = %request.id, "arrived");
        guarded("preparing the request", || self.try_prepare(request, arrival))
    }

    /// Checks a request; it comes back with its prompt as tokens. Draws no seed, so that those drawn later are the
    /// same with and without a check before.
    pub(crate) fn check(&self, mut request: Request) -> Result<Request> {
        guarded("checking the request", || {
            let (params, _) = self.check_params(&request)?;
            let token_ids = self.tokenize_within(request.prompt, &params, request.prompt_alone)?.token_ids;
            self.check_length(&token_ids, usize::from(!request.prompt_alone))?;
            if !request.prompt_alone {
                self.check_min_tokens(&params, token_ids.len())?;
            }
            self.grammar(&params, &token_ids)?.map(|grammar| grammar.wait()).transpose()?;
            request.prompt = Prompt::TokenIds(token_ids);
            Ok(request)
        })
    }

    /// The tokens of a prompt, as a request with it would have them; none where it is an empty text.
    pub(crate) fn tokenize(&self, prompt: Prompt, limit: TextLimit) -> Result<Vec<u32>> {
        guarded("tokenizing", || Ok(self.renderer.render_any(prompt, limit)?.token_ids))
    }

    /// How long a text may be that is tokenized for somebody far away.
    pub(crate) fn text_limit(&self) -> TextLimit {
        TextLimit::beside(self.max_model_len)
    }

    /// A prompt written out, with its tokens.
    pub(crate) fn render(&self, prompt: Prompt) -> Result<RenderedPrompt> {
        guarded("rendering", || Ok(self.renderer.render_prompt(prompt)?))
    }

    /// A beginning as a prompt has it, with the names of its full blocks.
    pub(crate) fn beginning(&self, prompt: Prompt) -> Result<(Vec<u32>, BlockHashes)> {
        let token_ids = self.render(prompt)?.token_ids;
        self.check_length(&token_ids, 1)?;
        let hashes = self.hasher.hash(&token_ids, CacheSalt::NONE);
        Ok((token_ids, hashes))
    }

    /// The text of tokens, special ones included.
    pub(crate) fn detokenize(&self, token_ids: &[u32]) -> Result<String> {
        self.check_tokens(token_ids)?;
        guarded("detokenizing", || Ok(self.renderer.tokenizer()?.decode(token_ids)))
    }

    /// The text of tokens that an output follows, which brings the rest of a character that they begin.
    pub(crate) fn text_before(&self, token_ids: &[u32]) -> Result<String> {
        self.check_tokens(token_ids)?;
        guarded("detokenizing", || Ok(self.renderer.decoder().text_before(token_ids)))
    }

    /// The tokens as the vocabulary has them.
    pub(crate) fn token_strs(&self, token_ids: &[u32]) -> Result<Vec<String>> {
        self.check_tokens(token_ids)?;
        let tokenizer = self.renderer.tokenizer()?.inner();
        Ok(token_ids.iter().map(|&id| tokenizer.id_to_token(id).unwrap_or_default()).collect())
    }

    /// The bytes of the tokens within a text.
    pub(crate) fn token_bytes(&self, token_ids: &[u32]) -> Result<Vec<Vec<u8>>> {
        self.check_tokens(token_ids)?;
        let tokenizer = self.renderer.tokenizer()?;
        let of = |&id: &u32| match tokenizer.token_bytes(id) {
            Some(bytes) => bytes.to_vec(),
            None => tokenizer.decode(&[id]).into_bytes(),
        };
        guarded("detokenizing", || Ok(token_ids.iter().map(of).collect()))
    }

    fn check_tokens(&self, token_ids: &[u32]) -> Result<()> {
        let vocab_size = self.limits.vocab_size;
        match token_ids.iter().find(|&&id| id as usize >= vocab_size) {
            Some(&given) => Err(Error::TokenId { given, vocab_size }),
            None => Ok(()),
        }
    }

    fn try_prepare(&self, request: Request, arrival: Arrival) -> Result<Prepared> {
        let (mut params, mut beams) = self.check_params(&request)?;
        let RenderedPrompt { text, token_ids } =
            self.tokenize_within(request.prompt, &params, request.prompt_alone)?;
        self.check_length(&token_ids, usize::from(!request.prompt_alone))?;
        if !request.prompt_alone {
            self.check_min_tokens(&params, token_ids.len())?;
        }
        let mut grammar = self.grammar(&params, &token_ids)?;
        if request.prompt_alone {
            // What it says of outputs is right, and counts for nothing from here on.
            grammar.take().map(|grammar| grammar.wait()).transpose()?;
            (params, beams) = (request.params.of_prompt_alone().check(&self.limits)?, None);
        }
        let drawn = arrival.seed.unwrap_or_else(|| self.seeds.draw());
        let seed = params.seed().unwrap_or(drawn);
        tracing::debug!(
            target: "quire::engine",
            request_id = %request.id, num_prompt_tokens = token_ids.len(), seed, "tokenized"
        );
        let detokenizer = self.renderer.decoder().detokenizer(&token_ids, params.text_options());
        let alone = params.skips_prefix_cache().then_some(drawn);
        let salt = self.salt(&request.tenant, &request.cache_salt, alone);
        let sequence = NewSequence {
            hashes: Some(self.hasher.hash(&token_ids, salt)),
            prompt: token_ids,
            max_output_tokens: max_output_tokens(&params),
            arrival: arrival.time,
            tenant: tenant_id(request.tenant.as_deref()),
            priority: request.priority,
            salt,
            // The token that a beam samples need not be the one that it goes on with.
            runs_ahead: beams.is_none(),
        };
        let sampling = params.row_sampling(seed);
        Ok(Prepared {
            id: request.id,
            prompt: text,
            params,
            sampling,
            sequence,
            beams,
            prompt_alone: request.prompt_alone,
            detokenizer,
            grammar,
        })
    }

    /// How a request is continued. A search has parameters of its own.
    fn check_params(&self, request: &Request) -> Result<(CheckedParams, Option<CheckedBeams>)> {
        if let Some(search) = &request.beam_search {
            let beams = search.checked(&self.limits)?;
            BeamSearchParams::check_beside(&request.params)?;
            return Ok((search.as_sampling(self.limits.vocab_size).check(&self.limits)?, Some(beams)));
        }
        let mut params = request.params.check(&self.limits)?;
        self.forbid_words(&mut params)?;
        Ok((params, None))
    }

    /// The end of the prompt, as far as the parameters keep it.
    fn tokenize_within(
        &self,
        prompt: Prompt,
        params: &CheckedParams,
        is_alone: bool,
    ) -> Result<RenderedPrompt, PromptError> {
        let kept = params.truncate_prompt_tokens();
        let limit = if kept.is_some() { self.text_limit() } else { TextLimit::Context(self.max_model_len) };
        let mut prompt = self.renderer.render_within(prompt, limit)?;
        if let Some(kept) = kept {
            let output = if is_alone { 0 } else { params.least_room(self.max_model_len) };
            let kept = if kept == usize::MAX { self.max_model_len.saturating_sub(output) } else { kept };
            prompt.token_ids.drain(..prompt.token_ids.len().saturating_sub(kept));
        }
        Ok(prompt)
    }

    /// Has the form of the output compiled, with what may come before it behind this prompt.
    fn grammar(&self, params: &CheckedParams, prompt: &[u32]) -> Result<Option<GrammarTicket>> {
        let Some(source) = params.grammar() else { return Ok(None) };
        let source = match params.reasoning() {
            Some(format) => Arc::new(source.after(Thought::of(format, self.reasoning_place(prompt)?))),
            None => Arc::clone(source),
        };
        Ok(Some(self.grammars.ticket(source)?))
    }

    /// What a prompt says of the reasoning behind it.
    fn reasoning_place(&self, prompt: &[u32]) -> Result<ReasoningPlace> {
        let end = &prompt[prompt.len().saturating_sub(ReasoningPlace::MAX_TOKENS)..];
        Ok(ReasoningPlace::after(&self.renderer.tokenizer()?.decode(end)))
    }

    /// A word has other tokens at the beginning of a word than within one.
    fn forbid_words(&self, params: &mut CheckedParams) -> Result<()> {
        let mut forbidden = BTreeSet::new();
        for word in params.bad_words() {
            let word = word.trim_start();
            for text in [word.to_owned(), format!(" {word}")] {
                forbidden.insert(self.renderer.encode(&text, false)?);
            }
        }
        forbidden.remove(&[][..]);
        params.forbid(forbidden);
        Ok(())
    }

    /// One rule for every way in: a prompt leaves room for a token, in the KV pool, and for as many as are to come in the
    /// context.
    fn check_length(&self, token_ids: &[u32], least_output: usize) -> Result<(), PromptError> {
        let (num_tokens, max_model_len) = (token_ids.len(), self.max_model_len);
        let with_output = u32::try_from(num_tokens + 1).unwrap_or(u32::MAX);
        let (need, have) = (self.capacity.blocks_for(with_output), self.capacity.admissible_blocks());
        // The tighter limit is told: what is within the other may be too long all the same.
        let is_pool_tighter = u64::from(have) * u64::from(self.capacity.block_size) < max_model_len as u64;
        if num_tokens + least_output > max_model_len && !is_pool_tighter {
            return Err(PromptError::TooLong { num_tokens, max_model_len });
        }
        let pinnable = self.capacity.pinnable_blocks;
        if need > have { Err(PromptError::NeverFits { num_tokens, need, have, pinnable }) } else { Ok(()) }
    }

    /// As many tokens as must come have room behind the prompt.
    fn check_min_tokens(&self, params: &CheckedParams, num_prompt_tokens: usize) -> Result<(), ParamError> {
        let room = self.max_model_len.saturating_sub(num_prompt_tokens);
        let given = params.min_tokens();
        if given as usize <= room {
            return Ok(());
        }
        let context = self.max_model_len;
        let rule = format!(
            "at most {room}, which the context of {context} leaves behind {num_prompt_tokens} tokens"
        );
        Err(ParamError::Value { field: "min_tokens", value: given.to_string(), rule })
    }

    /// What separates cached blocks: tenant and salt of the request. One that needs all of its prompt computed gets blocks of
    /// its own: `alone` is a number that no other has.
    fn salt(&self, tenant: &Option<String>, salt: &Option<String>, alone: Option<u64>) -> CacheSalt {
        if tenant.is_none() && salt.is_none() && alone.is_none() {
            return CacheSalt::NONE;
        }
        let alone = alone.map(u64::to_le_bytes).unwrap_or_default();
        let part =
            |text: &Option<String>| text.as_ref().map_or(Vec::new(), |text| [b"=", text.as_bytes()].concat());
        self.hasher.salt(&[&part(tenant), &part(salt), &alone])
    }
}

/// Tokens that the scheduler lets a sequence generate. Where others are forked from it with its first token, it is not to
/// end by itself with that: the engine ends it at its length.
fn max_output_tokens(params: &CheckedParams) -> u32 {
    let least = if params.n() > 1 { 2 } else { 1 };
    params.max_tokens().unwrap_or(u32::MAX).max(least)
}

/// Runs code that serves one request. Its panic is this request's error.
pub(crate) fn guarded<T>(what: &'static str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let message = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = message.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        tracing::error!(target: "quire::engine", "{what} panicked: {message}");
        Err(Error::Panicked { what, message })
    })
}

/// A number for a tenant's name: the same name has the same number. None is tenant 0.
fn tenant_id(name: Option<&str>) -> TenantId {
    TenantId(name.map_or(0, |name| {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        hasher.finish()
    }))
}
