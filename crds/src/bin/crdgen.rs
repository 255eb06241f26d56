//! Writes the CustomResourceDefinitions to a folder, one file each: `crdgen crds`.

use std::{error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: crdgen FOLDER")?);
    for definition in cistern_crds::definitions() {
        let file = folder.join(format!("{}.yaml", definition.spec.names.plural));
        let yaml = serde_saphyr::to_string(&definition)?;
        fs::write(
            file,
            format!("# Generated from the Rust types: make generate.\n{yaml}"),
        )?;
    }
    Ok(())
}
