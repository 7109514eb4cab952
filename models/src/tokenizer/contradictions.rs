//! What other files of a folder say of the tokens in `tokenizer.json`.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{Tokenizer, hf};
use crate::json;

const MAP_FILE: &str = "special_tokens_map.json";

/// How many tokens are named in one line.
const MAX_NAMED: usize = 3;

impl Tokenizer {
    /// Where `special_tokens_map.json` or `added_tokens_decoder` of `tokenizer_config.json` in `folder` differ from what is
    /// used. Files that cannot be read are none of this: they say nothing.
    pub(crate) fn contradictions(&self, folder: &Path) -> Vec<(PathBuf, String)> {
        let read = |path: &PathBuf| json::read_if_there(path).ok().flatten().unwrap_or_default();
        let (map, config) = (folder.join(MAP_FILE), folder.join(hf::CONFIG));
        let of_map = self.other_roles(&read(&map)).map(|message| (map, message));
        let of_config = self.other_ids(&read(&config)).map(|message| (config, message));
        of_map.into_iter().chain(of_config).collect()
    }

    fn other_roles(&self, map: &Map<String, Value>) -> Option<String> {
        let named = self.named_tokens();
        let roles = [
            ("bos_token", &named.bos),
            ("eos_token", &named.eos),
            ("pad_token", &named.pad),
            ("unk_token", &named.unk),
        ];
        let differs = |(role, used): (&str, &Option<String>)| {
            let given = map.get(role)?;
            let given = given.as_str().or_else(|| given.get("content")?.as_str())?;
            let other = used.as_deref() != Some(given);
            let used = used.as_deref().unwrap_or("none");
            other.then(|| format!("{role} is {given:?} here, {used:?} is used"))
        };
        listed(roles.into_iter().filter_map(differs).collect())
    }

    fn other_ids(&self, config: &Map<String, Value>) -> Option<String> {
        let added = config.get("added_tokens_decoder")?.as_object()?;
        let differs = |(id, token): (&String, &Value)| {
            let text = token.get("content")?.as_str()?;
            let used = id.parse().ok().and_then(|id| self.inner.id_to_token(id));
            let other = used.as_deref() != Some(text);
            let used = used.map_or_else(|| "no token".to_owned(), |used| format!("{used:?}"));
            other.then(|| format!("added_tokens_decoder has {text:?} for {id}, tokenizer.json {used}"))
        };
        listed(added.iter().filter_map(differs).collect())
    }
}

fn listed(mut all: Vec<String>) -> Option<String> {
    let num_others = all.len().saturating_sub(MAX_NAMED);
    all.truncate(MAX_NAMED);
    match (all.is_empty(), num_others) {
        (true, _) => None,
        (false, 0) => Some(all.join("; ")),
        (false, others) => Some(format!("{}; and {others} more", all.join("; "))),
    }
}
