//! Tables as kubectl prints them: columns as wide as their widest cell, three spaces between.

/// Entries of a list that a cell shows; the rest is counted. kubectl shows as many.
const SHOWN: usize = 3;

/// A table.
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these column heads.
    pub fn new(header: &[&str]) -> Self {
        Self { header: header.iter().map(ToString::to_string).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Text, ended by a newline.
    pub fn render(&self) -> String {
        let lines: Vec<&Vec<String>> = std::iter::once(&self.header).chain(&self.rows).collect();
        let widths: Vec<usize> = (0..self.header.len())
            .map(|i| lines.iter().map(|line| line.get(i).map_or(0, String::len)).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for line in lines {
            let cells: Vec<String> =
                line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            text.push_str(cells.join("   ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// A list in one cell.
pub fn list(entries: &[String]) -> String {
    match entries.len() {
        0 => "<none>".to_owned(),
        n if n <= SHOWN => entries.join(","),
        n => format!("{} + {} more", entries[..SHOWN].join(","), n - SHOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", "ID"]);
        table.row(["shop/cart".to_owned(), "7".to_owned()]);
        assert_eq!(table.render(), "NAME        ID\nshop/cart   7\n");
    }

    #[test]
    fn long_lists_are_cut_and_counted() {
        let entries: Vec<String> = (1..=5).map(|n| n.to_string()).collect();
        assert_eq!(list(&entries), "1,2,3 + 2 more");
        assert_eq!(list(&entries[..3]), "1,2,3");
        assert_eq!(list(&[]), "<none>");
    }
}
