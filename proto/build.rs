//! Generates Rust code from the .proto files, without `protoc`.

#![expect(
    clippy::disallowed_methods,
    reason = "cargo passes the output directory to a build script in the environment"
)]

use std::{env, error::Error, fs, path::Path};

use protox::{
    Compiler,
    prost_reflect::{ExtensionDescriptor, FieldDescriptor, MessageDescriptor},
};

const FILES: [&str; 4] = [
    "csi.proto",
    "group.proto",
    "registration.proto",
    "transfer.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES.iter().chain(&["build.rs"]) {
        println!("cargo::rerun-if-changed={file}");
    }

    let mut compiler = Compiler::new(["."])?;
    compiler
        .include_imports(true)
        .include_source_info(true)
        .open_files(FILES)?;

    let pool = compiler.descriptor_pool();
    let option = pool
        .get_extension_by_name("csi.v1.csi_secret")
        .ok_or("csi.proto does not define csi_secret")?;
    let secretive: Vec<MessageDescriptor> = pool
        .all_messages()
        .filter(|message| message.fields().any(|field| is_secret(&field, &option)))
        .collect();

    let debug: String = secretive.iter().map(|m| debug_impl(m, &option)).collect();
    fs::write(Path::new(&env::var("OUT_DIR")?).join("debug.rs"), debug)?;

    tonic_prost_build::configure()
        // An RPC without an implementation returns UNIMPLEMENTED.
        .generate_default_stubs(true)
        // Maps are sorted, so that equal messages have equal bytes and texts.
        .btree_map(".")
        // Data that is not copied.
        .bytes(".cistern.transfer.v1alpha1.Chunk")
        .skip_debug(secretive.iter().map(MessageDescriptor::full_name))
        // Its Debug is in src/lib.rs.
        .skip_debug(["csi.v1.VolumeCapability.MountVolume"])
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

/// Whether the protocol marks the field as a secret, which must not be logged.
fn is_secret(field: &FieldDescriptor, option: &ExtensionDescriptor) -> bool {
    field.options().get_extension(option).as_bool() == Some(true)
}

/// `Debug` for a message with secrets, showing all its other fields.
fn debug_impl(message: &MessageDescriptor, option: &ExtensionDescriptor) -> String {
    let name = message.name();
    assert!(
        message.parent_message().is_none() && message.oneofs().len() == 0,
        "{name}: prost renames what is nested or in a oneof, and this function does not"
    );
    let fields: String = message
        .fields()
        .filter(|field| !is_secret(field, option))
        .map(|field| format!(".field(\"{0}\", &self.{0})", field.name()))
        .collect();
    format!(
        "impl std::fmt::Debug for {name} {{
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {{
                f.debug_struct(\"{name}\"){fields}.finish_non_exhaustive()
            }}
        }}\n"
    )
}
