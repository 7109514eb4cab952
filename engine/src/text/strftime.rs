//! Dates in chat templates.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A moment in UTC, in the notation of C's `strftime`, in English.
///
/// # Errors
///
/// For a code that templates are not known to use.
pub(super) fn strftime(format: &str, time: SystemTime) -> Result<String, Error> {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let date = Date::of_day(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let (day_name, month_name) = (DAYS[date.week_day as usize], MONTHS[date.month as usize - 1]);
        let written = match chars.next() {
            Some('Y') => write!(text, "{}", date.year),
            Some('y') => write!(text, "{:02}", date.year % 100),
            Some('m') => write!(text, "{:02}", date.month),
            Some('B') => write!(text, "{month_name}"),
            Some('b' | 'h') => write!(text, "{}", &month_name[..3]),
            Some('d') => write!(text, "{:02}", date.day),
            Some('e') => write!(text, "{:2}", date.day),
            Some('A') => write!(text, "{day_name}"),
            Some('a') => write!(text, "{}", &day_name[..3]),
            Some('H') => write!(text, "{hour:02}"),
            Some('I') => write!(text, "{:02}", (hour + 11) % 12 + 1),
            Some('M') => write!(text, "{minute:02}"),
            Some('S') => write!(text, "{second:02}"),
            Some('p') => write!(text, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('F') => write!(text, "{}-{:02}-{:02}", date.year, date.month, date.day),
            Some('T') => write!(text, "{hour:02}:{minute:02}:{second:02}"),
            Some('%') => write!(text, "%"),
            other => {
                let code = other.map(String::from).unwrap_or_default();
                let message = format!("strftime_now: code %{code} is not known");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        };
        written.expect("a string takes all that is written");
    }
    Ok(text)
}

struct Date {
    year: u64,
    month: u64,
    day: u64,
    week_day: u64,
}

impl Date {
    /// The date of a day since 1970-01-01, in the Gregorian calendar. Years begin in March here, so that the leap day
    /// comes last (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`).
    fn of_day(days: u64) -> Self {
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = (month_from_march + 2) % 12 + 1;
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        Self { year, month, day, week_day: (days + 4) % 7 }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[track_caller]
    fn check(seconds: u64, format: &str, expected: &str) {
        assert_eq!(strftime(format, UNIX_EPOCH + Duration::from_secs(seconds)).unwrap(), expected);
    }

    #[test]
    fn dates_are_right() {
        check(0, "%A, %d %B %Y %H:%M:%S %p", "Thursday, 01 January 1970 00:00:00 AM");
        check(951_782_400, "%F %a", "2000-02-29 Tue");
        check(1_709_251_199, "%F %T %I", "2024-02-29 23:59:59 11");
        check(1_709_251_200, "%e %b %y 100%%", " 1 Mar 24 100%");
        assert!(strftime("%Q", UNIX_EPOCH).is_err());
    }
}
