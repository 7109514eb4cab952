//! Filters of Jinja that the library lacks.

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};

use super::{methods, python};

/// Gives an environment those that templates may need: not those that lay out pages (`urlize`, `xmlattr`, `wordwrap`), nor
/// `random`, since a conversation has one prompt.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter("center", |value: &Value, width: Option<Value>| {
        methods::padded(&python::to_str(value), "center", &[width.unwrap_or_else(|| 80.into())])
    });
    environment.add_filter("filesizeformat", minijinja_contrib::filters::filesizeformat);
    environment
        .add_filter("forceescape", |value: &Value| minijinja::HtmlEscape(&python::to_str(value)).to_string());
    environment.add_filter("striptags", |value: &Value| {
        minijinja_contrib::filters::striptags(python::to_str(value))
    });
    environment.add_filter("truncate", truncate);
    environment.add_filter("urlencode", urlencode);
    environment.add_filter("wordcount", |value: &Value| {
        let text = python::to_str(value);
        text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count()
    });
    // Functions are the only values that are neither data nor nothing.
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
}

/// `truncate(length=255, killwords=false, end='...', leeway=5)`
fn truncate(value: &Value, given: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let [length, kills_words, end, leeway] = [0, 1, 2, 3].map(|place| given.get(place).cloned());
    let of = |value: Option<Value>, name: &str| match value {
        Some(value) => Ok(Some(value)),
        None => named.get::<Option<Value>>(name),
    };
    let number = |value: Option<Value>, default: usize| match value {
        None => Ok(default),
        Some(value) if value.is_none() => Ok(default),
        Some(value) => value.as_usize().ok_or_else(|| refuse("truncate: expected numbers of characters")),
    };
    let length = number(of(length, "length")?, 255)?;
    let kills_words = of(kills_words, "killwords")?.is_some_and(|value| value.is_true());
    let end = of(end, "end")?.map_or_else(|| "...".to_owned(), |end| python::to_str(&end));
    let leeway = number(of(leeway, "leeway")?, 5)?;
    named.assert_all_used()?;
    let text = python::to_str(value);
    let num_kept = length.checked_sub(end.chars().count());
    let num_kept = num_kept.ok_or_else(|| refuse("truncate: the end is longer than the length"))?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let kept: String = text.chars().take(num_kept).collect();
    let kept = if kills_words { &kept } else { kept.rsplit_once(' ').map_or(&kept[..], |(words, _)| words) };
    Ok(format!("{kept}{end}"))
}

/// A text as a part of an address; of pairs, a query.
fn urlencode(value: &Value) -> Result<String, Error> {
    let quoted = |value: &Value| quote(&python::to_str(value), "").replace("%20", "+");
    let pair = |key: &Value, value: &Value| format!("{}={}", quoted(key), quoted(value));
    let pairs: Vec<String> = match value.kind() {
        ValueKind::Map => {
            let keys = value.try_iter()?;
            keys.map(|key| Ok(pair(&key, &value.get_item(&key)?))).collect::<Result<_, Error>>()?
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let of = |item: Value| Ok(pair(&item.get_item_by_index(0)?, &item.get_item_by_index(1)?));
            value.try_iter()?.map(of).collect::<Result<_, Error>>()?
        }
        _ => return Ok(quote(&python::to_str(value), "/")),
    };
    Ok(pairs.join("&"))
}

/// Python's `urllib.parse.quote`.
fn quote(text: &str, safe: &str) -> String {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || b"_.-~".contains(&byte) || safe.as_bytes().contains(&byte);
    let write = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(write).collect()
}

fn refuse(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
