//! Values of options. A saved value is the same text as on the command line, and is checked in the same way.

use allocwall_trial::load::open::HIGHEST_RATE;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A longer time is a typing error, and a sum of a few times must not overflow.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);
/// Suffixes of a time, in nanoseconds, the longest first.
const UNITS: &[(&str, u64)] =
    &[("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000)];

/// A time above 0.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    const FORM: &str = "a time is a number followed by ms, s, m or h: 500ms, 15s, 2m";
    let (number, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let unit = if unit.is_empty() { "s" } else { unit };
    let (_, ns) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(FORM)?;
    let number: f64 = number.parse().map_err(|_| FORM)?;
    let time =
        Duration::try_from_secs_f64(number * (*ns as f64 / 1e9)).map_err(|_| "the time is out of range")?;
    if time.is_zero() {
        return Err("a time must be above 0".into());
    }
    if time > LONGEST { Err("a time must be at most 30 days".into()) } else { Ok(time) }
}

/// A time above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        parse_time(text).map(Time)
    }
}

impl fmt::Display for Time {
    /// In the longest unit that gives a whole number, else in seconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.0.as_nanos();
        match UNITS.iter().find(|(_, ns)| time.is_multiple_of(u128::from(*ns))) {
            Some((unit, ns)) => write!(f, "{}{unit}", time / u128::from(*ns)),
            None => write!(f, "{}s", self.0.as_secs_f64()),
        }
    }
}

/// What precedes the measurement. A number alone is runs of a command that ends, or seconds of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmUp {
    Number(u32),
    Time(Time),
}

impl FromStr for WarmUp {
    type Err = String;

    fn from_str(text: &str) -> Result<WarmUp, String> {
        const MOST: u32 = 1000;
        match text.parse() {
            Ok(0) => Err("a warm-up must be above 0".into()),
            Ok(number) if number <= MOST => Ok(WarmUp::Number(number)),
            Ok(_) => Err(format!("a warm-up without a unit must be at most {MOST}")),
            Err(_) => text.parse().map(WarmUp::Time),
        }
    }
}

impl fmt::Display for WarmUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WarmUp::Number(number) => number.fmt(f),
            WarmUp::Time(time) => time.fmt(f),
        }
    }
}

/// A percentage above 0 and at most 1000.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percent(pub f64);

impl Percent {
    /// 0.02 for 2 %.
    pub fn share(self) -> f64 {
        self.0 / 100.0
    }
}

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Percent, String> {
        let number: f64 =
            text.trim_end_matches('%').trim().parse().map_err(|_| "expected a percentage: 2%".to_owned())?;
        if number > 0.0 && number <= 1000.0 {
            return Ok(Percent(number));
        }
        Err("a percentage must be above 0 % and at most 1000 %".into())
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// Requests per second: above 0 and at most [`HIGHEST_RATE`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(pub f64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let number: f64 = text.parse().map_err(|_| "expected a number of requests: 500".to_owned())?;
        if number > 0.0 && number <= HIGHEST_RATE {
            return Ok(Rate(number));
        }
        Err(format!("a rate must be above 0 and at most {HIGHEST_RATE} requests per second"))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Name and value of an HTTP header. The request checks them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header(pub String, pub String);

impl FromStr for Header {
    type Err = String;

    fn from_str(text: &str) -> Result<Header, String> {
        match text.split_once(':') {
            Some((name, value)) => Ok(Header(name.trim().to_owned(), value.trim().to_owned())),
            None => Err("a header is NAME: VALUE".into()),
        }
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0, self.1)
    }
}

macro_rules! saved_as_text {
    ($($kind:ty),*) => {$(
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$kind, D::Error> {
                String::deserialize(from)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}

saved_as_text!(Time, WarmUp, Percent, Rate, Header);

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Display;

    fn read<T: FromStr<Err = String>>(text: &str) -> Result<T, String> {
        text.parse()
    }

    /// Reads the text, and the text that is shown for the value.
    fn shown<T: FromStr<Err = String> + Display + PartialEq + fmt::Debug>(text: &str) -> String {
        let value: T = read(text).unwrap();
        let shown = value.to_string();
        assert_eq!(read::<T>(&shown).as_ref(), Ok(&value), "{text}: {shown}");
        shown
    }

    #[test]
    fn a_shown_value_is_read_as_the_same_value() {
        for (text, whole) in [
            ("500ms", "500ms"),
            ("1.5s", "1500ms"),
            ("15", "15s"),
            ("90s", "90s"),
            ("120s", "2m"),
            ("0.25h", "15m"),
            ("720h", "720h"),
            ("0.0001", "0.0001s"),
            ("0.000000001", "0.000000001s"),
        ] {
            assert_eq!(shown::<Time>(text), whole);
        }
        for (text, whole) in [("3", "3"), ("3s", "3s"), ("1.5", "1500ms"), ("1000", "1000")] {
            assert_eq!(shown::<WarmUp>(text), whole);
        }
        for (text, whole) in [("2%", "2%"), ("70", "70%"), (" 0.1 %", "0.1%"), ("1000%", "1000%")] {
            assert_eq!(shown::<Percent>(text), whole);
        }
        for (text, whole) in [("40", "40"), ("0.5", "0.5"), ("1e3", "1000"), ("1e6", "1000000")] {
            assert_eq!(shown::<Rate>(text), whole);
        }
        for (text, whole) in [("A: b", "A: b"), ("A:b:c ", "A: b:c"), ("A:", "A: "), ("-a:b", "-a: b")] {
            assert_eq!(shown::<Header>(text), whole);
        }
        // Rounding to nanoseconds and to the nearest number.
        for n in 1..2000_u32 {
            shown::<Time>(&format!("{}.{:09}", n * 1296, n * 499_999));
            shown::<Time>(&format!("{}ms", n * 1_295_999));
            shown::<Percent>(&format!("{}", f64::from(n) / 3.0));
            shown::<Rate>(&format!("{}", f64::from(n) / 7.0));
        }
    }

    #[test]
    fn values_outside_their_range_are_refused() {
        for text in ["", "0", "0ms", "-1s", "s", "1d", "1e3s", "nan", "720.1h", "1.2.3s", "2 weeks"] {
            assert!(read::<Time>(text).is_err(), "{text}");
        }
        assert!(read::<Time>(&"9".repeat(400)).is_err());
        for text in ["", "0", "0s", "-1", "1001", "three", "1e3"] {
            assert!(read::<WarmUp>(text).is_err(), "{text}");
        }
        for text in ["", "0%", "-1%", "1000.1%", "nan", "inf%", "two"] {
            assert!(read::<Percent>(text).is_err(), "{text}");
        }
        for text in ["", "0", "-1", "1000001", "1e300", "nan", "inf", "-inf", "fast", "5%"] {
            assert!(read::<Rate>(text).is_err(), "{text}");
        }
        assert!(read::<Header>("no colon").is_err());
    }
}
