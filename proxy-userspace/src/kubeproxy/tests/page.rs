//! docs/kube-proxy-flags.md, written from the tables.

use std::fmt::Write as _;

use super::super::{
    fields::{FIELDS, Treat},
    flags::{FLAGS, Flag},
};

const HEAD: &str = "\
# kube-proxy's configuration

What `weir run` does with each field of a `KubeProxyConfiguration` (`--config FILE`) and with each
of kube-proxy's flags. Written from the tables that the parser reads; a test compares (`UPDATE_DOCS=1
cargo test -p proxy-userspace the_page` writes it anew).

**acts**: it has kube-proxy's meaning, and is noted where the mode does not read it. **noted**: it
has no effect, and one line at info says so if it differs from the default. **warned**: the same as
a warning. What cannot be is refused, all of it in one message.

Unknown and double fields of a file are warned about and skipped; wrong types, a wrong kind and
values out of bounds are refused. Beside `--config`, only the flags marked so count; others are
warned about. One flag of kube-proxy's that is not so marked, and has no namesake among Weir's own,
makes kube-proxy's defaults hold instead of Weir's. `_` is taken for `-` in the names of flags.

`--write-config-to` writes a `KubeProxyConfiguration` where such a file or such flags decide.
";

fn field_rows(page: &mut String) {
    page.push_str("\n## Fields\n\n| field | default | | |\n|---|---|---|---|\n");
    for field in FIELDS {
        let treat = match field.treat {
            Treat::Acts => "acts",
            Treat::Noted => "noted",
            Treat::Warned => "warned",
        };
        let default = field.default().to_string();
        let _ = writeln!(page, "| `{}` | `{default}` | {treat} | {} |", field.path, field.text);
    }
}

fn meaning(flag: &Flag) -> String {
    let fields: Vec<_> = flag.fields.iter().map(|path| format!("`{path}`")).collect();
    match (fields.is_empty(), flag.text) {
        (true, text) => text.to_owned(),
        (false, "") => fields.join(", "),
        (false, text) => format!("{}; {text}", fields.join(", ")),
    }
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    field_rows(&mut page);
    page.push_str("\n## Flags\n\n| flag | sets, or does | beside `--config` |\n|---|---|---|\n");
    for flag in FLAGS {
        let beside = if flag.beside { "counts" } else { "" };
        let dash = if flag.name == "v" { "`-v`, " } else { "" };
        let _ = writeln!(page, "| {dash}`--{}` | {} | {beside} |", flag.name, meaning(flag));
    }
    page.push_str(
        "\nArguments that are no flags, and flags that kube-proxy has not, are refused.\n",
    );
    page
}

#[test]
fn the_page_says_what_the_tables_say() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/kube-proxy-flags.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == page(), "docs/kube-proxy-flags.md is old: run this with UPDATE_DOCS=1");
}
