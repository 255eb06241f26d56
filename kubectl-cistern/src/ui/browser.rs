//! Opens the page in the default browser.
//!
//! *Invariant:* the URL, which contains the token, is no argument of a process: other users of the machine
//! could read it there. The browser gets a file that only this user can read, and that redirects to the URL.

use std::io::{self, Write as _};

use tempfile::NamedTempFile;

/// Starts the default browser. The file must be kept until the browser has read it.
pub fn open(url: &str) -> io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new()
        .prefix("kubectl-cistern-")
        .suffix(".html")
        .tempfile()?;
    file.write_all(redirect(url).as_bytes())?;
    open::that_detached(file.path())?;
    Ok(file)
}

/// `url` has only characters that HTML does not interpret.
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
