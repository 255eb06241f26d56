//! Prints the figures of each size beside the others, and what they extrapolate to.

use crate::stage::Size;

/// One figure of one size.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// What it is, with its unit.
    pub(crate) what: &'static str,
    pub(crate) value: f64,
    pub(crate) aim: &'static str,
    /// Whether it grows with the number of volumes, so that a line through the sizes says something.
    pub(crate) grows: bool,
}

impl Row {
    pub(crate) fn new(what: &'static str, value: f64, aim: &'static str) -> Self {
        let grows = false;
        Self {
            what,
            value,
            aim,
            grows,
        }
    }

    pub(crate) fn growing(self) -> Self {
        Self {
            grows: true,
            ..self
        }
    }
}

/// Prints a table with a column for each size.
pub(crate) fn print(measured: &[(Size, Vec<Row>)]) {
    print!("{:<52}", "nodes x volumes");
    for (size, _) in measured {
        print!("{:>14}", size.to_string());
    }
    println!("  aim");
    for (index, row) in measured[0].1.iter().enumerate() {
        print!("{:<52}", row.what);
        for (_, rows) in measured {
            print!("{:>14}", number(rows[index].value));
        }
        println!("  {}", row.aim);
    }
}

/// Prints the growing figures at another size: the line through those of the measured sizes.
pub(crate) fn extrapolate(measured: &[(Size, Vec<Row>)], full: Size) {
    let largest = measured.last().expect("there is one").0;
    if measured.len() < 2 || largest.volumes >= full.volumes {
        return;
    }
    println!("\nextrapolated to {full}, by the line through the measured sizes");
    for (index, row) in measured[0]
        .1
        .iter()
        .enumerate()
        .filter(|(_, row)| row.grows)
    {
        let points = measured
            .iter()
            .map(|(size, rows)| (size.volumes as f64, rows[index].value));
        let points: Vec<(f64, f64)> = points.filter(|(_, value)| value.is_finite()).collect();
        let value = line(&points, full.volumes as f64);
        println!("{:<52}{:>14}  {}", row.what, number(value), row.aim);
    }
}

/// The value at `at` of the line with the least squares.
fn line(points: &[(f64, f64)], at: f64) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let product = |point: &(f64, f64)| (point.0 - x) * (point.1 - y);
    let square = |point: &(f64, f64)| (point.0 - x).powi(2);
    let slope = points.iter().map(product).sum::<f64>() / points.iter().map(square).sum::<f64>();
    y + slope * (at - x)
}

fn number(value: f64) -> String {
    if value.is_nan() {
        "none".to_owned()
    } else if value.abs() < 10.0 {
        format!("{value:.2}")
    } else if value.abs() < 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}
