//! Writes the CustomResourceDefinitions to one folder, a file each, and the pages about custom resources and
//! conditions to another: `crdgen crds docs`.

use std::{error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    const USAGE: &str = "usage: crdgen DEFINITIONS DOCS";
    let mut folders = std::env::args_os().skip(1).map(PathBuf::from);
    let definitions = folders.next().ok_or(USAGE)?;
    let docs = folders.next().ok_or(USAGE)?;
    for definition in cistern_crds::definitions() {
        let file = definitions.join(format!("{}.yaml", definition.spec.names.plural));
        let yaml = serde_saphyr::to_string(&definition)?;
        fs::write(
            file,
            format!("# Generated from the Rust types: make generate.\n{yaml}"),
        )?;
    }
    fs::write(docs.join("conditions.md"), cistern_crds::conditions_page())?;
    fs::write(
        docs.join("custom-resources.md"),
        cistern_crds::reference_page(),
    )?;
    Ok(())
}
