//! The files of the page. They are compiled into the program and need no build step.

/// A file of the page.
#[derive(Clone, Copy, Debug)]
pub struct PageFile {
    /// Name in the URL. The page itself has the empty name.
    pub name: &'static str,
    /// Value of the header Content-Type.
    pub media_type: &'static str,
    /// Content.
    pub content: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// All files of the page.
pub const FILES: &[PageFile] = &[
    file("", HTML, include_str!("../../ui/index.html")),
    file("icon.svg", IMAGE, include_str!("../../ui/icon.svg")),
    file("style.css", STYLE, include_str!("../../ui/style.css")),
    file("views.css", STYLE, include_str!("../../ui/views.css")),
    file("app.js", SCRIPT, include_str!("../../ui/app.js")),
    file("bar.js", SCRIPT, include_str!("../../ui/bar.js")),
    file("details.js", SCRIPT, include_str!("../../ui/details.js")),
    file("dom.js", SCRIPT, include_str!("../../ui/dom.js")),
    file("format.js", SCRIPT, include_str!("../../ui/format.js")),
    file("grid.js", SCRIPT, include_str!("../../ui/grid.js")),
    file("nodes.js", SCRIPT, include_str!("../../ui/nodes.js")),
    file("overview.js", SCRIPT, include_str!("../../ui/overview.js")),
    file("polling.js", SCRIPT, include_str!("../../ui/polling.js")),
    file(
        "snapshots.js",
        SCRIPT,
        include_str!("../../ui/snapshots.js"),
    ),
    file("table.js", SCRIPT, include_str!("../../ui/table.js")),
    file("volumes.js", SCRIPT, include_str!("../../ui/volumes.js")),
];

const fn file(name: &'static str, media_type: &'static str, content: &'static str) -> PageFile {
    PageFile {
        name,
        media_type,
        content,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_imported_file_is_served() {
        let is_served = |name: &str| FILES.iter().any(|file| file.name == name);
        for file in FILES {
            for line in file.content.lines() {
                if let Some((_, rest)) = line.split_once("from \"./") {
                    let name = rest.split('"').next().unwrap();
                    assert!(is_served(name), "{} imports {name}", file.name);
                }
            }
        }
    }

    #[test]
    fn the_page_requests_nothing_from_other_servers_and_makes_no_html_of_text() {
        for file in FILES {
            let urls = file.content.replace("http://www.w3.org/2000/svg", "");
            assert!(!urls.contains("://"), "{}", file.name);
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ] {
                assert!(!file.content.contains(word), "{}: {word}", file.name);
            }
        }
    }
}
