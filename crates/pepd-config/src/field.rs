//! One value of the file: what it holds, or what is wrong with it.

use std::fmt::Display;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use pepd_packet::{PerMyriad, Rate, Size};
use toml::Spanned;
use toml::de::DeValue;

use crate::report::{Problem, Span, shown};
use crate::units;

/// A value with its place.
pub(crate) type Item<'t> = Spanned<DeValue<'t>>;

/// A value and the key that it belongs to: for an element of a list, the list's key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field<'t> {
    key: &'t str,
    item: &'t Item<'t>,
}

impl<'t> Field<'t> {
    pub(crate) fn new(key: &'t str, item: &'t Item<'t>) -> Self {
        Self { key, item }
    }

    pub(crate) fn value(self) -> &'t DeValue<'t> {
        self.item.get_ref()
    }

    pub(crate) fn span(self) -> Span {
        self.item.span()
    }

    /// Returns what was read from here, with its place.
    pub(crate) fn spanned<T>(self, value: T) -> Spanned<T> {
        Spanned::new(self.span(), value)
    }

    /// Returns a problem with this value.
    pub(crate) fn problem(self, title: impl Into<String>) -> Problem {
        Problem::new(self.span(), title)
    }

    /// Returns the problem that the value is not `wanted`, a noun with its article.
    pub(crate) fn wrong_type(self, wanted: &str, help: impl Into<String>) -> Problem {
        let found = match self.value() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "a number",
            DeValue::Float(_) => "a number with a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.problem(format!("`{}` must be {wanted}", shown(self.key)))
            .label(format!("this is {found}"))
            .help(help)
    }

    /// Says what to write, for a help line.
    pub(crate) fn write(self, example: &str) -> String {
        format!("write `{} = {example}`", self.key)
    }

    /// Returns the problem that the text is not `wanted`, a noun with its article.
    pub(crate) fn malformed(self, text: &str, wanted: &str, help: impl Into<String>) -> Problem {
        self.problem(format!("`{}`: `{}` is not {wanted}", self.key, shown(text)))
            .label(format!("not {wanted}"))
            .help(help)
    }

    /// Reads a string that has to be `wanted`.
    pub(crate) fn text(self, wanted: &str, example: &str) -> Result<&'t str, Problem> {
        self.value()
            .as_str()
            .ok_or_else(|| self.wrong_type(wanted, self.write(example)))
    }

    /// Reads `true` or `false`.
    pub(crate) fn boolean(self) -> Result<bool, Problem> {
        self.value()
            .as_bool()
            .ok_or_else(|| self.wrong_type("true or false", self.write("true")))
    }

    /// Reads the elements of a list.
    pub(crate) fn list(self, example: &str) -> Result<impl Iterator<Item = Field<'t>>, Problem> {
        let array = self
            .value()
            .as_array()
            .ok_or_else(|| self.wrong_type("a list", self.write(example)))?;
        if array.is_empty() {
            return Err(self
                .problem(format!("`{}` is empty", self.key))
                .label("holds nothing")
                .help(self.write(example)));
        }
        Ok(array.iter().map(move |item| Field::new(self.key, item)))
    }

    /// Reads a whole number within the bounds.
    pub(crate) fn number<T>(self, bounds: RangeInclusive<T>) -> Result<T, Problem>
    where
        T: TryFrom<i128> + PartialOrd + Display,
    {
        let DeValue::Integer(digits) = self.value() else {
            let (low, high) = (bounds.start(), bounds.end());
            let quoted = self
                .value()
                .as_str()
                .and_then(|text| text.parse::<i128>().ok());
            let help = match quoted {
                Some(number) => self.write(&number.to_string()),
                None => format!("write a number from {low} to {high}"),
            };
            return Err(self.wrong_type("a whole number", help));
        };
        let value = i128::from_str_radix(digits.as_str(), digits.radix());
        value
            .ok()
            .and_then(|value| T::try_from(value).ok())
            .filter(|value| bounds.contains(value))
            .ok_or_else(|| self.outside(&digits.to_string(), bounds.start(), bounds.end(), ""))
    }

    /// Reads a size within the bounds.
    pub(crate) fn size(self, bounds: RangeInclusive<Size>) -> Result<Size, Problem> {
        const HELP: &str = "write a number and a unit, such as \"8MiB\" or \"64KiB\"";
        let text = self.text("a size in quotes", "\"8MiB\"")?;
        let size = units::size(text).ok_or_else(|| self.malformed(text, "a size", HELP))?;
        self.bounded(text, size, bounds)
    }

    /// Reads a rate within the bounds.
    pub(crate) fn rate(self, bounds: RangeInclusive<Rate>) -> Result<Rate, Problem> {
        const HELP: &str =
            "write a number and bit, kbit, Mbit or Gbit (per second), such as \"50Mbit\"";
        let text = self.text("a rate in quotes", "\"50Mbit\"")?;
        let rate = units::rate(text).ok_or_else(|| match units::rate_respelled(text) {
            Some(bits) => {
                let bytes = "(if bytes are meant, as by tc(8): eight times that)";
                self.malformed(text, "a rate", format!("write \"{bits}\" {bytes}"))
            }
            None => self.malformed(text, "a rate", HELP),
        })?;
        self.bounded(text, rate, bounds)
    }

    /// Reads a part of a whole within the bounds.
    pub(crate) fn percent(self, bounds: RangeInclusive<PerMyriad>) -> Result<PerMyriad, Problem> {
        let text = self.text("a share in quotes", "\"1%\"")?;
        let share = units::percent(text).ok_or_else(|| {
            let help =
                "write a number with at most two decimals and %, such as \"1%\" or \"0.25%\"";
            self.malformed(text, "a share", help)
        })?;
        self.bounded(text, share, bounds)
    }

    /// Reads a time within the bounds, in whole units of `grain`: what the kernel would round or
    /// cut off is refused.
    pub(crate) fn time(
        self,
        bounds: RangeInclusive<Duration>,
        grain: Duration,
    ) -> Result<Duration, Problem> {
        let text = self.text("a time in quotes", "\"30s\"")?;
        let time = humantime::parse_duration(text).map_err(|_| {
            let help = "write a number and a unit, such as \"500ms\", \"30s\" or \"15min\"";
            self.malformed(text, "a time", help)
        })?;
        let [low, high] =
            [bounds.start(), bounds.end()].map(|bound| humantime::format_duration(*bound));
        if !bounds.contains(&time) {
            return Err(self.outside(text, &low, &high, "\""));
        }
        if time.as_nanos() % grain.as_nanos() != 0 {
            let grain = humantime::format_duration(grain);
            return Err(self
                .problem(format!("`{}`: `{}` is too fine", self.key, shown(text)))
                .label(format!("the kernel counts in steps of {grain}"))
                .help(format!("write a multiple of {grain}")));
        }
        Ok(time)
    }

    /// Reads an IP address.
    pub(crate) fn address(self) -> Result<IpAddr, Problem> {
        let text = self.text("an IP address in quotes", "\"192.0.2.1\"")?;
        text.parse().map_err(|_| {
            self.malformed(
                text,
                "an IP address",
                "write one such as \"192.0.2.1\" or \"2001:db8::1\"",
            )
        })
    }

    /// Reads a name of at most `longest` characters.
    pub(crate) fn name(self, longest: usize) -> Result<Spanned<&'t str>, Problem> {
        let name = self.spanned(self.text("a name in quotes", "\"hb-a\"")?);
        check_name(self.key, &name, longest).map(|()| name)
    }

    fn bounded<T>(self, text: &str, value: T, bounds: RangeInclusive<T>) -> Result<T, Problem>
    where
        T: PartialOrd + Display,
    {
        if bounds.contains(&value) {
            Ok(value)
        } else {
            Err(self.outside(text, bounds.start(), bounds.end(), "\""))
        }
    }

    /// Returns the problem that the value is out of bounds; `quote` is what stands around it in the
    /// file.
    fn outside(self, text: &str, low: &dyn Display, high: &dyn Display, quote: &str) -> Problem {
        self.problem(format!("`{}`: `{}` is out of range", self.key, shown(text)))
            .label(format!("must be from {low} to {high}"))
            .help(format!(
                "write a value from {quote}{low}{quote} to {quote}{high}{quote}"
            ))
    }
}

/// Names end up in log lines, metrics, nft sets and interface names: what is legal in all of
/// them is legal here.
pub(crate) fn check_name(what: &str, name: &Spanned<&str>, longest: usize) -> Result<(), Problem> {
    let text = *name.get_ref();
    let help = format!(
        "use 1 to {longest} characters out of a-z, A-Z, 0-9, `-`, `_` and `.`, beginning with a \
         letter or digit"
    );
    if text.is_empty() {
        let title = format!("the {what} is empty");
        return Err(Problem::new(name.span(), title)
            .label("not a usable name")
            .help(help));
    }
    let wrong = if let Some(c) = text
        .chars()
        .find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_' | '.'))
    {
        format!("contains `{}`", shown(c.encode_utf8(&mut [0; 4])))
    } else if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        format!("begins with `{}`", &text[..1])
    } else if text.len() > longest {
        format!("has {} characters", text.len())
    } else {
        return Ok(());
    };
    let title = format!("the {what} `{}` {wrong}", shown(text));
    Err(Problem::new(name.span(), title)
        .label("not a usable name")
        .help(help))
}
