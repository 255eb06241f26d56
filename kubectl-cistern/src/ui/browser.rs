//! Opens the page in the default browser.
//!
//! *Invariant:* the URL contains the token and is never an argument of a process, because other
//! users of the machine can read arguments. The browser opens a file that only this user can read
//! and that redirects to the URL.

use std::io::{self, Write as _};

use tempfile::NamedTempFile;

/// Starts the default browser with a file that redirects to `url`. The caller must keep the
/// returned file until the browser has read it. Fails if the file cannot be written, or if no
/// browser can be started.
pub fn open(url: &str) -> io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new()
        .prefix("kubectl-cistern-")
        .suffix(".html")
        .tempfile()?;
    file.write_all(redirect(url).as_bytes())?;
    open::that_detached(file.path())?;
    Ok(file)
}

/// Returns a document that redirects to `url`, which has only characters that HTML does not
/// interpret.
fn redirect(url: &str) -> String {
    format!(
        "<!doctype html><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\">\
        <meta http-equiv=\"refresh\" content=\"0; url={url}\"><a href=\"{url}\">kubectl cistern ui</a>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_redirects_to_the_page() {
        let file = redirect("http://127.0.0.1:1/t/");
        assert!(
            file.contains("content=\"0; url=http://127.0.0.1:1/t/\""),
            "{file}"
        );
    }
}
