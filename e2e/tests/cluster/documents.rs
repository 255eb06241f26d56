//! The commands of README and quick start work as written, and their output has the shape that the pages show.

use cistern_e2e::{Harness, Page, Test};

#[tokio::test]
async fn the_commands_of_readme_and_quick_start_work_as_written() {
    // The clean-up deletes objects by the names that a reader gives them.
    let Some(_) = Harness::or_skip("the commands of README and quick start") else {
        return;
    };
    Test::run_alone("documents", async |test| {
        test.no_failed_test_keeps_objects().await;
        for page in ["docs/quickstart.md", "README.md"] {
            Page::read(page).await.run().await;
        }
    })
    .await;
}
