//! Tables as kubectl prints them: columns as wide as their widest cell, three spaces between.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", "ID"]);
        table.row(["shop/cart".to_owned(), "7".to_owned()]);
        assert_eq!(table.render(), "NAME        ID\nshop/cart   7\n");
    }
}
