//! kube-proxy's flags on the command line, as the table has them.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};
use serde_json::{Map, Value, json};

use super::{
    document, duration,
    flags::{FLAGS, Flag, Kind, flag},
};

/// Flags that were given, with their values: the last one counts, lists add up.
#[derive(Clone, Debug, Default)]
pub struct Given(Vec<(&'static Flag, String)>);

impl Given {
    /// Adds one that Weir's own command line has.
    pub fn add(&mut self, name: &str, value: String) {
        if let Some(flag) = flag(name) {
            self.0.push((flag, value));
        }
    }

    /// Gives a flag another value.
    pub fn replace(&mut self, name: &str, value: String) {
        self.0.retain(|(flag, _)| flag.name != name);
        self.add(name, value);
    }

    /// The value of a flag.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(flag, _)| flag.name == name).map(|(_, value)| value.as_str())
    }

    /// Whether a switch is on. What is neither on nor off is a fault of [`Given::overlay`].
    pub fn on(&self, name: &str) -> bool {
        self.get(name).and_then(boolean) == Some(true)
    }

    /// Whether a flag was given that makes kube-proxy's defaults hold.
    pub fn decides(&self) -> bool {
        self.0.iter().any(|(flag, _)| flag.decides())
    }

    /// Those that `keep` takes, and the names of the others.
    pub fn split(self, keep: impl Fn(&Flag) -> bool) -> (Self, Vec<&'static str>) {
        let (kept, others): (Vec<_>, Vec<_>) = self.0.into_iter().partition(|(flag, _)| keep(flag));
        (Self(kept), others.into_iter().map(|(flag, _)| flag.name).collect())
    }

    /// Puts the values into a document. Those that cannot be are returned.
    pub fn overlay(&self, document: &mut Value) -> Vec<String> {
        let mut faults = Vec::new();
        for (flag, text) in &self.0 {
            match value(flag.kind, text) {
                Ok(value) => {
                    for path in flag.fields {
                        document::set(document, path, value.clone());
                    }
                }
                Err(want) => faults.push(format!("--{} `{text}`: want {want}", flag.name)),
            }
        }
        faults
    }

    /// The flag that has set a field.
    pub fn setter(&self, path: &str) -> Option<&'static str> {
        self.0.iter().find(|(flag, _)| flag.fields.contains(&path)).map(|(flag, _)| flag.name)
    }
}

/// As Go reads one.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn value(kind: Kind, text: &str) -> Result<Value, &'static str> {
    let pairs = || text.split(',').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('='));
    match kind {
        Kind::Bool => boolean(text).map(Value::from).ok_or("true or false"),
        Kind::Int => text.parse::<i64>().map(Value::from).map_err(|_| "a whole number"),
        Kind::Float => text.parse::<f64>().map(Value::from).map_err(|_| "a number"),
        Kind::Text => Ok(text.into()),
        Kind::Duration => match duration::parse(text) {
            Some(_) => Ok(text.into()),
            None => Err("a duration like 1m30s"),
        },
        Kind::List => Ok(text.split(',').filter(|part| !part.is_empty()).collect()),
        Kind::Gates => pairs()
            .map(|pair| pair.and_then(|(key, on)| Some((key.to_owned(), boolean(on)?.into()))))
            .collect::<Option<Map<_, _>>>()
            .map(Value::from)
            .ok_or("Gate=true,Gate=false"),
        Kind::Verbosities => pairs()
            .map(|pair| {
                let (pattern, level) = pair?;
                Some(json!({"filePattern": pattern, "verbosity": level.parse::<u32>().ok()?}))
            })
            .collect::<Option<Vec<_>>>()
            .map(Value::from)
            .ok_or("pattern=1,pattern=2"),
    }
}

fn argument(flag: &'static Flag) -> Arg {
    let help = match (flag.text, flag.fields) {
        ("", [field, ..]) => format!("Sets {field}"),
        (text, [field, ..]) => format!("Sets {field}; {text}"),
        (text, []) => text.to_owned(),
    };
    let arg = Arg::new(flag.name)
        .long(flag.name)
        .action(ArgAction::Append)
        .help(help)
        .help_heading("kube-proxy's flags (docs/kube-proxy-flags.md)");
    // Go's flags take the value of a switch only after `=`.
    let switch = |arg: Arg, value: &'static str| {
        arg.num_args(0..=1).require_equals(true).default_missing_value(value)
    };
    match flag.kind {
        Kind::Bool => switch(arg, "true").value_name("BOOL"),
        Kind::Int => {
            let arg = arg.allow_negative_numbers(true).value_name("NUMBER");
            if flag.name == "v" { arg.short('v') } else { arg }
        }
        Kind::Float => arg.value_name("NUMBER"),
        Kind::Duration => arg.allow_hyphen_values(true).value_name("DURATION"),
        Kind::List => arg.value_name("LIST"),
        Kind::Gates | Kind::Verbosities => arg.value_name("KEY=VALUE,…"),
        Kind::Text if flag.name == "version" => switch(arg, "true").value_name("true|raw"),
        Kind::Text => arg.value_name("TEXT"),
    }
}

impl Args for Given {
    fn augment_args(command: Command) -> Command {
        command.args(FLAGS.iter().filter(|flag| !flag.own).map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |flag: &&Flag| {
            !flag.own && matches.value_source(flag.name) == Some(ValueSource::CommandLine)
        };
        let values = FLAGS.iter().filter(given).map(|flag| {
            let values = matches.get_many::<String>(flag.name).into_iter().flatten();
            let adds = matches!(flag.kind, Kind::List | Kind::Gates | Kind::Verbosities);
            let text = if adds {
                values.map(String::as_str).collect::<Vec<_>>().join(",")
            } else {
                values.last().cloned().unwrap_or_default()
            };
            (flag, text)
        });
        Ok(Self(values.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
