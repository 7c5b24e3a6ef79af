//! Drawings of what a bench found, as SVG.

use std::path::Path;

use plotters::coord::{CoordTranslate, Shift};
use plotters::prelude::*;

use super::output::Report;
use crate::Error;

const WIDTH: u32 = 900;
/// Of each panel.
const HEIGHT: u32 = 320;
/// Room for the label of a group of bars.
const GROUP: u32 = 120;
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x7f, 0x7f, 0x7f),
];

/// A line of a panel.
struct Line {
    label: String,
    points: Vec<(f64, f64)>,
}

/// Lines over common axes.
struct Panel {
    title: &'static str,
    x: &'static str,
    y: &'static str,
    lines: Vec<Line>,
}

/// Bars in groups, over a logarithmic axis; bars of the same place in their groups have a common name and colour.
pub(super) struct Bars {
    pub(super) title: String,
    pub(super) names: Vec<&'static str>,
    /// A label, and a height for each name; none where there is nothing to show.
    pub(super) groups: Vec<(String, Vec<Option<f64>>)>,
}

type Drawn = Result<(), String>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Checks before anything long that the directory of a drawing is there.
///
/// # Errors
/// [`Error::Usage`].
pub(super) fn check(path: Option<&Path>) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() || !dir.is_dir() {
        return Err(Error::Usage(format!("--plot {}: expected a file in a directory that exists", path.display())));
    }
    Ok(())
}

/// Draws the distributions of a serving bench, and the memory of its daemons where it is known.
///
/// # Errors
/// [`Error::File`].
pub(super) fn serve(report: &Report, path: &Path) -> Result<(), Error> {
    let runs = || report.runs.iter();
    let ttft = |run: &super::output::Run| run.summary.each.iter().filter_map(|each| each.ttft_ms).collect();
    let mut panels = vec![
        Panel {
            title: "Time to first token",
            x: "ms",
            y: "share of requests",
            lines: runs().map(|run| Line { label: run.load.to_string(), points: shares(ttft(run)) }).collect(),
        },
        Panel {
            title: "Between tokens",
            x: "ms",
            y: "share of gaps",
            lines: runs()
                .map(|run| Line { label: run.load.to_string(), points: shares(run.summary.gaps.clone()) })
                .collect(),
        },
    ];
    let resident = runs().flat_map(|run| run.memory.iter().flatten().map(move |resident| (run, resident)));
    let lines: Vec<_> = resident
        .map(|(run, resident)| Line {
            label: format!("{}, {}", resident.process, run.load),
            points: resident.samples.clone(),
        })
        .collect();
    if !lines.is_empty() {
        panels.push(Panel { title: "Resident memory", x: "seconds", y: "MiB", lines });
    }
    let pieces: Vec<_> = panels.iter().map(|panel| |area: &Area<'_>| panel.draw(area)).collect();
    save(path, WIDTH, &pieces)
}

/// Draws bars, one panel below the other.
///
/// # Errors
/// [`Error::File`].
pub(super) fn bars(panels: &[Bars], path: &Path) -> Result<(), Error> {
    let pieces: Vec<_> = panels.iter().map(|panel| |area: &Area<'_>| panel.draw(area)).collect();
    let groups = panels.iter().map(|panel| panel.groups.len()).max().and_then(|n| u32::try_from(n).ok());
    save(path, WIDTH.max(groups.unwrap_or(0) * GROUP), &pieces)
}

/// The share of values up to each of them, as steps.
#[expect(clippy::cast_precision_loss, reason = "counts")]
fn shares(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let step = |(at, value)| [(value, at as f64 / count), (value, (at + 1) as f64 / count)];
    values.into_iter().enumerate().flat_map(step).collect()
}

fn save(path: &Path, width: u32, panels: &[impl Fn(&Area<'_>) -> Drawn]) -> Result<(), Error> {
    let mut svg = String::new();
    let count = u32::try_from(panels.len()).unwrap_or(1).max(1);
    {
        let root = SVGBackend::with_string(&mut svg, (width, HEIGHT * count)).into_drawing_area();
        let drawn = root.fill(&WHITE).map_err(|error| error.to_string());
        let areas = root.split_evenly((count as usize, 1));
        let drawn = drawn.and_then(|()| areas.iter().zip(panels).try_for_each(|(area, panel)| panel(area)));
        drawn.and_then(|()| root.present().map_err(|e| e.to_string())).map_err(|error| Error::file(path, error))?;
    }
    std::fs::write(path, svg).map_err(|error| Error::file(path, error))
}

/// Says which colour is what.
fn key<'a, 'b: 'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, SVGBackend<'b>, C>,
    at: SeriesLabelPosition,
) -> Drawn {
    let mut labels = chart.configure_series_labels();
    labels.position(at).background_style(WHITE.mix(0.8)).border_style(BLACK).draw().map_err(|error| error.to_string())
}

fn colour(at: usize) -> RGBColor {
    COLOURS[at % COLOURS.len()]
}

impl Panel {
    fn draw(&self, area: &Area<'_>) -> Drawn {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let right = points().map(|(x, _)| *x).fold(0.0, f64::max).max(1e-3) * 1.05;
        let top = points().map(|(_, y)| *y).fold(0.0, f64::max).max(1e-3) * 1.05;
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..right, 0.0..top)
            .map_err(|error| error.to_string())?;
        chart
            .configure_mesh()
            .max_light_lines(1)
            .x_desc(self.x)
            .y_desc(self.y)
            .draw()
            .map_err(|error| error.to_string())?;
        for (at, line) in self.lines.iter().enumerate() {
            let style = colour(at).stroke_width(2);
            chart
                .draw_series(LineSeries::new(line.points.iter().copied(), style))
                .map_err(|error| error.to_string())?
                .label(line.label.as_str())
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], style));
        }
        key(&mut chart, SeriesLabelPosition::LowerRight)
    }
}

impl Bars {
    #[expect(clippy::cast_precision_loss, reason = "counts")]
    #[expect(clippy::cast_possible_truncation, reason = "a position in the drawing")]
    fn draw(&self, area: &Area<'_>) -> Drawn {
        let heights = || self.groups.iter().flat_map(|(_, bars)| bars.iter().flatten().copied()).filter(|h| *h > 0.0);
        let low = heights().fold(f64::INFINITY, f64::min).min(1e6) / 2.0;
        // Room for the names above the bars.
        let high = heights().fold(low * 4.0, f64::max) * 10.0;
        let (count, width) = (self.groups.len(), self.names.len() as f64 + 1.0);
        let mut chart = ChartBuilder::on(area)
            .caption(self.title.as_str(), ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..count as f64, (low..high).log_scale())
            .map_err(|error| error.to_string())?;
        chart.configure_mesh().disable_x_mesh().disable_x_axis().y_desc("ms").draw().map_err(|e| e.to_string())?;
        for (at, name) in self.names.iter().enumerate() {
            let bars = self.groups.iter().enumerate().filter_map(|(group, (_, bars))| {
                let height = bars.get(at).copied().flatten().filter(|height| *height > 0.0)?;
                let left = group as f64 + (at as f64 + 0.5) / width;
                Some(Rectangle::new([(left, low), (left + 0.9 / width, height)], colour(at).filled()))
            });
            let style = colour(at).filled();
            chart
                .draw_series(bars)
                .map_err(|error| error.to_string())?
                .label(*name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 12, y + 4)], style));
        }
        let (across, down) = area.dim_in_pixel();
        let step = (f64::from(across) - 80.0) / count.max(1) as f64;
        for (group, (label, _)) in self.groups.iter().enumerate() {
            let x = 80.0 + step * group as f64;
            let at = (x as i32, i32::try_from(down).unwrap_or(0) - 34);
            area.draw(&Text::new(label.clone(), at, ("sans-serif", 13))).map_err(|error| error.to_string())?;
        }
        key(&mut chart, SeriesLabelPosition::UpperRight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawings_are_svg_with_their_labels() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.svg");
        serve(&crate::bench::output::tests::report(), &path).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for part in ["<svg", "Time to first token", "Between tokens", "Resident memory", "2 at a time", "</svg>"] {
            assert!(svg.contains(part), "{part}");
        }
        let panel = Bars {
            title: "T".into(),
            names: vec!["cpu_tee", "hybrid_unified"],
            groups: vec![
                ("masked, 16".into(), vec![Some(2.0), None]),
                ("direct, 16".into(), vec![Some(3.0), Some(90.0)]),
            ],
        };
        bars(&[panel], &path).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("masked, 16"));
        let nothing = Bars { title: "T".into(), names: vec!["a"], groups: Vec::new() };
        bars(&[nothing], &path).unwrap();
    }

    #[test]
    fn a_drawing_needs_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check(None).is_ok() && check(Some(Path::new("a.svg"))).is_ok());
        assert!(check(Some(&dir.path().join("a.svg"))).is_ok());
        assert!(check(Some(dir.path())).is_err() && check(Some(&dir.path().join("b/a.svg"))).is_err());
    }
}
