//! Headless Chromium with the page of `kubectl cistern ui`.
//!
//! *Invariant:* Chromium, chromedriver and the command end with the test, also when it fails: the browser has a
//! process namespace of its own, which ends with its first process.

use std::path::Path;

use cistern_e2e::{
    Folder, Process, eventually,
    process::{binary, dying_with_us},
};
use serde_json::Value;
use thirtyfour::{ChromiumLikeCapabilities as _, DesiredCapabilities, WebDriver};

use crate::SOON;

/// Colour scheme that the browser prefers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scheme {
    Light,
    Dark,
}

/// `kubectl cistern ui`.
pub(crate) struct Ui {
    pub(crate) process: Process,
    pub(crate) url: String,
    _folder: Folder,
}

impl Ui {
    /// Starts the command with further arguments, and waits for the URL that it prints.
    pub(crate) async fn start(kubeconfig: &Path, words: &[&str]) -> Self {
        let folder = Folder::new();
        let mut command = dying_with_us(binary("kubectl-cistern"));
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("ui")
            .args(words);
        let process = Process::start("ui", &folder.join("ui.log"), command);
        let url = printed(&process, &["http://"]).await;
        Self {
            process,
            url,
            _folder: folder,
        }
    }
}

/// Starts chromedriver and returns its port. It takes a free port of IPv6, which another program may have on IPv4,
/// and then it ends.
async fn chromedriver(folder: &Folder) -> (Process, String) {
    const STARTED: &str = "ChromeDriver was started successfully on port ";
    const ATTEMPTS: usize = 5;
    for _ in 0..ATTEMPTS {
        let mut command = dying_with_us("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["chromedriver", "--port=0"]);
        // Chromium leaves its temporary files when it is killed.
        command.env("TMPDIR", folder.path());
        let process = Process::start("chromedriver", &folder.join("chromedriver.log"), command);
        let line = printed(&process, &[STARTED, "IPv4 port not available"]).await;
        if let Some(port) = line.strip_prefix(STARTED) {
            return (process, port.trim_end_matches('.').to_owned());
        }
    }
    panic!("chromedriver has found no free port {ATTEMPTS} times");
}

/// Waits for a line of a process that starts with one of `starts`, and returns the line.
async fn printed(process: &Process, starts: &[&str]) -> String {
    eventually(&format!("a line with {starts:?}"), SOON, async || {
        let log = process.log();
        // A line without a line break is not complete.
        let line = log
            .split_inclusive('\n')
            .find(|line| line.ends_with('\n') && starts.iter().any(|it| line.starts_with(it)));
        line.map(|line| line.trim_end().to_owned()).ok_or(log)
    })
    .await
}

/// A browser window.
pub(crate) struct Browser {
    client: WebDriver,
    // Dropped in this order.
    _chromedriver: Process,
    _folder: Folder,
}

impl Browser {
    /// Starts Chromium and opens a page.
    pub(crate) async fn open(url: &str, scheme: Scheme) -> Self {
        let folder = Folder::new();
        let (chromedriver, port) = chromedriver(&folder).await;

        let profile = folder.join("profile");
        let scheme = match scheme {
            Scheme::Dark => 0,
            Scheme::Light => 1,
        };
        let arguments = [
            "--headless".to_owned(),
            // Chromium's sandbox does not run as root; the page is ours.
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-quic".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--disable-sync".to_owned(),
            "--hide-scrollbars".to_owned(),
            "--window-size=1360,900".to_owned(),
            format!("--blink-settings=preferredColorScheme={scheme}"),
            format!("--user-data-dir={}", profile.display()),
        ];
        let mut capabilities = DesiredCapabilities::chrome();
        capabilities.set_binary("/usr/bin/chromium").unwrap();
        for argument in &arguments {
            capabilities.add_arg(argument).unwrap();
        }
        let client = WebDriver::new(format!("http://127.0.0.1:{port}"), capabilities);
        let client = client.await.unwrap();
        // The session ends with its processes. A request for that would wait two minutes in `drop`.
        client.clone().leak().unwrap();
        client.goto(url).await.unwrap();
        Self {
            client,
            _chromedriver: chromedriver,
            _folder: folder,
        }
    }

    /// Evaluates an expression in the page.
    pub(crate) async fn get(&self, expression: &str) -> Value {
        let script = format!("return {expression};");
        let result = self.client.execute(script, Vec::new()).await.unwrap();
        result.json().clone()
    }

    /// Waits until an expression is true.
    pub(crate) async fn until(&self, expression: &str) {
        eventually(expression, SOON, async || {
            let text = "document.body.innerText.slice(0, 2000)";
            match self.get(&format!("Boolean({expression})")).await {
                Value::Bool(true) => Ok(()),
                _ => Err(self.get(text).await.to_string()),
            }
        })
        .await;
    }

    /// Waits until the page contains all of these texts.
    pub(crate) async fn shows(&self, texts: &[&str]) {
        for text in texts {
            let text = Value::from(*text);
            self.until(&format!("document.body.innerText.includes({text})"))
                .await;
        }
    }

    /// Presses keys, where the focus is.
    pub(crate) async fn press(&self, keys: &str) {
        let focused = self.client.active_element().await.unwrap();
        focused.send_keys(keys).await.unwrap();
    }

    /// Goes to a part of the page, such as `#volumes`.
    pub(crate) async fn visit(&self, hash: &str) {
        self.get(&format!("location.hash = {}", Value::from(hash)))
            .await;
    }

    /// Returns what is visible, as PNG.
    pub(crate) async fn screenshot(&self) -> Vec<u8> {
        self.client.screenshot_as_png().await.unwrap()
    }
}
