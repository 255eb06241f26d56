//! The same scenarios over every engine, with and without encryption: image files, and logical volumes of LVM.

pub(crate) mod fixture;
mod scenarios;

/// Makes a test of each scenario for each engine.
macro_rules! table {
    ($($scenario:ident,)*) => {
        mod images {
            $(#[test]
            fn $scenario() {
                super::scenarios::$scenario(&super::fixture::Fixture::images());
            })*
        }
        mod encrypted_images {
            $(#[test]
            #[ignore = "needs device-mapper, which the virtual machine has"]
            fn $scenario() {
                super::scenarios::$scenario(&super::fixture::Fixture::images().encrypted());
            })*
        }
        mod logical_volumes {
            $(#[test]
            #[ignore = "needs device-mapper, which the virtual machine has"]
            fn $scenario() {
                super::scenarios::$scenario(&super::fixture::Fixture::logical_volumes());
            })*
        }
        mod encrypted_logical_volumes {
            $(#[test]
            #[ignore = "needs device-mapper, which the virtual machine has"]
            fn $scenario() {
                super::scenarios::$scenario(&super::fixture::Fixture::logical_volumes().encrypted());
            })*
        }
    };
}

table! {
    a_volume_keeps_its_data_from_pod_to_pod,
    a_raw_block_volume_keeps_its_data_from_pod_to_pod,
    a_volume_grows_while_a_pod_uses_it,
    a_volume_that_has_grown_is_staged_at_its_new_size,
    a_raw_block_volume_grows_and_its_new_part_reads_zero,
    a_volume_in_use_is_not_removed,
    the_volume_of_another_object_is_refused,
    a_volume_reports_its_space_its_io_and_no_troubles,
    r15_an_error_at_any_call_of_a_stage_is_recovered_by_the_next_attempt,
}
